"""Arms about right and wrong: a stream without duplicates, one that drifts, one whose right answers change.

Knows how a stream is rearranged so that a property must show. Does not know how the cache decides.
"""

import random
from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from cache.bench.claims import Figure, Shown
from cache.bench.data import Row
from cache.bench.world import Asked, Plan, World

_WINDOW = 500
_NEVER = 0.0
# In the arm of stale answers: so much of the stream passes before they change, and answers live so much of it.
_BEFORE = 0.5
_LIFE = 0.1


def shuffled(rows: Sequence[Row], seed: int) -> list[Row]:
    mixed = list(rows)
    random.Random(seed).shuffle(mixed)  # noqa: S311 - an order
    return mixed


def served(asked: Sequence[Asked]) -> int:
    return sum(one.hit is not None for one in asked)


def wrong(asked: Sequence[Asked]) -> int:
    return sum(one.wrong for one in asked)


def rates(asked: Sequence[Asked], plan: Plan, name: str = "") -> dict[str, Figure]:
    """Hits, and wrong answers under both budgets."""
    prefix = f"{name}_" if name else ""
    return {
        f"{prefix}hits": Figure(count=served(asked), total=len(asked)),
        f"{prefix}wrong": Figure(count=wrong(asked), total=len(asked), most=plan.budget.max_error_rate),
        f"{prefix}wrong_of_hits": Figure(
            count=wrong(asked), total=served(asked), most=plan.budget.max_wrong_hit_rate if served(asked) else None
        ),
    }


async def zero(rows: Sequence[Row], plan: Plan) -> Shown:
    """One request of each class: there is nothing to gain, and every hit is a wrong answer."""
    alone = list({row.kind: row for row in reversed(rows)}.values())[::-1]
    async with World(plan, [row.text for row in alone]) as world:
        asked = [await world.ask(row.text, row.kind) for row in alone]
    wrong_all = Figure(count=wrong(asked), total=len(asked), most=plan.budget.max_error_rate)
    return Shown({"wrong": wrong_all}, {"requests": len(asked), "right_hits": served(asked) - wrong(asked)})


def phases(rows: Sequence[Row]) -> list[list[Row]]:
    """Dense with half of the classes; then only others, as few of each as there can be; then everything else."""
    classes = list(dict.fromkeys(row.kind for row in rows))
    early = set(classes[::2])
    first = [row for row in rows if row.kind in early]
    later = [row for row in rows if row.kind not in early]
    each = next(
        (most for most in range(1, len(rows) + 1) if len(_thinned(later, most)) >= min(len(later), len(rows) // 10)), 1
    )
    thin = _thinned(later, each)
    chosen = {row.text for row in thin}
    half = len(first) // 2
    rest = [row for row in rows if row.text not in chosen and row.text not in {row.text for row in first[:half]}]
    return [first[:half], thin, rest]


def _thinned(rows: Sequence[Row], most: int) -> list[Row]:
    seen: Counter[str] = Counter()
    kept: list[Row] = []
    for row in rows:
        seen[row.kind] += 1
        if seen[row.kind] <= most:
            kept.append(row)
    return kept


async def drift(rows: Sequence[Row], plan: Plan) -> Shown:
    """What was learned while most was asked again must not be believed where nearly nothing is."""
    parts = phases(rows)
    asked: list[Asked] = []
    figures: dict[str, Figure] = {}
    facts: dict[str, float | None] = {}
    known: set[str] = set()
    async with World(plan, [row.text for row in rows]) as world:
        for name, part in zip(("dense", "thin", "rest"), parts, strict=True):
            again = 0
            found: list[Asked] = []
            for row in part:
                again += row.kind in known
                known.add(row.kind)
                found.append(await world.ask(row.text, row.kind))
            asked += found
            facts[f"{name}_asked_before"] = round(again / max(1, len(part)), 4)
            figures |= rates(found, plan, name)
    facts["worst_window_wrong"] = _worst([one.wrong for one in asked])
    # The budget is over a window of the last thousands of requests: one phase alone may lie above, and is only shown.
    shown = {name: replace(figure, most=None) for name, figure in figures.items() if not name.endswith("of_hits")}
    return Shown({**rates(asked, plan), **shown}, facts)


def _worst(flags: Sequence[bool]) -> float:
    """The greatest share within any `_WINDOW` requests in a row."""
    window = min(_WINDOW, len(flags))
    sums = [sum(flags[start : start + window]) for start in range(0, len(flags) - window + 1, 50)]
    return max(sums, default=0) / max(1, window)


async def stale(rows: Sequence[Row], plan: Plan) -> Shown:
    """Half way, half of the classes get another right answer. An old one is wrong from then on.

    Audits alone find that late; after a time to live has passed, or a purge has returned, none may be served any more.
    """
    life = max(10.0, _LIFE * len(rows))
    figures: dict[str, Figure] = {}
    facts: dict[str, float | None] = {}
    for name, one, purged in (
        ("audits", plan, False),
        ("ttl", replace(plan, ttl=life), False),
        ("purge", plan, True),
    ):
        asked, at = await _changed(rows, one, purged=purged)
        old = [_is_old(one) for one in asked]
        after = old[at:]
        late = old[at + int(life) + 1 :] if name == "ttl" else after
        most = None if name == "audits" else _NEVER
        figures[f"{name}_stale"] = Figure(count=sum(late), total=len(late), most=most)
        figures[f"{name}_hits"] = Figure(count=served(asked[at:]), total=len(asked) - at)
        facts[f"{name}_last_stale_after"] = max((i + 1 for i, flag in enumerate(after) if flag), default=0)
    return Shown(figures, facts)


def _is_old(one: Asked) -> bool:
    return one.hit is not None and one.wrong and one.text.endswith(_OLD)


_OLD, _NEW = " as it was", " as it is"


async def _changed(rows: Sequence[Row], plan: Plan, *, purged: bool) -> tuple[list[Asked], int]:
    """The stream with the change, and the place of the first request after it."""
    at = int(_BEFORE * len(rows))
    changing = set(list(dict.fromkeys(row.kind for row in rows))[::2])
    asked: list[Asked] = []
    async with World(plan, [row.text for row in rows]) as world:
        for i, row in enumerate(rows):
            if i == at and purged:
                await world.cache.purge()
            suffix = "" if row.kind not in changing else _OLD if i < at else _NEW
            asked.append(await world.ask(row.text, row.kind + suffix))
    return asked, at
