"""Whose answers a request may share: the tenant wall as the gateway builds it from keys."""

import pytest
from msgspec.structs import replace

from cache.types import Query
from gateway.asking import Asking
from gateway.auth import ADMIN
from gateway.call import Principal
from gateway.catalog import Route
from gateway.settings import CacheSettings
from tests.unit.ledger.rig import call

ROUTE = Route("m", (), told="up/m")


def scope(who: Principal, level: str) -> bytes:
    asking = Asking(CacheSettings.model_validate({"scope": level}), b"0123456789abcdef")
    asked = replace(call(who), body={"messages": [{"role": "user", "content": "hello"}]})
    found = asking.query(asked, ROUTE)
    assert isinstance(found, Query)
    return found.scope


@pytest.mark.parametrize("level", ["team", "project", "key"])
def test_a_team_that_is_called_admin_is_not_the_admin(level: str) -> None:
    """Anybody may call a team so; what the admin key asked and was told must not be found there."""
    team = Principal(key_id="k", team="admin", project="", role="app")
    assert scope(team, level) != scope(ADMIN, level)


def test_where_the_whole_organization_shares_the_admin_shares_too() -> None:
    """That is what the operator asked for."""
    assert scope(Principal(key_id="k", team="acme", project="", role="app"), "org") == scope(ADMIN, "org")
