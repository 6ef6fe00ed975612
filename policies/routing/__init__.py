"""In which order the places a request can go to are tried, and what each was thought to cost.

A strategy is a file of `policies.routing.strategies` with `UNIT`, `PARTS` and `costs(asked, places)`: for each place
its cost in that unit as one number per part; the lowest sum goes first, the written order decides between equals, and
between equal servers of one line which is less busy.
`considered` says first who is out of the question, and why. Pure: time, prices and the one random number come from the
caller. Does not know: how anything is sent, measured or found out.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple, cast

from msgspec import Struct

from policies.money import Price
from policies.routing import strategies
from policies.routing.draws import share

TOOLS, IMAGES, JSON_SCHEMA = 1, 2, 4
CAPABILITIES = {"tools": TOOLS, "images": IMAGES, "json_schema": JSON_SCHEMA}
FULL_FROM = 0.9  # of a cache of keys and values: from here on who comes may have to wait until somebody leaves
CREDENTIAL_REFUSED = "credential refused"  # why a place is shut that knows our key no more, or whose account is empty
NO_SUCH_MODEL = "no such model"  # and why one is that does not have what it was asked for
MENDABLE = (CREDENTIAL_REFUSED, NO_SUCH_MODEL)  # only somebody's doing ends them: they say nothing of how long
UNKNOWN = -1.0  # of a time that nobody has measured yet


class Asked(Struct, frozen=True, kw_only=True):
    """What of a request matters here. `prompt` and `output`: tokens expected; `needs`: bits of CAPABILITIES.

    `draw`: a random whole number of 64 bits. `session`: of a conversation that should stay where it is, as a number.
    `ttft_ms`, `tpot_ms`: the promise to keep. `now`: monotonic seconds. `matched`: tokens of this prompt that each
    place is believed to hold, by its number; empty where nobody looked.
    """

    prompt: int
    output: int
    now: float
    needs: int = 0
    draw: int = 0
    session: int | None = None
    ttft_ms: float = 1_000.0
    tpot_ms: float = 50.0
    matched: Sequence[int] = ()


class Place(Struct, kw_only=True):
    """One place a request can go to, as it stands now. Whoever watches it keeps this current.

    `context`: tokens its window holds, 0 where unknown. `lacks`: bits of CAPABILITIES. `shut_until` (monotonic seconds)
    with `shut`, a word: nothing is sent there before; `probing`: a single request is finding out whether that is over.
    `in_flight`, `waiting`, `running`: requests of ours, and what the place itself says; `kv_used`: how full its cache
    of keys and values is, of 1. `ttft_ms`, `tpot_ms`: medians, `slow_*`: ninetieth percentiles. `queued_tokens`: prompt
    tokens under way to it that have no answer yet; `prefill_rate`: tokens/s it reads; `slowdown_ms`: by which one more
    running sequence lengthens every token of the others. `number`: its place in the route; `beside`: how many equal
    servers that were written as one with it stand before it.
    """

    name: str
    number: int = 0
    beside: int = 0
    weight: float = 1.0
    price: Price | None = None
    context: int = 0
    lacks: int = 0
    shut_until: float = 0.0
    shut: str = ""
    probing: bool = False
    in_flight: int = 0
    waiting: float = 0.0
    running: float = 0.0
    kv_used: float = 0.0
    ttft_ms: float = UNKNOWN
    tpot_ms: float = UNKNOWN
    slow_ttft_ms: float = UNKNOWN
    slow_tpot_ms: float = UNKNOWN
    queued_tokens: int = 0
    prefill_rate: float = 10_000.0
    slowdown_ms: float = 0.1


Costs = Callable[[Asked, Sequence[Place]], list[tuple[float, ...]]]


class Strategy(NamedTuple):
    """`parts` name the numbers that `costs` gives for each place, all of them in `unit`."""

    name: str
    unit: str
    parts: tuple[str, ...]
    costs: Costs


class Ranking(Struct, frozen=True, kw_only=True):
    """`order`: places that may be tried, best first; `left_out`: the others, each with the reason.

    `costs` belong to `order`. `first`: why the first stands there although its cost does not say so (sticky, canary).
    """

    strategy: Strategy
    order: list[Place]
    costs: list[tuple[float, ...]]
    left_out: list[tuple[Place, str]]
    first: str = ""

    @property
    def weighed(self) -> bool:
        """Whether there was anything to choose."""
        return len(self.order) + len(self.left_out) > 1 or bool(self.first)

    def told(self, most: int = 16) -> dict[str, object]:
        """For people: every candidate with the parts of its cost, and why the others were left out."""
        unit, parts = self.strategy.unit, self.strategy.parts
        rows: list[dict[str, object]] = [
            {"target": place.name, "cost": _shown(sum(cost)), "parts": dict(zip(parts, map(_shown, cost), strict=True))}
            for place, cost in zip(self.order[:most], self.costs, strict=False)
        ]
        for row, place in zip(rows, self.order, strict=False):
            if not place.weight:
                row["stands_by"] = True
        left_out: list[dict[str, object]] = [
            {"target": place.name, "left_out": why} for place, why in self.left_out[:most]
        ]
        told: dict[str, object] = {"strategy": self.strategy.name, "unit": unit, "candidates": [*rows, *left_out]}
        return told | {"first": self.first} if self.first else told


def known() -> list[str]:
    return list(_in_folders(tuple(strategies.__path__)))


@cache
def _in_folders(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in iter_modules(folders)))


@cache
def strategy(name: str) -> Strategy:
    """Raises LookupError that lists the known strategies."""
    if name not in known():
        raise LookupError(f"Unknown routing strategy {name!r}. Known: {', '.join(known())}.")
    module = import_module(f"{strategies.__name__}.{name}")
    return Strategy(name, module.UNIT, module.PARTS, cast("Costs", module.costs))


def rank(chosen: Strategy, asked: Asked, places: Sequence[Place], *, equals: bool = False) -> Ranking:
    """Every place once: in the order to try them, or left out with a reason. `equals`: some are equal servers."""
    tokens = asked.prompt + asked.output
    left: list[Place] = []
    left_out: list[tuple[Place, str]] = []
    for place in places:
        if (place.shut_until or place.lacks or 0 < place.context < tokens) and (
            why := out_of_the_question(asked, place)
        ):
            left_out.append((place, why))
        else:
            left.append(place)
    if not left:  # nobody else can answer: those tell best what is to be mended, and whether it still is
        left = [place for place, why in left_out if why in MENDABLE]
        left_out = [(place, why) for place, why in left_out if why not in MENDABLE]
    costs = chosen.costs(asked, left)
    written: Sequence[int] = range(len(left))
    if equals:  # of servers that are one to whoever wrote them the least busy stands first
        written = sorted(written, key=[(place.number - place.beside, busy(place)) for place in left].__getitem__)
    by_cost = sorted(written, key=list(map(sum, costs)).__getitem__)  # equal ones stay as written
    if not all(place.weight for place in left):
        by_cost.sort(key=lambda at: not left[at].weight)  # who has no share stands by for the others
    return Ranking(
        strategy=chosen,
        order=[left[at] for at in by_cost],
        costs=[costs[at] for at in by_cost],
        left_out=left_out,
    )


def busy(place: Place) -> float:
    """Requests that are there: ours under way or what the place says runs, the larger of both, and what waits."""
    return max(place.in_flight, place.running) + place.waiting


def out_of_the_question(asked: Asked, place: Place) -> str:
    """Why a request cannot be sent there; empty where it can."""
    if place.context and asked.prompt + asked.output > place.context:
        return "context"
    if missing := place.lacks & asked.needs:
        return "lacks " + ", ".join(name for name, bit in CAPABILITIES.items() if bit & missing)
    if place.shut_until and (asked.now < place.shut_until or place.probing):
        return place.shut or "shut"
    return ""


def brought_forward(ranking: Ranking, place: Place, why: str) -> Ranking:
    """The same with one of its places in front."""
    at = next((number for number, other in enumerate(ranking.order) if other is place), None)
    if at is None:
        return ranking
    order, costs = list(ranking.order), list(ranking.costs)
    order.insert(0, order.pop(at))
    costs.insert(0, costs.pop(at))
    return Ranking(strategy=ranking.strategy, order=order, costs=costs, left_out=ranking.left_out, first=why)


def home_of(session: int, places: Sequence[Place]) -> Place:
    """Where a session lives: the highest of weighted draws (rendezvous hashing), so that a place that comes or goes
    moves only its own sessions. Where none of them has a weight all have the same.
    """
    even = not any(place.weight for place in places)
    return min(places, key=lambda place: share(session, place.name, 1.0 if even else place.weight))


def _shown(value: float) -> float:
    return float(f"{value:.4g}")
