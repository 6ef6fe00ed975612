"""How requests add up: which numbers are summed, under which keys, and which percentile a histogram tells.

Knows: a request's row as a tuple in the order of its columns. Does not know: SQL, who writes or reads sums.
Pure: the same code counts a batch when it is written, proves the stored sums and makes them anew.

    facet ""            every request, by hour and by day, under all dimensions but the label
    facet "first"       time to the first piece of answered requests, by hour and by day, under team and model
    facet "user"        by day, under team, project, key, model and the user, for requests that name one
    facet "tag:<name>"  the same, by the tag's value
    facet "any:<facet>" what all users (all values of a tag) have together, by day, under team, project, key and model
    facet "owner"       every request, by day, under team, project, key and model: what most pages ask for

Hours are counted with every request. Days are made of them once they are over, up to the day that `DAYS_TO` names;
those by user, by tag and by owner grow with every hour that is over, up to the hour that `LABELS_TO` names. What
arrives for such a day or hour afterwards is counted there at once. Eight days that are made become one sum
(`usage_days8`), and eight of those another (`usage_days64`), so that a year is read in some twenty pieces.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Any, NamedTuple, cast
from zoneinfo import ZoneInfo

import msgspec
from sqlalchemy import Table

from gateway.db.models import RequestRow, UsageDay
from policies.budget import period

HOUR, DAY = 3_600, 86_400
FINE_FROM = 64.0
EDGES: tuple[float, ...] = (1, 2, 4, 8, 16, 32, *(round(FINE_FROM * 2 ** (k / 2), 1) for k in range(25)))
"""Milliseconds between the buckets of durations: bucket i holds EDGES[i-1] <= ms < EDGES[i], the last all above.

Neighbours differ by a factor of 2 up to 64 ms and of the square root of 2 from there to 262 s, which is how far a
percentile can be off at most: a percentile is placed inside its bucket as if durations were spread evenly in it.
"""
FIRST, USER, TAG = "first", "user", "tag:"
OWNER, ANY = "owner", "any:"
ROWS_FROM, HOURS_FROM, DAYS_TO, NAMES_GONE = "rows_from", "hours_from", "days_to", "names_gone"
"""Names of settings: the instants from which on rows and sums of hours are kept, older ones were pruned; the first day
(days since the epoch) whose sums are not made yet; how often combinations were pruned that no sum has any more."""
LABELS_TO, COSTS_FROM = "labels_to", "costs_from"
"""The first hour (since the epoch) that is not in the sums by owner, user and tag; the first day that knows its `COSTS`
by user and tag: it was made from rows."""
BLOCKS_TO, BLOCKS_FROM, LATE = "blocks_to", "blocks_from", "late"
"""The first day that is in no sum of eight; the instant from which on days in them are kept; how often something was
added to a day that was made."""
MISSING, GATHER, GATHERED_TO = "usage_sums", "days", "gathered_to"
"""There after an upgrade until what the version before did not add up is there; its value when that is only what days
say by owner and of all users and values; the first day that this was not done for yet."""
MEASURES = (
    "requests",
    "hits",
    "errors",
    "audits",
    "estimated",
    "prompt",
    "cached",
    "cache_write",
    "completion",
    "reasoning",
    "cost_nano",
    "estimated_nano",
    "audit_nano",
    "discount_nano",
    "saved_nano",
    "corrected_nano",
    "routed_nano",
    "embed_nano",
)
BUCKETS = tuple(f"h{i:02}" for i in range(len(EDGES) + 1))
SUMMED = (*MEASURES, *BUCKETS)
COSTS = tuple(f"c{i:02}" for i in range(24))
HOURS = "hours"
HITS = ("exact", "semantic", "shared")
_N = len(MEASURES)
_CORRECTED = MEASURES.index("corrected_nano")
_COST_NANO = MEASURES.index("cost_nano")
_ZEROS = [0] * (len(SUMMED) + 1)
_DAY_ZEROS = [0] * (len(SUMMED) + len(COSTS) + 1)
_C = len(SUMMED)
_NO_LABEL = ("",)
_NOT_KEPT = ("", "", "", "", "", 0)  # provider to status
_encode = msgspec.json.Encoder().encode
_tags = msgspec.json.Decoder(dict[str, str]).decode


class Who(NamedTuple):
    """The dimensions of a sum; empty where it is not kept by one."""

    team: str
    project: str
    key_id: str
    model: str
    provider: str = ""
    model_used: str = ""
    operation: str = ""
    source: str = ""
    cache: str = ""
    status: int = 0
    label: str = ""


Row = tuple[Any, ...]
Key = tuple[str, int, tuple[Any, ...]]
"""Facet, whole hours or days since the epoch, and the dimensions as `Who` names them."""
Sums = dict[Key, list[int]]
"""The numbers of `SUMMED` by key, of days `COSTS` too, and last a bit for each hour of the day that they are of."""

COLUMNS = tuple(column.name for column in cast("Table", RequestRow.__table__).columns)
_AT = {name: place for place, name in enumerate(COLUMNS)}
_SUMS_COLUMNS = tuple(column.name for column in cast("Table", UsageDay.__table__).columns)
assert ("facet", "starts", "who", *SUMMED, *COSTS, HOURS) == _SUMS_COLUMNS, "tables follow MEASURES, EDGES"
_ID, _TIME, _USER, _SOURCE, _CACHE, _TAGS = (_AT[name] for name in ("id", "at", "user", "source", "cache", "tags"))
_STATUS, _PROMPT, _COST, _COST_STATUS = (_AT[name] for name in ("status", "prompt", "cost_nano", "cost_status"))
_SAVED, _DISCOUNT = (_AT[name] for name in ("saved_nano", "discount_nano"))
_ROUTED, _EMBED = (_AT[name] for name in ("routed_nano", "embed_nano"))
_FIRST_MS, _TOTAL_MS = (_AT[name] for name in ("ttft_ms", "total_ms"))
_who = itemgetter(*(_AT[name] for name in Who._fields[:-1]))
_owner = itemgetter(*(_AT[name] for name in ("team", "project", "key_id", "model")))
_asked = itemgetter(_AT["team"], _AT["model"])
assert COLUMNS[_PROMPT : _PROMPT + 5] == MEASURES[5:10], "the five counts of tokens stand together"


def by_hour(rows: Iterable[Row], corrected: Mapping[str, int] | None = None) -> Sums:
    """What `rows` add to the sums of hours. `corrected`: what was added to their savings since, by request."""
    sums: Sums = {}
    for row in rows:
        hour = int(row[_TIME]) // HOUR
        own = row[_CACHE] == "audit"  # the gateway's own: nobody's requests, and nobody waited for them
        held = _add(sums, ("", hour, _who(row) + _NO_LABEL), row, own)
        if corrected and row[_ID] in corrected:
            held[_CORRECTED] += corrected[row[_ID]]
        if row[_FIRST_MS] is not None and not own and row[_STATUS] < 400:
            team, model = _asked(row)
            key = (FIRST, hour, (team, "", "", model, "", "", "", "", "", 0, ""))
            timed = sums.get(key)
            if timed is None:
                timed = sums[key] = _ZEROS.copy()
            timed[_N + bisect_right(EDGES, row[_FIRST_MS])] += 1
            timed[-1] |= 1 << hour % 24
    return sums


def by_label(rows: Iterable[Row], corrected: Mapping[str, int] | None = None) -> Sums:
    """What `rows` add to the sums of days by user and by tag."""
    sums: Sums = {}
    for row in rows:
        hour, own = int(row[_TIME]) // HOUR, row[_CACHE] == "audit"
        for facet, label in _labels(row):
            key = (facet, hour // 24, (*_owner(row), *_NOT_KEPT, label))
            if key not in sums:
                sums[key] = _DAY_ZEROS.copy()
            held = _add(sums, key, row, own)
            held[_C + hour % 24] += row[_COST]
            if corrected and row[_ID] in corrected:
                held[_CORRECTED] += corrected[row[_ID]]
    return sums


def by_day(hours: Sums) -> Sums:
    """Sums of hours, added up by day."""
    days: Sums = {}
    for (facet, hour, who), sums in hours.items():
        merge(days, {(facet, hour // 24, who): _of_a_day(hour, sums)})
    return days


def made(hours: Sums, labels: Sums, days_to: int, labels_to: int) -> Sums:
    """All that hours and labels add to days, as far as those are made. `labels`: of hours before `labels_to` only."""
    days = by_day({key: sums for key, sums in hours.items() if key[1] < days_to * 24})
    for (facet, hour, who), sums in hours.items():
        if facet == "" and hour < labels_to:
            merge(days, {(OWNER, hour // 24, (*who[:4], *_NOT_KEPT, "")): _of_a_day(hour, sums)})
    for (facet, day, who), sums in labels.items():
        merge(days, {(ANY + facet, day, (*who[:-1], "")): sums})
    return days | labels


def owned(facet: str) -> bool:
    """Whether its sums follow from the other sums of the same day."""
    return facet == OWNER or facet.startswith(ANY)


def blocks(days: Sums, size: int, to: int) -> Sums:
    """What sums of days add to those of `size` days, of which those are made that end at or before the day `to`."""
    found: Sums = {}
    for (facet, day, who), sums in days.items():
        if (day // size + 1) * size <= to:
            merge(found, {(facet, day // size, who): sums})
    return found


def _of_a_day(hour: int, sums: list[int]) -> list[int]:
    """The same numbers as of a day."""
    costs = [0] * len(COSTS)
    costs[hour % 24] = sums[_COST_NANO]
    return [*sums[:-1], *costs, sums[-1]]


def correction(row: Row, amount: int) -> tuple[Sums, Sums]:
    """What `amount` more of savings adds, of a request that was counted before: to hours, and by label to days."""
    hour = int(row[_TIME]) // HOUR
    sums = _ZEROS.copy()
    sums[_CORRECTED] = amount
    sums[-1] = 1 << hour % 24
    whole = _of_a_day(hour, sums)
    labels: Sums = {(facet, hour // 24, (*_owner(row), *_NOT_KEPT, label)): whole for facet, label in _labels(row)}
    return {("", hour, _who(row) + _NO_LABEL): sums}, labels


def merge(into: Sums, more: Sums) -> None:
    """Add `more` to `into`."""
    for key, sums in more.items():
        held = into.get(key)
        if held is not None:
            hours = held[-1] | sums[-1]
            sums = [a + b for a, b in zip(held, sums, strict=True)]
            sums[-1] = hours
        into[key] = sums


def _labels(row: Row) -> list[tuple[str, str]]:
    """Facet and label of the user and of each tag of a request."""
    found = [(USER, row[_USER])] if row[_USER] else []
    if row[_TAGS]:
        found += [(TAG + name, value) for name, value in _tags(row[_TAGS]).items() if value]
    return found


def _add(sums: Sums, key: Key, row: Row, own: bool) -> list[int]:
    """Count one request. Written out: this is done for every request of a busy gateway."""
    held = sums.get(key)
    if held is None:
        held = sums[key] = _ZEROS.copy()
    held[-1] |= 1 << int(row[_TIME]) // HOUR % 24
    cost = row[_COST]
    if own:
        held[3] += 1
        held[12] += cost
    else:
        held[0] += 1
        held[2] += row[_STATUS] >= 400
        held[_N + bisect_right(EDGES, row[_TOTAL_MS])] += 1
    held[1] += row[_SOURCE] in HITS
    prompt, cached, cache_write, completion, reasoning = row[_PROMPT : _PROMPT + 5]
    held[5] += prompt
    held[6] += cached
    held[7] += cache_write
    held[8] += completion
    held[9] += reasoning
    held[10] += cost
    if row[_COST_STATUS] == "estimated":
        held[4] += not own
        held[11] += cost
    held[13] += row[_DISCOUNT]
    held[14] += row[_SAVED]
    held[16] += row[_ROUTED]
    held[17] += row[_EMBED]
    return held


def who_id(who: tuple[Any, ...], salt: int = 0) -> int:
    """A positive 63-bit name of a combination. `salt`: the next try, should two combinations share one."""
    return int.from_bytes(blake2b(_encode((*who, salt)), digest_size=8).digest(), "big") >> 1


def percentile(counts: Sequence[int], share: int) -> float | None:
    """The duration that `share` percent did not exceed, in ms, read off a histogram; None of nothing.

    It lies in the bucket that holds the request of that rank, so it is off by less than the bucket's width (`EDGES`);
    above the last edge only that edge is known. A bucket of less than none (blocks lack for some minutes what a process
    of the version before counted late in their days) is one of none.
    """
    counts = [max(0, count) for count in counts]
    members = sum(counts)
    if not members:
        return None
    rank, place, before = -(-members * share // 100), 0, 0
    while before + counts[place] < rank:
        before += counts[place]
        place += 1
    if place == len(EDGES):
        return EDGES[-1]
    lower = EDGES[place - 1] if place else 0.0
    return round(lower + (EDGES[place] - lower) * (rank - before) / counts[place], 3)


def day_starts(zone: str, start: float, end: float) -> list[float]:
    """The first instants of the local days that `[start, end)` touches, and the end of the last: for `Queries.series`.

    `zone`: an IANA name; raises ZoneInfoNotFoundError for any other.
    """
    found = [float(period("day", ZoneInfo(zone), start).start)]
    while found[-1] < end:
        found.append(float(period("day", ZoneInfo(zone), found[-1]).end))
    return found
