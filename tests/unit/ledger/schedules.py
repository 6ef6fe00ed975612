"""Random schedules of faults over the real ledger, by the thousand: each from a seed, so a bad one can be replayed.

`python -m tests.unit.ledger.schedules --schedules 10000 --jobs 2` tells how far it has come as it goes.
Knows: how often what happens. Does not know: what must hold (`tests.unit.ledger.world`).
"""

import argparse
import logging
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import structlog

from gateway.ledger import leases
from tests.unit.ledger.world import LIMITS, World

_CHUNK = 25
_MOST_FAILURES = 20
_CORRECTED = 0.15  # of the steps


def wander(seed: int, steps: int = 60, *, corrections: bool = False, server: str | None = None) -> Counter[str]:
    """One random schedule, reproducible from its seed; answers what happened in it, by kind.

    `corrections`: some are made as well, by a chance of their own, so that the rest stays the same schedule.
    `server`: on PostgreSQL.
    """
    chance, corrected, world = random.Random(seed), random.Random(f"corrections {seed}"), World(server)

    def key() -> str:
        return chance.choice(("k0", "k1", "k2"))

    actions: list[tuple[float, Callable[[], None]]] = [
        (
            8,
            lambda: world.admit(
                chance.randrange(8),
                key(),
                chance.randint(1, 40),
                chance.randint(0, 40),
                chance.random() < 0.5,
                chance.random() < 0.1,
            ),
        ),
        (5, lambda: world.generate(chance.randrange(8), chance.randint(0, 10))),
        (4, lambda: world.finish(chance.randrange(8))),
        (3, lambda: world.cut(chance.randrange(8), chance.randint(0, 8), chance.choice(("cut", "cancelled")))),
        (4, lambda: world.ship(chance.randrange(8))),
        (2, lambda: world.ship_again(chance.randrange(100))),
        (2, lambda: world.tend(chance.randrange(8), chance.choice((0.3, 2.0, 30.0)), chance.random() < 0.3)),
        (2, lambda: world.kill(chance.randrange(8), chance.randint(0, 8), chance.random() < 0.5, chance.random())),
        (1, lambda: world.break_database(chance.random() < 0.4)),
        (1, lambda: world.lose_next_reply()),
        (1, lambda: world.roll_day()),
        (1, lambda: world.set_clock(chance.choice((-7_200.0, -30.0, 30.0, 7_200.0)))),
        (1, lambda: world.edit_limit(chance.choice(sorted(LIMITS)), chance.randint(0, 500))),
    ]
    weights, rules = zip(*actions, strict=True)
    try:
        for _ in range(steps):
            chance.choices(rules, weights)[0]()
            if corrections and corrected.random() < _CORRECTED:
                world.correct(corrected.randrange(100), corrected.randint(-10, 10))
            world.check()
        world.settle_down()
    finally:
        world.close()
    return world.happened


def _chunk(seeds: Sequence[int], steps: int, server: str | None) -> tuple[Counter[str], list[str]]:
    """What happened in these schedules, and what broke, by seed."""
    leases._RECLAIM_SECONDS = 0.0
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))  # all on purpose
    happened, broken = Counter[str](), list[str]()
    for seed in seeds:
        try:
            happened += wander(seed, steps, corrections=seed % 2 == 1, server=server)
            happened["schedules"] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the other schedules go on
            broken.append(f"seed {seed}: {error!r}")
    return happened, broken


def run(
    count: int, *, steps: int, jobs: int, first: int = 0, server: str | None = None
) -> tuple[Counter[str], list[str]]:
    """Schedules `first` to `first + count`, in `jobs` processes; tells its progress on standard error.

    Every other one has corrections. `server`: on that PostgreSQL.
    """
    happened, broken, began = Counter[str](), list[str](), time.monotonic()
    starts = range(first, first + count, _CHUNK)
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = [pool.submit(_chunk, range(at, min(at + _CHUNK, first + count)), steps, server) for at in starts]
        for done in as_completed(asked):
            more, wrong = done.result()
            happened += more
            broken += wrong
            told = f"{happened['schedules']} of {count} schedules, {len(broken)} broken"
            sys.stderr.write(f"\r{told}, {time.monotonic() - began:.0f} s")
            if len(broken) >= _MOST_FAILURES:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    sys.stderr.write("\n")
    return happened, broken


def main() -> int:
    asked = argparse.ArgumentParser(description="Random schedules of faults over the real ledger.")
    asked.add_argument("--schedules", type=int, default=10_000)
    asked.add_argument("--steps", type=int, default=60)
    asked.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked.add_argument("--first", type=int, default=0, help="the first seed")
    given = asked.parse_args()
    happened, broken = run(given.schedules, steps=given.steps, jobs=given.jobs, first=given.first)
    sys.stdout.write(f"{dict(happened)}\n" + "".join(f"{line}\n" for line in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
