"""Arms about what must never happen: another tenant's answer, an answer after it was taken back, a state that is lost.

Knows tenants, deletions and a kill in the middle. Does not know how the cache decides.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cache.bench.claims import Figure, Shown
from cache.bench.data import Row
from cache.bench.quality import rates, served
from cache.bench.world import Asked, Plan, World
from cache.store.sqlite import SqliteStore

# Team, project, system prompt: whatever differs in one of them must never meet.
TENANTS = ("one", "two", "one/a", "one/b", "onea", "one//be brief", "two/a/be brief", "three/a")
_TOGETHER = 8
_DELETED_EVERY = 10
_FEW = 400
_TAKEN = 20


async def tenants(rows: Sequence[Row], plan: Plan) -> Shown:
    """All ask the same texts, and each has answers of its own."""
    rows = rows[: max(_FEW, len(rows) // len(TENANTS))]
    leaked = 0
    found: list[Asked] = []
    async with World(plan, [row.text for row in rows]) as world:
        for i, row in enumerate(rows):
            for tenant in (*TENANTS[i % len(TENANTS) :], *TENANTS[: i % len(TENANTS)]):
                one = await world.ask(row.text, f"{tenant}: {row.kind}", tenant)
                leaked += one.text.partition(": ")[0] != tenant
                found.append(one)
        for row in rows:
            # Once more, when every scope is full and has learned: the very same texts.
            for tenant in TENANTS:
                one = await world.ask(row.text, f"{tenant}: {row.kind}", tenant)
                leaked += one.text.partition(": ")[0] != tenant
                found.append(one)
    by_meaning = sum(one.by_meaning for one in found)
    return Shown(
        {"leaked": Figure(count=leaked, total=len(found), most=0.0)},
        {"tenants": len(TENANTS), "hits": served(found), "by_meaning": by_meaning},
    )


async def delete(rows: Sequence[Row], plan: Plan) -> Shown:
    """While several ask at once, answers are taken back: by id, by a person's word, by purge.

    What was asked after that returned must never get one of them, by whatever wording.
    """
    gone: set[int] = set()
    late = total = hits = 0
    ways = {"evict": 0, "feedback": 0, "purge": 0}
    async with World(plan, [row.text for row in rows]) as world:
        recent: list[Asked] = []
        for start in range(0, len(rows), _TOGETHER):
            before = frozenset(gone)
            batch = [world.ask(row.text, row.kind) for row in rows[start : start + _TOGETHER]]
            again = [world.ask(one.query.text, one.text) for one in recent[-2:]]
            taking = _take_back(world, recent, start // _TOGETHER, ways)
            *found, taken = await asyncio.gather(*batch, *again, taking)
            assert not isinstance(taken, Asked)
            answers = [one for one in found if isinstance(one, Asked)]
            late += sum(one.hit is not None and one.serial in before for one in answers)
            hits += served(answers)
            total += len(answers)
            gone |= taken
            recent = [one for one in answers if one.serial not in gone]
    facts: dict[str, float | None] = {"taken_back": len(gone), "hits": hits, **ways}
    return Shown({"served_after_delete": Figure(count=late, total=total, most=0.0)}, facts)


async def _take_back(world: World, recent: Sequence[Asked], turn: int, ways: dict[str, int]) -> set[int]:
    """Takes one recent answer back, in one of three ways; its serials when that has returned."""
    target = next((one for one in reversed(recent) if one.hit is not None), None)
    if target is None or target.hit is None or turn % 2:
        return set()
    if turn % _DELETED_EVERY == 0:
        ways["purge"] += 1
        held = await world.cache.entries(1_000_000)
        await world.cache.purge()
        return {world.serial_of(entry) for entry in held}
    if turn % 4 == 0 and target.by_meaning:
        ways["feedback"] += 1
        await world.feedback(target, right=False)
    else:
        ways["evict"] += 1
        await world.cache.evict(target.hit.entry.id)
    return {target.serial}


async def crash(rows: Sequence[Row], plan: Plan) -> Shown:
    """Half way the process is killed: what is on the disk at that moment is all the next one has.

    Nothing is closed or flushed. What was taken back before stays so, and what was learned, once written (which happens
    by itself, a quarter of a second later), is still known.
    """
    half = len(rows) // 2
    texts = [row.text for row in rows]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uninterrupted = await _asked(World(plan, texts, _store(folder / "whole")), rows)
        async with World(plan, texts, _store(folder / "before")) as world:
            before = [await world.ask(row.text, row.kind) for row in rows[:half]]
            gone = await _evicted(world, [one for one in before if one.hit is not None][-_TAKEN:])
            kept, learned = await world.entries(), world.headroom.get("labels", 0.0)
            await world.written(learned)
            shutil.copytree(folder / "before", folder / "after")
        again = World(plan, texts, _store(folder / "after"))
        again.carry_on(world)
        async with again:
            kept_after = await again.entries()
            after, learned_after = await _going_on(again, rows[half:])
    back = sum(one.hit is not None and one.serial in gone for one in after)
    figures = {
        "entries_lost": Figure(count=len(kept - kept_after), total=len(kept), most=0.0),
        "labels_lost": Figure(count=round(max(0.0, learned - learned_after)), total=round(learned), most=0.0),
        "taken_back_and_served": Figure(count=back, total=len(after), most=0.0),
        **rates(after, plan, "after"),
        "after_hits_uninterrupted": Figure(count=served(uninterrupted[half:]), total=len(rows) - half),
    }
    return Shown(figures, {"labels_before": learned, "labels_after": learned_after, "taken_back": len(gone)})


async def _evicted(world: World, taken: Sequence[Asked]) -> set[int]:
    for one in taken:
        assert one.hit is not None
        await world.cache.evict(one.hit.entry.id)
    return {one.serial for one in taken}


async def _going_on(world: World, rows: Sequence[Row]) -> tuple[list[Asked], float]:
    """The rest, and how many labels the policy knew of when first something came near."""
    found: list[Asked] = []
    labels: float | None = None
    for row in rows:
        found.append(await world.ask(row.text, row.kind))
        if labels is None and world.headroom:
            labels = world.headroom.get("labels", 0.0)
    return found, labels or 0.0


def _store(folder: Path) -> SqliteStore:
    folder.mkdir(exist_ok=True)
    clock = _Later()
    return SqliteStore(folder / "cache.sqlite", now=clock.now)


class _Later:
    """A wall clock for the store alone, which reads it for the order of eviction only: this arm evicts nothing."""

    def now(self) -> float:
        return 1_790_000_000.0


async def _asked(world: World, rows: Sequence[Row]) -> list[Asked]:
    async with world:
        return [await world.ask(row.text, row.kind) for row in rows]
