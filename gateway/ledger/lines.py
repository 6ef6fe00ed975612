"""What a month adds up to: one line per team, project, key, user, provider, model and meter, in whole nano-USD.

Knows: how groups of entries become lines, their order, the digest over them. Does not know: who seals a month.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.ledger.grouping import Group, Scope, grouped, late, own
from gateway.ledger.openings import UNCONFIRMED
from policies.meters import ADJUSTMENT, ROUNDING, Metered, in_nano

START = "0" * 64
Level = Literal["user", "key", "model"]

_COLUMNS = ("team", "project", "key_id", "user", "provider", "model")
_LEVELS: dict[Level, tuple[str, ...]] = {
    "user": _COLUMNS,
    "key": ("team", "project", "key_id", "provider", "model"),
    "model": ("team", "project", "provider", "model"),
}
_encode = msgspec.json.Encoder(order="deterministic").encode


_Sums = dict[tuple[str, str, str, str, str, str, str, str, str], list[int]]


class Line(Struct, frozen=True, order=True):
    """One sum, amounts in nano-USD. `kind` own or adjustment; `belongs`: the month its entries were admitted in.

    `quantity`: tokens or requests of the meter. `entries` counts every entry on one of its meters only.
    """

    kind: str
    belongs: str
    team: str
    project: str
    key_id: str
    user: str
    provider: str
    model: str
    meter: str
    quantity: int
    amount_nano: int
    estimated_nano: int
    entries: int


class Totals(Struct, frozen=True):
    """What all lines add up to; `adjustments_nano` is the part of `amount_nano` that belongs to earlier months."""

    entries: int
    amount_nano: int
    estimated_nano: int
    adjustments_nano: int


async def lines_of(connection: AsyncConnection, month: str, by: Level = "user") -> list[Line]:
    """Every line of a month, in order, as the entries have it now; columns finer than `by` are empty.

    Raises TooMany, ValueError for an unknown price.
    """
    sums: _Sums = {}
    await _collect(connection, "own", own(month), _LEVELS[by], sums)
    await _collect(connection, "adjustment", late(month), _LEVELS[by], sums)
    return await asyncio.to_thread(lambda: sorted(Line(*key, *_four(numbers)) for key, numbers in sums.items()))


async def _collect(connection: AsyncConnection, kind: str, scope: Scope, columns: tuple[str, ...], sums: _Sums) -> None:
    asked = (*columns, "belongs") if scope.late else columns
    groups = await grouped(connection, asked, scope)
    await asyncio.to_thread(_add_lines, kind, scope, asked, groups, sums)


def _add_lines(
    kind: str, scope: Scope, asked: tuple[str, ...], groups: dict[tuple[Any, ...], Group], sums: _Sums
) -> None:
    """Away from the event loop, as a month may have hundreds of thousands of groups."""
    for key, group in groups.items():
        said = dict(zip(asked, key, strict=False))
        belongs, source, entries = str(said.get("belongs", scope.month)), key[-1], group.entries
        parts = [Metered(meter, quantity, pico) for (meter, pico), quantity in sorted(group.parts.items())]
        for meter, quantity, amount in in_nano(parts, group.amount) or [(ROUNDING, 0, 0)]:
            name = ADJUSTMENT if source == "adjust" and meter == ROUNDING else meter
            line = sums.setdefault((kind, belongs, *_six(said), name), [0, 0, 0, 0])
            line[0] += quantity
            line[1] += amount
            line[2] += amount if source in UNCONFIRMED else 0
            line[3] += entries
            entries = 0


def _four(numbers: list[int]) -> tuple[int, int, int, int]:
    return numbers[0], numbers[1], numbers[2], numbers[3]


def _six(said: dict[str, Any]) -> tuple[str, str, str, str, str, str]:
    team, project, key, user, provider, model = (str(said.get(name, "")) for name in _COLUMNS)
    return team, project, key, user, provider, model


def totals(lines: Iterable[Line]) -> Totals:
    entries = amount = estimated = adjustments = 0
    for line in lines:
        entries += line.entries
        amount += line.amount_nano
        estimated += line.estimated_nano
        adjustments += line.amount_nano if line.kind == "adjustment" else 0
    return Totals(entries, amount, estimated, adjustments)


def attempts(lines: Iterable[Line]) -> Counter[str]:
    """How many attempts of the month itself each team has; a correction is none."""
    found: Counter[str] = Counter()
    for line in lines:
        if line.kind == "own":
            found[line.team] += 0 if line.meter == ADJUSTMENT else line.entries
    return found


def digest(previous: str, month: str, lines: Iterable[Line], facts: dict[str, Any]) -> str:
    """SHA-256 over everything a sealed month says, chained to the month that was closed before it."""
    found = hashlib.sha256(_encode([previous, month]))
    for line in lines:
        found.update(_encode(msgspec.structs.astuple(line)))
    found.update(_encode(facts))
    return found.hexdigest()
