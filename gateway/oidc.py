"""Signing in with an OpenID Connect provider: authorization code with PKCE, and what the provider's word is worth here.

    address, sealed = await sign_on.begin(back="/ui", redirect="https://gateway.example.com/ui/oidc/back")
    person = await sign_on.finish(sealed, query, redirect)

Knows: discovery, state, nonce, the checks of an ID token (signature, iss, aud, azp, exp, iat, nonce), which claim gives
which role and team. The state of a login in progress travels in a sealed cookie, so any worker can finish what another
began. Does not know: cookies' attributes, sessions, pages. Needs the extra `oidc` (authlib with joserfc and httpx2).
Sources: OpenID Connect Core 1.0 (3.1.3.7), RFC 7636 (PKCE), RFC 9207 (iss in the answer), RFC 9700 (best practice).
"""

import asyncio
import base64
import hashlib
import hmac
import importlib
import secrets
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from gateway.call import Role
from gateway.errors import GatewayError, NotAllowed, UpstreamFailed
from gateway.oidc_settings import OidcSettings, Reach

LIFETIME = 600.0  # seconds a login may take
_LABEL = b"nearhit oidc login v1"
_TIMEOUT = 5.0
_FRESH = 3_600.0
_KEYS_AT_MOST_EVERY = 10.0
_LARGEST = 1 << 20
_LEEWAY = 60
_LONGEST_NAME = 200
_SIGNED_WITH = ("RS256", "PS256", "ES256", "EdDSA")  # never `none`, never HMAC: its key would be the client's secret


class Login(Struct, frozen=True):
    """A login in progress."""

    state: str
    nonce: str
    verifier: str
    back: str
    expires: float


class Person(NamedTuple):
    """Who signed in. `actor` begins with `oidc:`, which no key's id does; `team` is empty for every team."""

    actor: str
    role: Role
    team: str
    back: str


class Metadata(Struct, frozen=True):
    """What of the provider's description is used (OpenID Connect Discovery 1.0)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    id_token_signing_alg_values_supported: tuple[str, ...] = ("RS256",)


class SignOn:
    """One provider. `secret`: the installation's; `now`: wall-clock seconds. Raises ValueError without the extra."""

    def __init__(self, settings: OidcSettings, secret: bytes, *, now: Callable[[], float]) -> None:
        try:
            for needed in ("authlib.integrations.httpx_client", "httpx2"):
                importlib.import_module(needed)
        except ImportError as error:
            raise ValueError(
                f"oidc needs more packages: pip install 'nearhit[oidc]' ({error.name} is missing)"
            ) from error
        # Here, as the libraries of the extra: a worker whose people do not sign on this way has 6 MB more without.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        self.settings = settings
        self._now = now
        self._seal = AESGCM(HKDF(SHA256(), 32, salt=None, info=_LABEL).derive(secret))
        self._metadata: tuple[Metadata, float] | None = None
        self._keys: tuple[Any, float] | None = None
        self._asking = asyncio.Lock()

    async def begin(self, *, back: str, redirect: str) -> tuple[str, str]:
        """Where to send the browser, and the sealed state it must bring back. Raises UpstreamFailed."""
        found = await self._provider()
        login = Login(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(64),
            back=back,
            expires=self._now() + LIFETIME,
        )
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self.settings.client_id,
                "redirect_uri": redirect,
                "scope": self.settings.scopes,
                "state": login.state,
                "nonce": login.nonce,
                "code_challenge": challenge_of(login.verifier),
                "code_challenge_method": "S256",
            }
        )
        joined = "&" if "?" in found.authorization_endpoint else "?"
        return f"{found.authorization_endpoint}{joined}{query}", self._sealed(login)

    async def finish(self, sealed: str, query: Mapping[str, str], redirect: str) -> Person:
        """Exchange the code and check everything. Raises NotAllowed (with what to do) and UpstreamFailed."""
        login = self._opened(sealed)
        if login is None or login.expires <= self._now():
            raise NotAllowed("This sign-in took too long or began in another browser. Start again.", code="oidc_state")
        if not hmac.compare_digest(login.state.encode(), query.get("state", "").encode("utf-8", "replace")):
            raise NotAllowed("This sign-in was not begun here. Start again.", code="oidc_state")
        found = await self._provider()
        if query.get("iss", found.issuer) != found.issuer:
            raise NotAllowed("The answer came from another provider.", code="oidc_issuer")
        if "error" in query or not query.get("code"):
            raise NotAllowed("The provider did not sign you in.", code="oidc_refused")
        token = await self._exchange(found, query["code"], login.verifier, redirect)
        claims = await self._checked(found, str(token.get("id_token", "")), login.nonce)
        reach = self.settings.reach_of(claims)
        if reach is None:
            raise NotAllowed(
                "Your account has no role here. An administrator grants one by `oidc.roles`.", code="no_role"
            )
        return _person(claims, self.settings.name_claim, reach, login.back)

    # The provider

    async def _provider(self) -> Metadata:
        async with self._asking:
            if self._metadata is None or self._metadata[1] + _FRESH <= self._now():
                raw = await self._get(f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration")
                try:
                    found = msgspec.json.decode(raw, type=Metadata)
                except msgspec.DecodeError as error:
                    raise _away("describes itself in a form that is not understood") from error
                if found.issuer != self.settings.issuer:
                    raise _away(f"calls itself {found.issuer[:200]!r}, not as `oidc.issuer` says")
                self._metadata = (found, self._now())
            return self._metadata[0]

    async def _exchange(self, found: Metadata, code: str, verifier: str, redirect: str) -> dict[str, Any]:
        import httpx2
        from authlib.integrations.base_client import OAuthError
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        given = self.settings.client_secret
        client: Any = AsyncOAuth2Client(  # typed loosely
            client_id=self.settings.client_id,
            client_secret=None if given is None else given.get_secret_value(),
            token_endpoint_auth_method="none" if given is None else "client_secret_basic",
            timeout=_TIMEOUT,
            follow_redirects=False,
            trust_env=False,
        )
        try:
            async with client:
                answer: Any = await client.fetch_token(
                    found.token_endpoint,
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=verifier,
                    redirect_uri=redirect,
                )
        except OAuthError as error:
            raise NotAllowed("The provider refused the sign-in. Start again.", code="oidc_refused") from error
        except (httpx2.HTTPError, ValueError) as error:
            raise _away("did not answer when asked for the token") from error
        return cast("dict[str, Any]", answer)

    async def _checked(self, found: Metadata, id_token: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token in which everything holds. Raises NotAllowed."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        allowed = [name for name in _SIGNED_WITH if name in found.id_token_signing_alg_values_supported]
        registry = jwt.JWTClaimsRegistry(
            now=int(self._now()),
            leeway=_LEEWAY,
            iss={"essential": True, "value": found.issuer},
            aud={"essential": True, "value": self.settings.client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            try:
                token = jwt.decode(id_token, await self._key_set(found), allowed)
            except (JoseError, ValueError):  # signed with a key that is newer than what is known here
                token = jwt.decode(id_token, await self._key_set(found, renew=True), allowed)
            registry.validate(token.claims)
        except (JoseError, ValueError) as error:
            raise NotAllowed("The provider's answer could not be verified.", code="oidc_token") from error
        claims = dict(token.claims)
        if not _made_for(self.settings.client_id, claims):
            raise NotAllowed("The provider's answer was made for another application.", code="oidc_token")
        return claims

    async def _key_set(self, found: Metadata, *, renew: bool = False) -> Any:
        """The provider's public keys; asked again for an unknown one, though not by every forged token."""
        from joserfc.jwk import KeySet

        async with self._asking:
            age = self._now() - self._keys[1] if self._keys is not None else _FRESH
            if self._keys is None or age >= (_KEYS_AT_MOST_EVERY if renew else _FRESH):
                raw = await self._get(found.jwks_uri)
                try:
                    keys = KeySet.import_key_set(msgspec.json.decode(raw, type=dict[str, Any]))  # pyright: ignore[reportArgumentType] - its own TypedDict
                except (msgspec.DecodeError, ValueError, KeyError, TypeError) as error:
                    raise _away("publishes keys in a form that is not understood") from error
                self._keys = (keys, self._now())
            return self._keys[0]

    async def _get(self, url: str) -> bytes:
        import httpx2

        body = b""
        try:
            async with (
                httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=False, trust_env=False) as client,
                client.stream("GET", url) as answer,
            ):
                answer.raise_for_status()
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > _LARGEST:
                        raise _away("sends more than can be meant")
        except httpx2.HTTPError as error:
            raise _away("does not answer") from error
        return body

    # The state that travels

    def _sealed(self, login: Login) -> str:
        """As a cookie holds it: browsers drop one of more than 4096 letters, and `back` may have 2,000."""
        once = secrets.token_bytes(12)
        sealed = once + self._seal.encrypt(once, msgspec.msgpack.encode(login), _LABEL)
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")

    def _opened(self, sealed: str) -> Login | None:
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.b64decode(sealed + "=" * (-len(sealed) % 4), altchars=b"-_", validate=True)
            return msgspec.msgpack.decode(self._seal.decrypt(raw[:12], raw[12:], _LABEL), type=Login)
        except (ValueError, InvalidTag, msgspec.DecodeError):
            return None


def _made_for(client: str, claims: Mapping[str, Any]) -> bool:
    """OpenID Connect Core 3.1.3.7, 3 to 5. `aud` may be a list of one, as several providers always write it: only
    among several audiences `azp` must say which one asked; wherever it stands, it must be us.
    """
    several = isinstance(claims["aud"], list) and len(cast("list[object]", claims["aud"])) > 1
    return claims.get("azp", None if several else client) == client


def _person(claims: Mapping[str, Any], name_claim: str, reach: Reach, back: str) -> Person:
    """Named by the chosen claim; the subject alone is certain to stay the same, so it stands in where there is none,
    and for an address of which the provider says that it was never shown to be theirs.
    """
    unproved = name_claim == "email" and claims.get("email_verified", True) in (False, "false")
    name = None if unproved else claims.get(name_claim)
    shown = name if isinstance(name, str) and name.strip().isprintable() and name.strip() else str(claims["sub"])
    return Person(f"oidc:{shown.strip()[:_LONGEST_NAME]}", reach.role, reach.team, back)


def challenge_of(verifier: str) -> str:
    """RFC 7636, 4.2: S256."""
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _away(what: str) -> GatewayError:
    return UpstreamFailed(f"The sign-in provider {what}. Sign in with a key, or ask an administrator.")
