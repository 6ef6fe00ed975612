"""What OpenAI's admin API is asked by: one page of buckets, groups and filters, in OpenAI's own parameters.

Knows those parameters, and which of them have a meaning here. Does not know: reports, SQL.
"""

import base64
import math
from typing import Literal

from msgspec import Struct

from gateway.batches.asking import BATCH_TAG
from gateway.errors import InvalidRequest
from gateway.routes.access import AnyRequest

Width = Literal["1m", "1h", "1d"]
_SECONDS: dict[Width, int] = {"1m": 60, "1h": 3_600, "1d": 86_400}
_DEFAULT: dict[Width, int] = {"1m": 60, "1h": 24, "1d": 7}
_MOST: dict[Width, int] = {"1m": 1_440, "1h": 168, "1d": 31}
_MOST_COST_BUCKETS = 180
_MOST_VALUES = 100
_LATEST = 10**12  # seconds since the epoch, far beyond any
BATCH = f"tag:{BATCH_TAG[0]}"
_FILTERS = {"project_ids": "project", "user_ids": "user", "api_key_ids": "key", "models": "model_used"}
_COST_FILTERS = {**_FILTERS, "line_items": "model_used"}
GROUPS = {
    "project_id": "project",
    "user_id": "user",
    "api_key_id": "key",
    "model": "model_used",
    "line_item": "model_used",
    "batch": BATCH,
}
# Those that `GROUPS` has nothing for are null in every result, but for `api_source`, which has a word for that.
_COST_GROUPS = ("project_id", "user_id", "line_item", "api_key_id", "api_source")
_USAGE_GROUPS = (
    *("project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "api_source", "size", "source"),
    *("context_level", "vector_store_id"),
)
_UNKNOWN = ("sizes", "sources", "context_levels", "vector_store_ids")  # filters by what is not kept


class Wanted(Struct, frozen=True, kw_only=True):
    """One page: the instants its buckets begin at, their width in seconds, and where the next page begins.

    `only`: dimension -> the values that count.
    """

    starts: list[int]
    seconds: int
    groups: list[str]
    next_page: str | None
    only: dict[str, frozenset[str]]


def wanted_page(request: AnyRequest, now: float, *, costs: bool) -> Wanted:
    """Read OpenAI's parameters. Buckets begin at whole widths in UTC. Raises InvalidRequest."""
    query = request.query_params
    width = _width(query.get("bucket_width"), costs=costs)
    seconds = _SECONDS[width]
    start = _whole(query.get("start_time"), "start_time")
    if start is None:
        raise InvalidRequest("`start_time` is needed: seconds since the epoch.", param="start_time")
    end = _whole(query.get("end_time"), "end_time")
    limit = _whole(query.get("limit"), "limit") or _DEFAULT[width]
    most = _MOST_COST_BUCKETS if costs else _MOST[width]
    if not 1 <= limit <= most:
        raise InvalidRequest(f"`limit` must lie between 1 and {most} for {width} buckets.", param="limit")
    first = _page_start(query.get("page"), seconds)
    first = start // seconds * seconds if first is None else first
    last = math.ceil(min(end if end is not None else math.inf, now + 1) / seconds) * seconds
    starts = range(first, last, seconds)  # never listed as a whole: it may be long
    more = len(starts) > limit
    return Wanted(
        starts=list(starts[:limit]),
        seconds=seconds,
        groups=_groups(_values(request, "group_by"), costs=costs),
        next_page=_page_name(starts[limit]) if more else None,
        only=_only(request, costs=costs),
    )


def _values(request: AnyRequest, name: str) -> list[str]:
    """A list as OpenAI's clients write it: `name=a&name=b`, `name[]=a`, or `name=a,b`."""
    query = request.query_params
    given = [*query.getall(name, []), *query.getall(f"{name}[]", [])]
    return [part.strip() for text in given for part in text.split(",") if part.strip()]


def _only(request: AnyRequest, *, costs: bool) -> dict[str, frozenset[str]]:
    """The filters that were given. Raises InvalidRequest."""
    found: dict[str, frozenset[str]] = {}
    for name, dimension in (_COST_FILTERS if costs else _FILTERS).items():
        values = _values(request, name)
        if len(values) > _MOST_VALUES:
            raise InvalidRequest(f"`{name}` takes at most {_MOST_VALUES} values.", param=name)
        if values:
            wanted = frozenset(values)
            found[dimension] = found.get(dimension, wanted) & wanted
    if (batch := _flag(request.query_params.get("batch"), "batch")) is not None:
        found[BATCH] = frozenset([BATCH_TAG[1] if batch else ""])
    for name in _UNKNOWN:
        if _values(request, name):
            raise InvalidRequest(f"`{name}` is a filter by what is not kept here.", param=name)
    return found


def _flag(text: str | None, param: str) -> bool | None:
    if text in (None, "true", "false"):
        return None if text is None else text == "true"
    raise InvalidRequest(f"`{param}` must be true or false.", param=param)


def _width(text: str | None, *, costs: bool) -> Width:
    known: tuple[Width, ...] = ("1d",) if costs else ("1m", "1h", "1d")
    for width in known:
        if text == width or (text is None and width == "1d"):
            return width
    raise InvalidRequest(f"`bucket_width` must be one of {', '.join(known)}.", param="bucket_width")


def _groups(names: list[str], *, costs: bool) -> list[str]:
    known = _COST_GROUPS if costs else _USAGE_GROUPS
    for name in names:
        if name not in known:
            raise InvalidRequest(f"`group_by` takes {', '.join(known)}.", param="group_by")
    return list(dict.fromkeys(names))


def _whole(text: str | None, param: str) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise InvalidRequest(f"`{param}` must be a whole number.", param=param)
    return int(text)


def _page_name(start: int) -> str:
    return "page_" + base64.urlsafe_b64encode(str(start).encode()).decode().rstrip("=")


def _page_start(text: str | None, seconds: int) -> int | None:
    if text is None:
        return None
    try:
        start = int(base64.urlsafe_b64decode(text.removeprefix("page_") + "=="))
    except ValueError:
        start = -1
    if not 0 <= start <= _LATEST or start % seconds:
        raise InvalidRequest("`page` must be the `next_page` of an earlier answer of the same width.", param="page")
    return start
