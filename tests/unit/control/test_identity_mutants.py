"""Each check of who may do what, taken out on purpose: one of the attacks here must get through every time.

So a check that is lost in a change is lost loudly. The attacks themselves are the ones every release must withstand.
"""

import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from gateway import audit, auth, keyform
from gateway.auth import ADMIN, Keyring, NewKey
from gateway.keyrows import KeyRow
from gateway.routes import access, visitor
from gateway.web import sessions
from tests.clock import FrozenClock
from tests.unit.control.house import ADMIN_KEY, House, house
from tests.unit.control.test_pages import csrf, sign_in


def _any_secret(row: KeyRow | None, presented: bytes) -> float | None:
    return None if row is None else math.inf


def _endless(patch: pytest.MonkeyPatch) -> None:
    """Neither in the row nor in what is remembered of it."""
    patch.setattr(KeyRow, "unusable", lambda self, now: None)
    patch.setattr(auth, "_good_until", _any_secret)


Patch = Callable[[pytest.MonkeyPatch], None]
Attack = Callable[[House], Awaitable[bool]]
"""Whether it got through."""
_HOUR = 3_600.0


@pytest.fixture
async def home(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[House]:
    async with house(tmp_path, clock) as found:
        yield found


async def _asks(home: House, key: str, method: str, path: str, body: object = None) -> httpx.Response:
    async with home.client(key) as client:
        return await client.request(method, path, json=body)


async def a_reader_makes_a_key(home: House) -> bool:
    told = await _asks(home, await home.key("viewer"), "POST", "/api/v1/keys", {"name": "x", "team": "acme"})
    return told.is_success


async def an_operator_makes_an_administrator(home: House) -> bool:
    wanted = NewKey(name="x", team="acme", project="", role="admin")
    operator = await home.services.keyring.identify_key(await home.key("operator"))
    try:
        await home.services.keyring.create(operator, wanted)
    except auth.NotAllowed:
        return False
    return True


async def a_teams_administrator_ends_anothers_key(home: House) -> bool:
    victim = await home.services.keyring.identify_key(await home.key("app", "other"))
    told = await _asks(home, await home.key("admin", "acme"), "DELETE", f"/api/v1/keys/{victim.key_id}")
    return told.is_success


async def a_key_that_ends_makes_one_that_lasts(home: House) -> bool:
    ends = NewKey(name="x", team="acme", project="", role="admin", expires=home.clock.now() + _HOUR)
    key = (await home.services.keyring.create(ADMIN, ends)).key
    return (await _asks(home, key, "POST", "/api/v1/keys", {"name": "x", "team": "acme"})).is_success


async def another_secret_under_a_known_id(home: House) -> bool:
    known = await home.services.keyring.identify_key(await home.key("admin"))
    guessed = keyform.mint(lambda count: b"g" * count, name=known.key_id).key
    return (await _asks(home, guessed, "GET", "/api/v1/whoami")).is_success


async def a_revoked_key(home: House) -> bool:
    key = await home.key("viewer")
    who = (await _asks(home, key, "GET", "/api/v1/whoami")).json()
    assert (await _asks(home, ADMIN_KEY, "DELETE", f"/api/v1/keys/{who['key_id']}")).is_success
    return (await _asks(home, key, "GET", "/api/v1/whoami")).is_success


async def a_key_past_its_end(home: House) -> bool:
    ends = NewKey(name="x", team="acme", project="", role="viewer", expires=home.clock.now() + _HOUR)
    key = (await home.services.keyring.create(ADMIN, ends)).key
    home.clock.advance(2 * _HOUR)
    return (await _asks(home, key, "GET", "/api/v1/whoami")).is_success


async def _form(home: House, fields: dict[str, str], headers: dict[str, str]) -> bool:
    async with home.client(None) as visiting:
        await sign_in(visiting)
        token = csrf((await visiting.get("/ui/keys")).text)
        sent = {"csrf": token, "name": "x", "team": "acme", **fields}
        return (await visiting.post("/ui/keys", data=sent, headers=headers)).is_success


async def a_form_without_its_token(home: House) -> bool:
    return await _form(home, {"csrf": ""}, {})


async def a_form_of_another_site(home: House) -> bool:
    return await _form(home, {}, {"origin": "https://evil.example"})


async def a_session_that_was_left(home: House) -> bool:
    async with home.client(None) as visiting:
        await sign_in(visiting)
        home.clock.advance(2 * _HOUR)
        return (await visiting.get("/ui/keys")).is_success


async def a_row_of_the_log_is_written_anew(home: House) -> bool:
    await _asks(home, ADMIN_KEY, "POST", "/api/v1/keys", {"name": "x", "team": "acme"})
    async with home.services.database.begin() as connection:
        await connection.exec_driver_sql("UPDATE audit SET actor = 'somebody-else'")
    return (await audit.verify(home.services)).broken_at is None


ATTACKS: tuple[Attack, ...] = (
    a_reader_makes_a_key,
    an_operator_makes_an_administrator,
    a_teams_administrator_ends_anothers_key,
    a_key_that_ends_makes_one_that_lasts,
    another_secret_under_a_known_id,
    a_revoked_key,
    a_key_past_its_end,
    a_form_without_its_token,
    a_form_of_another_site,
    a_session_that_was_left,
    a_row_of_the_log_is_written_anew,
)
MUTANTS: dict[str, tuple[Patch, Attack]] = {
    "no role is asked for": (
        lambda patch: patch.setattr(access, "require", lambda principal, role: None),
        a_reader_makes_a_key,
    ),
    "anything is granted": (
        lambda patch: patch.setattr(auth, "grantable", lambda creator, wanted: None),
        an_operator_makes_an_administrator,
    ),
    "every team is one's own": (
        lambda patch: patch.setattr(auth, "within", lambda principal, team: True),
        a_teams_administrator_ends_anothers_key,
    ),
    "life is not compared": (
        lambda patch: patch.setattr(auth, "_outlives", lambda creator, wanted: None),
        a_key_that_ends_makes_one_that_lasts,
    ),
    "the id is enough": (
        lambda patch: patch.setattr(auth, "_good_until", _any_secret),
        another_secret_under_a_known_id,
    ),
    "what is revoked works": (
        lambda patch: patch.setattr(KeyRow, "unusable", lambda self, now: None),
        a_revoked_key,
    ),
    "what is remembered is not forgotten": (
        lambda patch: patch.setattr(Keyring, "forget_key", lambda self, key_id: None),
        a_revoked_key,
    ),
    "ends are not looked at": (_endless, a_key_past_its_end),
    "tokens are not compared": (
        lambda patch: patch.setattr(visitor, "csrf_matches", lambda opened, presented: True),
        a_form_without_its_token,
    ),
    "origins are not compared": (
        lambda patch: patch.setattr(visitor, "same_origin", lambda connection: True),
        a_form_of_another_site,
    ),
    "sessions last": (
        lambda patch: patch.setattr(sessions, "IDLE", 1e12),
        a_session_that_was_left,
    ),
    "the chain holds nothing": (
        lambda patch: patch.setattr(audit, "_digest", lambda previous, *row: "the same"),
        a_row_of_the_log_is_written_anew,
    ),
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_no_attack_gets_through(home: House, attack: Attack) -> None:
    """As the code stands."""
    assert not await attack(home)


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_check_that_is_taken_out_is_noticed(home: House, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that fails for another reason than the check it is there for would prove nothing."""
    patch, attack = MUTANTS[name]
    patch(monkeypatch)
    assert await attack(home)
