"""How long an answer a budget can still pay for, and which entries of the configuration are limits at all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gateway.estimate import Bound, within
from gateway.settings import BudgetSettings
from policies.money import Price, bound_nano

RATES = st.integers(0, 10_000_000)


@given(
    prompt=st.integers(1, 100_000),
    injected=st.integers(1, 8_192),
    choices=st.integers(1, 4),
    headroom=st.integers(0, 10**9),
    rates=st.tuples(RATES, RATES),
)
def test_the_longest_answer_that_fits_and_never_a_longer_one(
    prompt: int, injected: int, choices: int, headroom: int, rates: tuple[int, int]
) -> None:
    """One token too many would overspend the budget, one too few would waste it."""
    price = Price(id="p", input=rates[0], output=rates[1], cached_input=0, cache_write=0)
    limits = Bound(input=prompt, output=injected * choices, injected=injected)
    found = within(limits, price, headroom)

    def cost(tokens: int) -> int:
        return bound_nano(prompt, tokens * choices, price)

    if found is None:
        assert injected <= 16 or cost(16) > headroom
        return
    assert found.injected is not None
    assert 16 <= found.injected < injected
    assert found.output == found.injected * choices
    assert cost(found.injected) <= headroom
    assert found.injected == injected - 1 or cost(found.injected + 1) > headroom


def test_a_length_the_client_named_is_never_changed() -> None:
    """Its answer would be cut in the middle without having asked for that."""
    price = Price(id="p", input=1, output=1_000_000, cached_input=0, cache_write=0)
    assert within(Bound(input=10, output=1_000), price, 100_000) is None


@pytest.mark.parametrize(
    "given",
    [
        {"scope": "org"},
        {"scope": "org", "rpm": -1},
        {"scope": "org", "limit_usd": "1", "on_exhausted": "degrade:"},
        {"scope": "org", "limit_usd": "1", "on_exhausted": "sulk"},
        {"scope": "org", "limit_usd": "1", "degrade_at": 0},
    ],
)
def test_an_entry_that_limits_nothing_or_nonsense_stops_the_start(given: dict[str, Any]) -> None:
    """A limit that was misread would be worse than none."""
    with pytest.raises(ValidationError):
        BudgetSettings(**given)
