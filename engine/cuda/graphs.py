"""Steps that are recorded once and replayed: a decode step is hundreds of launches, and launching is what it waits for.

Knows: batch sizes that are recorded, how to record. Does not know: models, plans.

A graph is recorded when its size is first wanted: recording all of them takes longer than loading the model. Sizes in
between run as the next larger one, whose left-over rows write to block 0.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol, TypeVar

import torch

BUCKETS = (1, 2, 4, 8, *range(16, 257, 8))
_WARM_UPS = 2  # kernels are compiled and libraries choose theirs before anything is recorded

Result = TypeVar("Result")


class Recorder(Protocol):
    """Turns a step that reads and writes fixed places into one that is cheap to repeat."""

    def __call__(self, body: Callable[[], Result]) -> Callable[[], Result]: ...


def unrecorded(body: Callable[[], Result]) -> Callable[[], Result]:
    """Every step anew: where there are no graphs."""
    return body


class CudaRecorder:
    """Records CUDA graphs that share one pool of memory: only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, body: Callable[[], Result]) -> Callable[[], Result]:
        """What a replayed step gives lies in the same place each time. Raises RuntimeError when recording fails."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                body()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = body()

        def replay() -> Result:
            graph.replay()
            return result

        return replay


def bucket(sequences: int, most: int) -> int | None:
    """The smallest recorded size for so many; None when there is none up to `most`."""
    at = bisect_left(BUCKETS, sequences)
    return BUCKETS[at] if at < len(BUCKETS) and BUCKETS[at] <= most else None
