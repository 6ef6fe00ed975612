"""What an engine's tokens cost, and from which load on it is cheaper than buying them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.engine_cost import Hardware, Speed, break_even, capacity, token_pico
from policies.money import Price, Usage, cost_nano

HOUR = 3_600_000_000  # 3.60 USD
SPEED = Speed(prefill_tps=1_000.0, decode_tps=100.0)
UPSTREAM = Price(id="u", input=1_000_000, output=10_000_000, cached_input=0, cache_write=0)
TOKENS = st.integers(1, 100_000)
RATE = st.integers(1, 10**8)


def test_reading_and_writing_weigh_what_they_take() -> None:
    """A token written takes ten times as long here as one read, so it costs ten times as much."""
    assert token_pico(HOUR, SPEED) == (1_000_000, 10_000_000)
    assert token_pico(HOUR, Speed(prefill_tps=1_000.0, decode_tps=100.0, busy=0.25)) == (4_000_000, 40_000_000)


@given(TOKENS, TOKENS, st.integers(1, 10**12), st.floats(0.1, 1e6), st.floats(0.1, 1e6))
def test_the_tokens_of_an_hour_pay_the_hour(prompt: int, completion: int, hour: int, read: float, made: float) -> None:
    """Chargeback at these prices never recovers less than the time that the hardware was busy."""
    pico_in, pico_out = token_pico(hour, Speed(prefill_tps=read, decode_tps=made))
    seconds = Fraction(prompt) / Fraction(read) + Fraction(completion) / Fraction(made)
    assert prompt * pico_in + completion * pico_out >= Fraction(hour * 1_000) * seconds / 3_600


@given(TOKENS, TOKENS, RATE, RATE, st.integers(1, 10**12))
def test_break_even_is_the_first_load_that_is_cheaper(
    prompt: int, completion: int, rate_in: int, rate_out: int, hour: int
) -> None:
    """One request fewer a day and buying is cheaper; that many and the engine is."""
    usage = Usage(prompt=prompt, completion=completion)
    upstream = Price(id="u", input=rate_in, output=rate_out, cached_input=rate_in, cache_write=rate_in)
    hardware = Hardware(hour_nano=hour, speed=SPEED)
    found = break_even(hardware, usage, upstream)
    assert found.requests_per_day is not None
    each = cost_nano(usage, upstream)
    assert (found.requests_per_day - 1) * each < hardware.day_nano <= found.requests_per_day * each
    assert found.reachable == (found.requests_per_day <= capacity(hardware, usage))


def test_break_even_by_hand() -> None:
    """86.40 USD a day against 0.0035 a request; the engine needs 3.5 s for one and so cannot do that many."""
    usage = Usage(prompt=500, completion=300)
    found = break_even(Hardware(hour_nano=HOUR, speed=SPEED), usage, UPSTREAM)
    assert (found.upstream_nano, found.engine_nano) == (3_500_000, 3_500_000)
    assert found.requests_per_day == 24_686
    assert found.utilization == pytest.approx(24_686 / (86_400 / 3.5))
    assert found.reachable is False
    part = break_even(Hardware(hour_nano=HOUR // 2, speed=SPEED, hours=8.0), usage, UPSTREAM)
    assert (part.requests_per_day, part.reachable) == (4_115, True)


def test_nothing_beats_a_free_upstream() -> None:
    """No load makes paid hardware cheaper than nothing."""
    free = Price(id="u", input=0, output=0, cached_input=0, cache_write=0)
    found = break_even(Hardware(hour_nano=HOUR, speed=SPEED), Usage(prompt=1, completion=1), free)
    assert (found.requests_per_day, found.utilization, found.reachable) == (None, None, False)
