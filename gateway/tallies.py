"""Sums kept in plain Python between two looks at them, poured into Prometheus' metrics now and then.

One `inc` of prometheus_client costs half a microsecond and more than one in multi-process mode, an `observe` up to
three; a request has a dozen of them. Noting a number at the end of a list costs a twentieth, and they are added up when
they are poured, which has to happen often enough that the lists stay short. Everything here belongs to one thread.
"""

from bisect import bisect_left
from collections import Counter as Counted
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from prometheus_client import Counter, Histogram

Add = Callable[[float], None]


class _Value(Protocol):
    """Where prometheus_client keeps one number, in memory or in a file."""

    def inc(self, amount: float) -> None: ...


class _Sum:
    """What has been added to a counter since the last pouring."""

    __slots__ = ("_amounts", "_child", "add")

    def __init__(self, child: Counter) -> None:
        self._child = child
        self._amounts: list[float] = []
        self.add = self._amounts.append

    def pour(self) -> None:
        if self._amounts:
            self._child.inc(sum(self._amounts))
            self._amounts.clear()


class _Spread:
    """What a histogram has seen since the last pouring."""

    __slots__ = ("_bucket_of", "_buckets", "_sum", "_values", "add")

    def __init__(self, child: Histogram) -> None:
        # the library adds one observation at a time only; its own parts take many (test_tallies.py watches them)
        self._buckets = cast("list[_Value]", child._buckets)  # pyright: ignore[reportPrivateUsage] - see above
        self._sum = cast("_Value", child._sum)  # pyright: ignore[reportPrivateUsage] - the same
        bounds = [float(bound) for bound in child._upper_bounds]  # pyright: ignore[reportPrivateUsage] - the same
        self._bucket_of = partial(bisect_left, bounds)
        self._values: list[float] = []
        self.add = self._values.append

    def pour(self) -> None:
        if not self._values:
            return
        for index, count in Counted(map(self._bucket_of, self._values)).items():
            self._buckets[index].inc(count)
        self._sum.inc(sum(self._values))
        self._values.clear()


class Tallies:
    """All sums of one process."""

    def __init__(self) -> None:
        self._parts: list[_Sum | _Spread] = []

    def sum(self, child: Counter) -> Add:
        """Add to this counter (a child with its labels set)."""
        part = _Sum(child)
        self._parts.append(part)
        return part.add

    def spread(self, child: Histogram) -> Add:
        """Observe with this histogram (a child with its labels set)."""
        part = _Spread(child)
        self._parts.append(part)
        return part.add

    def pour(self) -> None:
        for part in self._parts:
            part.pour()
