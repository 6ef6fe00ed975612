"""In which order the candidates of a route are tried: one file per strategy, its name is the strategy's.

A strategy is a module with `rank(prices) -> order`. Pure. Does not know: health, failures, requests.
"""

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import cast

from policies.money import Price


def known() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__))


def rank(strategy: str, prices: Sequence[Price | None]) -> list[int]:
    """Every index of `prices` once, best first; None stands for a candidate without a price.

    Raises LookupError that lists the known strategies.
    """
    return _load(strategy)(prices)


@cache
def _load(strategy: str) -> Callable[[Sequence[Price | None]], list[int]]:
    if strategy not in known():
        raise LookupError(f"Unknown routing strategy {strategy!r}. Known: {', '.join(known())}.")
    module = import_module(f"{__name__}.{strategy}")
    return cast("Callable[[Sequence[Price | None]], list[int]]", module.rank)
