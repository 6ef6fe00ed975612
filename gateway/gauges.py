"""What `/metrics` says of every worker on this machine, for the pages: read at most once a second.

Knows: Prometheus' text and which samples are asked for. Does not know: pages, who counts.
"""

import asyncio
from collections.abc import Callable, Mapping

from prometheus_client.parser import text_string_to_metric_families

_FRESH = 1.0

Samples = dict[str, list[tuple[Mapping[str, str], float]]]


class Gauges:
    """`exposition` answers the text (in a thread, it reads files); `monotonic` seconds."""

    def __init__(self, exposition: Callable[[], bytes], *, monotonic: Callable[[], float]) -> None:
        self._exposition = exposition
        self._monotonic = monotonic
        self._seen: tuple[Samples, float] | None = None
        self._reading = asyncio.Lock()

    async def samples(self) -> Samples:
        """By name, each with its labels and its value; of the last second."""
        async with self._reading:
            if self._seen is None or self._seen[1] + _FRESH <= self._monotonic():
                self._seen = (await asyncio.to_thread(self._read), self._monotonic())
            return self._seen[0]

    async def total(self, name: str) -> float:
        """The sum over all labels, 0 where nothing was counted."""
        return sum(value for _, value in (await self.samples()).get(name, ()))

    def _read(self) -> Samples:
        found: Samples = {}
        for family in text_string_to_metric_families(self._exposition().decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found
