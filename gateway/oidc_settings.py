"""`oidc:` in nearhit.yaml: which provider signs people in, and which of its claims gives which role.

Knows: names and checks of these settings. Does not know: the protocol (`gateway.oidc`).
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from gateway.call import Role

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_GRANT = re.compile(r"^(viewer|finance|operator|admin)(?:@([^@/:]{1,64}))?$")


class Reach(NamedTuple):
    """What a person may do, and within which team (empty: every team)."""

    role: Role
    team: str


class OidcSettings(BaseModel):
    """An OpenID Connect provider beside keys. `roles`: `{group: role}` or `{group: role@team}`, the first match counts.

    `role_claim` may lie deeper (`realm_access.roles`). `redirect_url`: the address of `/ui/oidc/back` as browsers reach
    it, where a proxy in front changes scheme or host.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    issuer: str
    client_id: str = Field(min_length=1)
    client_secret: SecretStr | None = None
    scopes: str = "openid email profile"
    name_claim: str = "email"
    role_claim: str = "groups"
    roles: dict[str, str] = Field(min_length=1)
    redirect_url: str | None = None

    @field_validator("issuer", "redirect_url")
    @classmethod
    def _over_tls(cls, value: str | None) -> str | None:
        parts = urlsplit(value or "https://none")
        if parts.hostname is None or (parts.scheme != "https" and parts.hostname not in _LOOPBACK):
            raise ValueError("expected an https:// address (http:// only to this machine)")
        return value

    @field_validator("scopes")
    @classmethod
    def _with_openid(cls, value: str) -> str:
        if "openid" not in value.split():
            raise ValueError("must name the scope `openid`")
        return value

    @field_validator("roles")
    @classmethod
    def _grants(cls, value: dict[str, str]) -> dict[str, str]:
        for grant in value.values():
            if _GRANT.match(grant) is None:
                raise ValueError(f"{grant!r} must be viewer, finance, operator or admin, or one of them with @team")
        return value

    def reach_of(self, claims: Mapping[str, Any]) -> Reach | None:
        """What these claims grant, None for nothing."""
        held = _at(claims, self.role_claim)
        for name, grant in self.roles.items():
            if name in held and (found := _GRANT.match(grant)) is not None:
                return Reach(cast("Role", found[1]), found[2] or "")
        return None

    def grants(self, role: str, team: str) -> bool:
        """Whether any group is given just this, still."""
        return (f"{role}@{team}" if team else role) in self.roles.values()


def _at(claims: Mapping[str, Any], path: str) -> tuple[str, ...]:
    """The texts at a claim: one, several, or none."""
    found: Any = claims.get(path)
    if found is None:
        found = claims
        for step in path.split("."):
            found = cast("Mapping[str, Any]", found).get(step) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return (found,)
    return tuple(item for item in cast("list[Any]", found) if isinstance(item, str)) if isinstance(found, list) else ()
