"""A cache store that does not answer, seen from the control plane."""

from cache.store import StoreDown
from gateway.errors import Overloaded
from gateway.routes.access import as_gateway_error


def test_a_store_that_is_away_is_a_503_to_try_again_not_a_bug() -> None:
    """Purging while Redis restarts must neither look done nor look like our fault."""
    told = as_gateway_error(StoreDown("connection refused"))
    assert isinstance(told, Overloaded)
    assert told.http_status == 503
    assert ("retry-after", "5") in told.headers
