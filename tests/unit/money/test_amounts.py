"""Tokens to money: integers, one rounding, never below what a provider bills."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.money import NANO_PER_USD, Price, Tier, Usage, bound_nano, checked, cost_nano, nano, usd

RATE = st.integers(0, 10**9)
COUNT = st.integers(0, 200_000)


@st.composite
def prices(draw: st.DrawFn) -> Price:
    tiers = [
        Tier(start=start, input=draw(RATE), output=draw(RATE), cached_input=draw(RATE), cache_write=draw(RATE))
        for start in sorted(draw(st.sets(st.integers(1, 200_000), max_size=3)))
    ]
    return Price(
        id="p",
        input=draw(RATE),
        output=draw(RATE),
        cached_input=draw(RATE),
        cache_write=draw(RATE),
        request=draw(RATE),
        tiers=tuple(tiers),
    )


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    prompt, completion = draw(COUNT), draw(COUNT)
    cached = draw(st.integers(0, prompt))
    return Usage(
        prompt=prompt,
        cached=cached,
        cache_write=draw(st.integers(0, prompt - cached)),
        completion=completion,
        reasoning=draw(st.integers(0, completion)),
    )


@given(usages(), prices(), st.integers(0, 50_000), st.integers(0, 50_000))
def test_a_reservation_is_never_too_small(usage: Usage, price: Price, more_in: int, more_out: int) -> None:
    """A hard limit holds only because what is reserved bounds what can be billed, in every class and tier."""
    assert cost_nano(usage, price) <= bound_nano(usage.prompt + more_in, usage.completion + more_out, price)


@given(usages(), prices())
def test_a_charge_is_rounded_up_once(usage: Usage, price: Price) -> None:
    """The charge is at most one nano-USD above the exact sum, and never below it."""
    rates = price.rates(usage.prompt)
    exact = (
        (usage.prompt - usage.cached - usage.cache_write) * rates.input
        + usage.cached * rates.cached_input
        + usage.cache_write * rates.cache_write
        + usage.completion * rates.output
        + price.request
    )
    assert 0 <= cost_nano(usage, price) * 1_000 - exact < 1_000


def test_long_prompts_pay_the_rate_of_their_tier() -> None:
    """Providers charge every token of a long prompt at the dearer rate, from one token above the threshold on."""
    tier = Tier(start=100, input=5_000, output=0, cached_input=0, cache_write=0)
    price = Price(id="p", input=1_000, output=0, cached_input=0, cache_write=0, tiers=(tier,))
    assert cost_nano(Usage(prompt=100), price) == 100
    assert cost_nano(Usage(prompt=101), price) == 505


@given(st.integers(-(10**17), 10**17))
def test_amounts_survive_being_written_as_decimals(amount: int) -> None:
    """What finance exports and types back in is the same amount to the nano-USD."""
    assert nano(usd(amount)) == amount


@pytest.mark.parametrize(
    "text", ["", ".", "1e3", "1_0", "\uff11", "0.0000000001", "1000000000", "--1", " 1", "1 ", "nan", "+1"]
)
def test_what_is_no_plain_amount_is_refused(text: str) -> None:
    """An amount that could be read in two ways is not read at all."""
    with pytest.raises(ValueError, match="USD"):
        nano(text)


def test_amounts_are_told_without_floats() -> None:
    """The last digits of a bill are its most looked-at ones."""
    assert usd(1_500_000) == "0.0015"
    assert usd(-NANO_PER_USD) == "-1"
    assert nano("10.50") == 10_500_000_000


@given(
    st.builds(
        Usage,
        prompt=st.integers(-5, 9),
        cached=st.integers(-5, 20),
        cache_write=st.integers(-5, 20),
        completion=st.integers(-5, 9),
        reasoning=st.integers(-5, 20),
    )
)
def test_nonsense_counts_of_an_upstream_cannot_make_money(usage: Usage) -> None:
    """An upstream that reports negative or impossible counts must not lower what is charged below zero."""
    sane = checked(usage)
    assert 0 <= sane.cached + sane.cache_write <= sane.prompt
    assert 0 <= sane.reasoning <= sane.completion
    assert cost_nano(sane, Price(id="p", input=7, output=9, cached_input=1, cache_write=11)) >= 0
