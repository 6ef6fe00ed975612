"""`python -m cache.bench.ceiling --stream FILE`: what the ranking would allow, and whether its risks are true.

Nothing is served: every request's answer is compared, so each has a label, and a cut through the risks can be chosen
after the fact. That says where hits are lost. What hindsight allows and the policy does not serve is the price of not
knowing; what hindsight does not allow either is beyond the features. Knows streams and the policy that learns. Does not
know what a judge costs, and flatters a little: kept keys are as many as they can be, since each request adds one.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from cache import priors
from cache.bench.figures import share
from cache.bench.memo import remembered
from cache.bench.nearest import Picked
from cache.bench.replay import Options, Replay
from cache.bench.run import Prepared, Setting, prepare
from policies.reuse import Budget, Explore, Neighbour, Outcome, Serve, Verdict, learned

# The budgets that figures are told for: wrong of all requests, wrong of hits.
BUDGETS = (Budget(max_error_rate=0.01, max_wrong_hit_rate=1.0), Budget(max_error_rate=0.01, max_wrong_hit_rate=0.05))
# Upper ends of the bands in which feared and found are compared.
BANDS = (0.02, 0.05, 0.1, 0.2, 0.5)
_SAFE = 0.05


class Seen(Struct, frozen=True):
    """The least risky answer of the request at `place`, its estimated `risk`, and whether it was `right`."""

    place: int
    risk: float
    right: bool


class Watching:
    """Implements `cache.bench.replay.Mind`: the policy decides and learns, and what it would serve is compared."""

    aliases = True

    def __init__(self, policy: learned.Policy) -> None:
        self._policy = policy
        self.state = policy.fresh()
        self.seen: list[Seen] = []
        self._place = -1

    def decide(self, text: str, neighbours: Sequence[Neighbour], budget: Budget) -> Verdict:
        verdict = self._policy.decide(self.state, text, neighbours, budget)
        if isinstance(verdict, Serve):
            return Explore(entry_id=verdict.entry_id, reason="watched", evidence=verdict.evidence)
        return verdict

    def count(self, verdict: Verdict, *, served: bool) -> None:
        self._place += 1
        self.state = self._policy.count(self.state, verdict, served=served)

    def learn(self, outcome: Outcome) -> None:
        item = outcome.evidence
        if item.best and item.veto is None:
            self.seen.append(Seen(self._place, item.risk, outcome.same))
        self.state = self._policy.learn(self.state, outcome)


def watched(made: Prepared, policy: learned.Policy) -> list[Seen]:
    """A stream from an empty cache on, as learned without serving. `made` with a table."""
    mind = Watching(policy)
    options = Options(budget=BUDGETS[0], seed=made.seed, reader=made.readings.read)
    nearest = Picked(made.table) if made.table is not None else None
    cache = Replay(mind, made.vectors.shape[1], options, nearest)
    for row, vector in zip(made.rows, made.vectors, strict=True):
        cache.ask(row, vector)
    made.readings.save()
    return mind.seen


def allowed(seen: Sequence[Seen], requests: int, budget: Budget) -> int:
    """The most hits under `budget` with one cut through the risks, chosen after the fact."""
    ordered = sorted(seen, key=lambda item: (item.risk, item.place))
    wrong = np.cumsum([not item.right for item in ordered])
    hits = np.arange(1, len(ordered) + 1)
    fits = (wrong <= budget.max_error_rate * requests) & (wrong <= budget.max_wrong_hit_rate * hits)
    found = np.flatnonzero(fits)
    return int(hits[found[-1]]) if len(found) else 0


def told(seen: Sequence[Seen], requests: int) -> dict[str, Any]:
    """Shares of all requests; wrong answers by band of risk: feared, found, and the 95 % interval of their share."""
    bands: list[dict[str, Any]] = []
    for low, high in zip((-1.0, *BANDS), BANDS, strict=False):
        held = [item for item in seen if low < item.risk <= high]
        wrong = sum(not item.right for item in held)
        feared = sum(item.risk for item in held)
        bands.append(
            {"to": high, "requests": len(held), "feared": round(feared, 2), "wrong": wrong}
            | share(wrong, len(held)).told("share")
        )
    quarter = max(1, -(-requests // 4))
    safe = [sum(item.risk <= _SAFE and item.place // quarter == at for item in seen) for at in range(4)]
    hits = {
        f"{budget.max_error_rate:g} {budget.max_wrong_hit_rate:g}": round(allowed(seen, requests, budget) / requests, 5)
        for budget in BUDGETS
    }
    return {"requests": requests, "hindsight": hits, "bands": bands, "safe_by_quarter": safe}


def main(arguments: Sequence[str] | None = None) -> int:
    """One line of JSON per order. Exit codes: 0, 2 usage; Unreadable and priors.Unfit are raised."""
    parser = argparse.ArgumentParser(prog="python -m cache.bench.ceiling", description="What the ranking would allow.")
    parser.add_argument("--stream", type=Path, required=True, help="labelled stream: text, class, tag by tabs")
    parser.add_argument("--orders", type=int, nargs="+", default=[0], help="seeds of the orders")
    parser.add_argument("--limit", type=int, help="read no more rows")
    parser.add_argument("--artefact", type=Path, help="the prior to begin with; default: the one that ships")
    parser.add_argument("--cache", type=Path, required=True, help="folder that keeps embeddings and readings")
    chosen = parser.parse_args(arguments)
    for seed in chosen.orders:
        setting = Setting(budget=BUDGETS[0], folder=chosen.cache, seed=seed, limit=chosen.limit)
        with remembered():
            made = prepare(chosen.stream, setting, often=True)
            prior = priors.read(chosen.artefact) if chosen.artefact else priors.shipped(made.encoder)
            seen = watched(made, learned.Policy(prior=prior))
        line = {"stream": made.name, "order": seed, **told(seen, len(made.rows))}
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
