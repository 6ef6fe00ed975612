"""Which requests somebody looks at, read from an address and written back into one.

Knows: filters, days in a time zone. Does not know: SQL, pages, who may see what.

Fields that the form always sends mean nothing when empty; of every other dimension an empty value means requests that
have none, as on the spend page. Those of no team are asked for as `NO_TEAM`, which is nobody's name.
"""

from collections.abc import Mapping
from datetime import date, timedelta
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from msgspec import Struct

from gateway.db.listing import EVER
from gateway.errors import InvalidRequest
from gateway.routes.spend_view import day_of, is_dimension, midnight, today

FIELDS = ("model", "team", "key", "cache")
NO_TEAM = "(none)"
_LONGEST = 200


class Chosen(Struct, frozen=True, kw_only=True):
    """`asked`: name -> value as in the address. `first` and `last` are dates in `zone`, both included."""

    asked: dict[str, str]
    failed: bool
    first: date | None
    last: date | None
    zone: str

    @property
    def where(self) -> dict[str, str]:
        """What rows must have."""
        found = {name: value for name, value in self.asked.items() if value or name not in FIELDS}
        return {**found, "team": ""} if found.get("team") == NO_TEAM else found

    def span(self) -> tuple[float, float]:
        """`[start, end)` in seconds since the epoch; all of time where no day is named."""
        zone = ZoneInfo(self.zone)
        start = EVER[0] if self.first is None else midnight(self.first, zone)
        return start, EVER[1] if self.last is None else midnight(self.last + timedelta(days=1), zone)

    def address(self, *, without: str = "", **more: str) -> str:
        """The query string of this view, with one filter taken away or something added."""
        kept = {name: value for name, value in self.asked.items() if value or name not in FIELDS}
        dated = {"from": self.first, "to": self.last}
        days = {name: day.isoformat() for name, day in dated.items() if day is not None}
        zone = {"zone": self.zone} if days and self.zone != "UTC" else {}
        failed = {"failed": "true"} if self.failed else {}
        whole = {**kept, **days, **zone, **failed, **more}
        return urlencode({name: value for name, value in whole.items() if name != without})


def read_chosen(asked: Mapping[str, str], now: float, *, failed: bool) -> Chosen:
    """Raises InvalidRequest that names what is wrong with the address."""
    zone = asked.get("zone") or "UTC"
    today(zone, now)  # raises for what is no zone
    first, last = day_of(asked.get("from"), None, "from"), day_of(asked.get("to"), None, "to")
    if first is not None and last is not None and first > last:
        raise InvalidRequest("`from` must not lie after `to`.", param="from")
    more = [name for name in asked if is_dimension(name) and name not in FIELDS]
    values = {name: asked.get(name, "")[:_LONGEST] for name in (*FIELDS, *more)}
    return Chosen(asked=values, failed=failed, first=first, last=last, zone=zone)


def listed(where: Mapping[str, str], days: tuple[date, date], zone: str) -> str:
    """The query string of the requests behind a number of the spend page."""
    named = {name: value or (NO_TEAM if name == "team" else "") for name, value in where.items()}
    return Chosen(asked=named, failed=False, first=days[0], last=days[1], zone=zone).address()
