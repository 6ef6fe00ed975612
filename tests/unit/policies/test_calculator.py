"""What a use would cost: parts that add up, and agree with what the ledger would charge."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.calculator import Workload, checked_workload, estimate
from policies.engine_cost import Hardware, Speed
from policies.money import Apart, Price, Tier, cost_nano

PRICE = Price(
    id="p",
    input=2_000_000,
    output=8_000_000,
    cached_input=500_000,
    cache_write=2_000_000,
    request=10**9,
    apart=Apart(reasoning=4_000_000),
    tiers=(Tier(start=100_000, input=4_000_000, output=8_000_000, cached_input=1_000_000, cache_write=4_000_000),),
)
SHARE = st.fractions(0, 1, max_denominator=1_000)


@given(st.integers(0, 200_000), st.integers(0, 5_000), st.integers(0, 10_000), SHARE, SHARE)
def test_the_parts_are_the_requests_times_their_price(
    prompt: int, completion: int, requests: int, cached: Fraction, hit: Fraction
) -> None:
    """Finance adds the parts up; the sum is what the requests that are not hits cost, to a nano-USD per part."""
    work = Workload(prompt=prompt, completion=completion, requests=requests, cached_share=cached, hit_rate=hit)
    found = estimate(work, PRICE)
    each = cost_nano(work.usage, PRICE)
    assert found.request_nano == each
    assert work.asked * (each - 1) <= found.day.total <= work.asked * each + 4
    assert found.month.total == 30 * found.day.total
    assert found.day.saved <= each * requests * hit


def test_a_use_by_hand() -> None:
    """Figures that a person can follow: 1,000 requests, half of the prompt cached, a fifth of them hits."""
    work = Workload(
        prompt=1_000,
        completion=300,
        reasoning=100,
        requests=1_000,
        cached_share=Fraction(1, 2),
        hit_rate=Fraction(1, 5),
        days=31,
    )
    lookup = Price(id="e", input=10_000, output=0, cached_input=0, cache_write=0)
    day = estimate(work, PRICE, lookup=lookup).day
    assert day.input == 800 * 500 * 2_000
    assert day.cached == 800 * 500 * 500
    assert day.output == 800 * (200 * 8_000 + 100 * 4_000)
    assert day.calls == 800 * 1_000_000
    assert day.lookups == 1_000 * 1_000 * 10
    assert day.saved == 200 * (500 * 2_000 + 500 * 500 + 2_000_000 + 1_000_000)
    assert estimate(work, PRICE, lookup=lookup).month.total == 31 * day.total


def test_hardware_is_paid_while_it_waits() -> None:
    """Tokens at their price are half the truth; the other half is how many engines have to stand there."""
    hardware = Hardware(hour_nano=10**9, speed=Speed(prefill_tps=1_000.0, decode_tps=100.0, busy=0.5))
    work = Workload(prompt=1_000, completion=300, requests=21_600)  # 4 s each: one whole day of work
    found = estimate(work, PRICE, hardware=hardware).engines
    assert found is not None
    assert (found.count, found.busy, found.day_nano) == (2, 0.5, 48 * 10**9)
    idle = estimate(Workload(prompt=1, completion=1, requests=0), PRICE, hardware=hardware).engines
    assert idle is not None
    assert (idle.count, idle.busy) == (1, 0.0)


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prompt_tokens", {"prompt": -1}),
        ("requests_per_day", {"requests": 10**11}),
        ("reasoning_tokens", {"reasoning": 2}),
        ("hit_rate", {"hit_rate": Fraction(3, 2)}),
        ("cached_share", {"cached_share": Fraction(-1, 2)}),
        ("days_per_month", {"days": 0}),
    ],
)
def test_what_cannot_be_is_named(field: str, changes: dict[str, object]) -> None:
    """A form says which of its fields is wrong."""
    values: dict[str, object] = {"prompt": 1, "completion": 1, "requests": 1, **changes}
    with pytest.raises(ValueError, match=f"^{field}"):
        checked_workload(Workload(**values))  # type: ignore[arg-type]
