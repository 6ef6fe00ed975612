"""The lowest price first, at the usual blend of three prompt tokens to one of output; ties keep the written order.

A candidate without a price comes last: it can only be refused. Does not know: quality, load, the request's length.
"""

from collections.abc import Sequence

from policies.money import Price

_PROMPT_SHARE = 3


def rank(prices: Sequence[Price | None]) -> list[int]:
    return sorted(range(len(prices)), key=lambda index: _cost(prices[index]))


def _cost(price: Price | None) -> float:
    """Pico-USD of four tokens."""
    if price is None:
        return float("inf")
    return _PROMPT_SHARE * price.input + price.output
