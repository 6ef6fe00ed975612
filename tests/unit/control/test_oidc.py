"""Signing in with an OpenID Connect provider, against a real one on loopback: who gets in, and every way not to."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import RSAKey
from pydantic import ValidationError

from gateway.oidc import SignOn
from gateway.oidc_settings import OidcSettings
from tests.clock import FrozenClock
from tests.unit.control.house import House, happened, house, request_row
from tests.unit.control.oidc_provider import CLIENT, SECRET, Provider, provider

ROLES = {"platform": "admin", "ops": "operator@acme", "money": "finance"}


@pytest.fixture
def idp() -> Generator[Provider, None, None]:
    with provider() as found:
        yield found


def settings(idp: Provider, **changes: Any) -> OidcSettings:
    values = {"issuer": idp.issuer, "client_id": CLIENT, "client_secret": SECRET, "roles": ROLES}
    return OidcSettings.model_validate({**values, **changes})


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock, idp: Provider) -> AsyncGenerator[House, None]:
    idp.now = clock.now
    async with house(tmp_path, clock) as found:
        found.services.sign_on = SignOn(settings(idp), b"s" * 32, now=clock.now)
        yield found


async def signed_in(visitor: httpx.AsyncClient, back: str = "/ui/requests") -> httpx.Response:
    """All the way round, as a browser goes it."""
    begun = await visitor.get("/ui/oidc", params={"next": back})
    assert begun.status_code == 303, begun.text
    async with httpx.AsyncClient() as browser:
        approved = await browser.get(begun.headers["location"])
    return await visitor.get(approved.headers["location"])


async def test_a_person_signs_in_and_reaches_what_their_group_says(home: House) -> None:
    """The whole way: PKCE, code, token, role and team from the claim, a strict cookie, a row in the audit log."""
    rows = [request_row(home.clock, 1), request_row(home.clock, 2, team="zeta", model="hushmodel")]
    await happened(home.services.database, rows)
    async with home.client(None) as visitor:
        answer = await signed_in(visitor)
        assert answer.status_code == 200
        assert 'content="0; url=/ui/requests"' in answer.text
        cookies = answer.headers.get_list("set-cookie")
        assert any(one.startswith("nearhit=") and "samesite=strict" in one.lower() for one in cookies)
        page = await visitor.get("/ui/requests")
        assert page.status_code == 200
        assert "hushmodel" not in page.text
        assert (await visitor.get("/ui/keys")).status_code == 200  # an operator's page
        assert (await visitor.post("/ui/keys", data={"name": "x"})).status_code == 403  # an administrator's
    async with home.client() as admin:
        line = (await admin.get("/api/v1/audit")).json()["data"][0]
    assert (line["action"], line["actor"]) == ("session.open", "oidc:ada@example.com")
    assert line["after"] == {"role": "operator", "team": "acme"}


async def test_the_first_matching_group_counts(home: House, idp: Provider) -> None:
    """An order in a file is something an administrator can reason about."""
    idp.claims["groups"] = ["money", "platform"]
    async with home.client(None) as visitor:
        await signed_in(visitor)
        assert (await visitor.get("/ui/audit")).status_code == 200


@pytest.mark.parametrize(
    "forged",
    [
        {"aud": "another-client"},
        {"aud": [CLIENT, "another"], "azp": "another"},
        {"aud": [CLIENT, "another"]},
        {"azp": "another"},
        {"iss": "https://evil.example.com"},
        {"nonce": "replayed"},
        {"exp": 1},
        {"exp": None},
        {"sub": None},
        {"groups": []},
        {"groups": ["nobody"]},
    ],
    ids=str,
)
async def test_a_wrong_token_opens_nothing(home: House, idp: Provider, forged: dict[str, Any]) -> None:
    """Each claim that is not checked is a way in for whoever has a token made for something else."""
    idp.forge = forged
    async with home.client(None) as visitor:
        answer = await signed_in(visitor)
        assert answer.status_code == 403
        assert "nearhit=" not in str(answer.headers.get_list("set-cookie"))
        assert (await visitor.get("/ui/requests")).status_code == 401


@pytest.mark.parametrize("form", [{"aud": [CLIENT]}, {"aud": [CLIENT, "api"], "azp": CLIENT}, {"azp": CLIENT}], ids=str)
async def test_an_audience_may_be_written_as_a_list(home: House, idp: Provider, form: dict[str, Any]) -> None:
    """Ory and Authelia always write a list, of one without `azp`: nobody could sign in with them."""
    idp.forge = form
    async with home.client(None) as visitor:
        assert (await signed_in(visitor)).status_code == 200


async def test_an_address_that_was_never_proved_names_nobody(home: House, idp: Provider) -> None:
    """Else whoever may edit their own profile acts under a colleague's name in the audit log."""
    idp.claims |= {"email_verified": False}
    async with home.client(None) as visitor, home.client() as admin:
        assert (await signed_in(visitor)).status_code == 200
        assert (await admin.get("/api/v1/audit")).json()["data"][0]["actor"] == "oidc:u-1"


async def test_a_session_ends_with_the_grant_it_came_from(home: House, idp: Provider) -> None:
    """Who takes a line out of `oidc.roles` means those who are signed in by it, too."""
    async with home.client(None) as visitor:
        await signed_in(visitor)
        assert (await visitor.get("/ui/requests")).status_code == 200
        roles = {"ops": "viewer@acme"}
        home.services.sign_on = SignOn(settings(idp, roles=roles), b"s" * 32, now=home.clock.now)
        assert (await visitor.get("/ui/requests")).status_code == 401


async def test_the_longest_view_still_fits_a_cookie(home: House) -> None:
    """Browsers drop a longer one without a word, and then this sign-in "began in another browser"."""
    back = "/ui/spend?" + "x" * 1_980
    async with home.client(None) as visitor:
        begun = await visitor.get("/ui/oidc", params={"next": back})
        name, _, value = begun.headers["set-cookie"].partition(";")[0].partition("=")
        assert len(name) + len(value) < 4_096
        assert f'href="{back}"' in (await signed_in(visitor, back)).text


async def test_somebody_with_a_slash_in_their_name_can_be_signed_out(home: House, idp: Provider) -> None:
    """Names come from the provider; one that no address could hold would be signed in for as long as it likes."""
    idp.claims |= {"email": "acme/ada?x"}
    async with home.client(None) as visitor, home.client() as admin:
        await signed_in(visitor)
        assert (await admin.delete("/api/v1/sessions/oidc:acme%2Fada%3Fx")).json() == {"ended": 1}
        assert (await visitor.get("/ui/requests")).status_code == 401


async def test_a_strangers_signature_opens_nothing_and_a_new_key_is_learned(home: House, idp: Provider) -> None:
    """Providers roll their keys over; a token under a key they do not publish is forged."""
    idp.signer = RSAKey.generate_key(2048, {"kid": "k2", "use": "sig", "alg": "RS256"})
    async with home.client(None) as visitor:
        assert (await signed_in(visitor)).status_code == 403
    idp.published = [idp.key, idp.signer]
    async with home.client(None) as visitor:
        before = idp.asked.count("/jwks")
        assert (await signed_in(visitor)).status_code == 403  # asked a moment ago: forged tokens must not make us ask
        assert idp.asked.count("/jwks") == before
        home.clock.advance(11)
        assert (await signed_in(visitor)).status_code == 200


async def test_what_was_not_begun_here_is_not_finished_here(home: House, idp: Provider) -> None:
    """Login CSRF: an attacker's code must not sign a victim in as the attacker; nor may a code be used twice."""
    async with home.client(None) as victim, home.client(None) as attacker:
        begun = await attacker.get("/ui/oidc")
        async with httpx.AsyncClient() as browser:
            approved = (await browser.get(begun.headers["location"])).headers["location"]
        assert (await victim.get(approved)).status_code == 403  # no cookie of a login in progress
        await victim.get("/ui/oidc")
        assert (await victim.get(approved)).status_code == 403  # another login's state
        assert (await attacker.get(approved)).status_code == 200
        attacker.cookies.clear()
        assert (await attacker.get(approved)).status_code == 403
        assert (await attacker.get("/ui/oidc/back?error=access_denied&state=x")).status_code == 403


async def test_a_login_in_progress_ends(home: House) -> None:
    """A state that lives for ever is one that leaks some day."""
    async with home.client(None) as visitor:
        begun = await visitor.get("/ui/oidc")
        async with httpx.AsyncClient() as browser:
            approved = (await browser.get(begun.headers["location"])).headers["location"]
        home.clock.advance(601)
        assert (await visitor.get(approved)).status_code == 403


async def test_a_session_ends_with_its_provider_and_by_an_administrator(home: House) -> None:
    """Nobody stays signed in through a door that was taken away, or after being signed out by an administrator."""
    async with home.client(None) as visitor, home.client() as admin:
        await signed_in(visitor)
        gone = await admin.delete("/api/v1/sessions/oidc:ada@example.com")
        assert gone.json() == {"ended": 1}
        assert (await visitor.get("/ui/requests")).status_code == 401
        await signed_in(visitor)
        home.services.sign_on = None
        assert (await visitor.get("/ui/requests")).status_code == 401
        assert (await visitor.get("/ui/oidc")).status_code == 404


async def test_a_provider_that_is_away_is_a_page_that_says_so(
    tmp_path: Path, clock: FrozenClock, idp: Provider
) -> None:
    """Keys still sign in; the page must say that the provider is the trouble."""
    async with house(tmp_path, clock) as found:
        found.services.sign_on = SignOn(settings(idp, issuer="http://127.0.0.1:9"), b"s" * 32, now=clock.now)
        async with found.client(None) as visitor:
            answer = await visitor.get("/ui/oidc")
    assert answer.status_code == 502
    assert "sign-in provider does not answer" in answer.text


@pytest.mark.parametrize(
    "changes",
    [{"issuer": "http://idp.example.com"}, {"roles": {"a": "root"}}, {"roles": {}}, {"scopes": "email"}],
    ids=str,
)
def test_settings_that_would_be_unsafe_are_refused(idp: Provider, changes: dict[str, Any]) -> None:
    """Better no start than a start with a provider over plain HTTP or a role that does not exist."""
    with pytest.raises(ValidationError):
        settings(idp, **changes)


def test_roles_may_lie_deeper(idp: Provider) -> None:
    """Keycloak keeps them under `realm_access.roles`."""
    found = settings(idp, role_claim="realm_access.roles")
    assert found.reach_of({"realm_access": {"roles": ["money"]}}) == ("finance", "")
    assert found.reach_of({"realm_access": "money"}) is None
