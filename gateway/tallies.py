"""Sums kept in plain Python between two looks at them, poured into Prometheus' metrics now and then.

One `inc` of prometheus_client costs half a microsecond and more than one in multi-process mode, an `observe` up to
three; a request has a dozen of them. Adding to plain numbers costs a tenth. Everything here belongs to one thread.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol, cast

from prometheus_client import Counter, Histogram

Add = Callable[[float], None]


class _Value(Protocol):
    """Where prometheus_client keeps one number, in memory or in a file."""

    def inc(self, amount: float) -> None: ...


class _Sum:
    """What has been added to a counter since the last pouring."""

    __slots__ = ("_child", "_value")

    def __init__(self, child: Counter) -> None:
        self._child = child
        self._value = 0.0

    def add(self, amount: float) -> None:
        self._value += amount

    def pour(self) -> None:
        if self._value:
            self._child.inc(self._value)
            self._value = 0.0


class _Spread:
    """What a histogram has seen since the last pouring."""

    __slots__ = ("_bounds", "_buckets", "_counts", "_sum", "_total")

    def __init__(self, child: Histogram) -> None:
        # the library adds one observation at a time only; its own parts take many (test_tallies.py watches them)
        self._buckets = cast("list[_Value]", child._buckets)  # pyright: ignore[reportPrivateUsage] - see above
        self._sum = cast("_Value", child._sum)  # pyright: ignore[reportPrivateUsage] - the same
        self._bounds = [float(bound) for bound in child._upper_bounds]  # pyright: ignore[reportPrivateUsage] - the same
        self._counts = [0] * len(self._bounds)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def pour(self) -> None:
        if not any(self._counts):
            return
        for index, count in enumerate(self._counts):
            if count:
                self._buckets[index].inc(count)
                self._counts[index] = 0
        self._sum.inc(self._total)
        self._total = 0.0


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
