"""What an engine process counts of the requests it serves: distributions of times, ends, tokens, the SLO.

Knows: outputs as they leave, the time of each step. Does not know: how they are shown, who asked, the clock.
The buckets are those of vLLM, so that its dashboards read ours.
"""

from collections import deque
from collections.abc import Hashable
from statistics import median

from msgspec import Struct

from engine.api import Figures, Spread
from engine.frames import Output

_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0),
)
_EACH = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0)
_WHOLE = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 120.0, 240.0, 960.0)
_STEPS = 101  # so many last steps have a median


class Objective(Struct, frozen=True, kw_only=True):
    """The SLO a request is held to: milliseconds to its first token, and for each one after it."""

    first_ms: float = 500.0
    each_ms: float = 50.0


class Meter:
    """One process's counters. What it remembers of a request ends with that request."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._last: dict[Hashable, float] = {}  # when a running request's last output left
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._median = 0.0
        self.figures = Figures(
            first=_spread(_FIRST),
            each=_spread(_EACH),
            gap=_spread(_EACH),
            queue=_spread(_WHOLE),
            whole=_spread(_WHOLE),
            slo_first=objective.first_ms / 1000,
            slo_each=objective.each_ms / 1000,
        )

    @property
    def step_p50(self) -> float:
        """Median seconds of the last steps, 0.0 before the first. As of the last look by `settle`."""
        return self._median

    def stepped(self, seconds: float) -> None:
        self._steps.append(seconds)

    def settle(self) -> None:
        """Work out what is too dear for every step."""
        self._median = median(self._steps) if self._steps else 0.0

    def saw(self, key: Hashable, output: Output, now: float) -> None:
        """An output left. Tokens of one output came at once: they share one gap."""
        if output.tokens:
            before = self._last.get(key)
            if before is not None:
                self.figures.gap.add(now - before)
            self._last[key] = now
        if output.finish is not None:
            self._last.pop(key, None)
            self._ended(output)

    def _ended(self, output: Output) -> None:
        figures, usage, timing = self.figures, output.usage, output.timing
        figures.finished[str(output.finish)] = figures.finished.get(str(output.finish), 0) + 1
        if usage is None or timing is None:
            return
        figures.prompt += usage.prompt
        figures.cached += usage.cached
        figures.generated += usage.completion
        figures.queue.add(timing.queue_ms / 1000)
        if not usage.completion:
            return
        figures.first.add(timing.ttft_ms / 1000)
        figures.whole.add((timing.ttft_ms + timing.tpot_ms * (usage.completion - 1)) / 1000)
        if usage.completion > 1:
            figures.each.add(timing.tpot_ms / 1000)
        if output.finish in ("stop", "length"):
            wanted = self._objective
            figures.met += timing.ttft_ms <= wanted.first_ms and timing.tpot_ms <= wanted.each_ms


def _spread(bounds: tuple[float, ...]) -> Spread:
    return Spread(bounds=bounds, counts=[0] * (len(bounds) + 1))
