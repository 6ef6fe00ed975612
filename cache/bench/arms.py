"""`bench cache --arm NAME`: what a cache must withstand, each a run of the real cache in a world whose truth is known.

    zero      nobody asks anything twice: whatever is served is wrong
    drift     topics come, leave and thin out
    stale     the right answers change: with audits only, with a time to live, with a purge
    poison    hostile near-collisions, suffixes and prefixes, planted wrong answers
    liars     a tenth of those who are served lie about it
    tenants   many tenants ask the same
    delete    answers are taken back while others ask
    crash     the process is killed and started again

Knows which arms there are, what each must show, and how that is told. The arms are in `quality`, `hostile`, `lasting`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from cache import priors
from cache.bench import hostile, lasting, quality
from cache.bench.claims import Shown
from cache.bench.data import Row, read_stream
from cache.bench.minds import policy
from cache.bench.run import Setting
from cache.bench.vectors import Embedder
from cache.bench.world import Plan
from cache.training.frames import pairs

Told = dict[str, Any]
Arm = Callable[[Sequence[Row], Plan], Awaitable[Shown]]
ARMS: dict[str, Arm] = {
    "zero": quality.zero,
    "drift": quality.drift,
    "stale": quality.stale,
    "poison": hostile.poison,
    "liars": hostile.liars,
    "tenants": lasting.tenants,
    "delete": lasting.delete,
    "crash": lasting.crash,
}
# Streams are cut: an arm shows a property, it is no measurement of hit rates.
MOST = 3_000


class Ran(Struct, frozen=True):
    """One arm with its name and what it ran on."""

    name: str
    stream: str
    shown: Shown

    def told(self) -> Told:
        return {"arm": self.name, "stream": self.stream, **self.shown.told()}


def own_rows() -> list[Row]:
    """The project's own test frames as a stream: a text, its paraphrase (same class) and its near miss (another)."""
    rows: dict[str, Row] = {}
    for pair in pairs("test"):
        rows.setdefault(pair.a, Row(pair.a, pair.a, pair.tag))
        rows.setdefault(pair.b, Row(pair.b, pair.a if pair.same else pair.b, pair.tag))
    return list(rows.values())


def run_arm(name: str, stream: Path | None, setting: Setting) -> Ran:
    """Raises LookupError naming the arms, Unreadable, priors.Unfit or weights.Unusable."""
    if name not in ARMS:
        raise LookupError(f"Unknown arm {name!r}. Known: {', '.join(ARMS)}, all.")
    rows = (
        read_stream(stream, seed=setting.seed, limit=setting.limit or MOST).rows
        if stream
        else quality.shuffled(own_rows(), setting.seed)[: setting.limit or MOST]
    )
    embedder = Embedder(setting.folder)
    prior = priors.read(setting.artefact) if setting.artefact else priors.shipped(embedder.digest)
    plan = Plan(
        policy=policy(setting.policy, prior),
        embed=embedder.embed,
        budget=setting.budget,
        seed=setting.seed,
        flip=setting.flip,
    )
    return Ran(name, stream.name if stream else "own", asyncio.run(_run(name, rows, plan)))


async def _run(name: str, rows: Sequence[Row], plan: Plan) -> Shown:
    return await ARMS[name](rows, plan)
