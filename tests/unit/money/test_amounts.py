"""Tokens to money: integers, one rounding, never below what a provider bills."""

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.price_terms import hours_of
from policies.money import NANO_PER_USD, Apart, Band, Price, Tier, Usage, bound_nano, checked, cost_nano, nano, usd

RATE = st.integers(0, 10**9)
COUNT = st.integers(0, 200_000)
AT = st.floats(0, 4e9)
WEEK = 604_800
APART = st.none() | st.builds(Apart, **dict.fromkeys(Apart.__struct_fields__, st.none() | RATE))


def rates(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "input": draw(RATE),
        "output": draw(RATE),
        "cached_input": draw(RATE),
        "cache_write": draw(RATE),
        "apart": draw(APART),
    }


def tiers(draw: st.DrawFn) -> tuple[Tier, ...]:
    starts = sorted(draw(st.sets(st.integers(1, 200_000), max_size=3)))
    return tuple(Tier(start=start, **rates(draw)) for start in starts)


@st.composite
def bands(draw: st.DrawFn) -> Band:
    start, end, days = draw(st.integers(0, 1439)), draw(st.integers(0, 1440)), draw(st.integers(1, 127))
    return Band(**rates(draw), start=start, end=end, days=days, tiers=tiers(draw))


@st.composite
def prices(draw: st.DrawFn) -> Price:
    hours = draw(st.lists(bands(), max_size=2))
    fees: dict[str, Any] = {name: draw(st.none() | RATE) for name in ("web_search", "file_search")}
    return Price(id="p", **rates(draw), request=draw(RATE), **fees, tiers=tiers(draw), bands=tuple(hours))


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    prompt, completion = draw(COUNT), draw(COUNT)
    cached = draw(st.integers(0, prompt))
    written = draw(st.integers(0, prompt - cached))
    fresh = prompt - cached - written
    reasoning, audio_in = draw(st.integers(0, completion)), draw(st.integers(0, fresh))
    audio_out = draw(st.integers(0, completion - reasoning))
    return Usage(
        prompt=prompt,
        cached=cached,
        cache_write=written,
        completion=completion,
        reasoning=reasoning,
        cache_write_1h=draw(st.integers(0, written)),
        audio_in=audio_in,
        audio_out=audio_out,
        image_in=draw(st.integers(0, fresh - audio_in)),
        image_out=draw(st.integers(0, completion - reasoning - audio_out)),
        web_searches=draw(st.integers(0, 50)),
        file_searches=draw(st.integers(0, 50)),
    )


@given(usages(), prices(), st.integers(0, 50_000), st.integers(0, 50_000))
def test_a_reservation_is_never_too_small(usage: Usage, price: Price, more_in: int, more_out: int) -> None:
    """A hard limit holds only because what is reserved bounds what can be billed: in every class, tier and hour."""
    searches = usage.web_searches + usage.file_searches
    bound = bound_nano(usage.prompt + more_in, usage.completion + more_out, price, searches)
    assert cost_nano(usage, price) <= bound
    for charged in hours_of(price):
        own = bound_nano(usage.prompt + more_in, usage.completion + more_out, charged, searches)
        assert cost_nano(usage, charged) <= own <= bound


def by_hand(usage: Usage, price: Price) -> int:
    """The same sum class by class, as a price list is read."""
    found = price.rates(usage.prompt)
    apart = found.apart or Apart()

    def rate(name: str, whole: int) -> int:
        own = getattr(apart, name)
        return whole if own is None else int(own)

    fresh = usage.prompt - usage.cached - usage.cache_write - usage.audio_in - usage.image_in
    text = usage.completion - usage.reasoning - usage.audio_out - usage.image_out
    return (
        fresh * found.input
        + usage.audio_in * rate("audio_in", found.input)
        + usage.image_in * rate("image_in", found.input)
        + usage.cached * found.cached_input
        + (usage.cache_write - usage.cache_write_1h) * found.cache_write
        + usage.cache_write_1h * rate("cache_write_1h", found.cache_write)
        + text * found.output
        + usage.reasoning * rate("reasoning", found.output)
        + usage.audio_out * rate("audio_out", found.output)
        + usage.image_out * rate("image_out", found.output)
        + price.request
        + usage.web_searches * (price.web_search or 0)
        + usage.file_searches * (price.file_search or 0)
    )


@given(usages(), prices())
def test_a_charge_is_rounded_up_once(usage: Usage, price: Price) -> None:
    """The charge is at most one nano-USD above the exact sum over the classes, and never below it."""
    for charged in hours_of(price):
        assert 0 <= cost_nano(usage, charged) * 1_000 - by_hand(usage, charged) < 1_000


@given(usages(), prices(), AT)
def test_a_contract_itself_costs_its_dearest_hour(usage: Usage, price: Price, at: float) -> None:
    """Where nobody says when, an amount must not be too small."""
    assert cost_nano(usage, price) >= cost_nano(usage, hours_of(price)[price.band(at)])


@given(prices(), st.integers(0, 3), AT)
def test_hours_repeat_every_week(price: Price, weeks: int, at: float) -> None:
    """A contract's hours are those of the week in UTC, in whatever week."""
    assert price.band(float(int(at))) == price.band(float(int(at)) + weeks * WEEK)


@pytest.mark.parametrize(
    ("moment", "held"),
    [
        ("2026-11-20T22:00:00+00:00", True),  # a Friday evening
        ("2026-11-20T21:59:59+00:00", False),
        ("2026-11-21T05:59:59+00:00", True),  # Saturday morning belongs to Friday's night
        ("2026-11-21T06:00:00+00:00", False),
        ("2026-11-21T22:30:00+00:00", False),  # Saturday's own night is not named
        ("2026-11-23T03:00:00+00:00", False),  # nor is Sunday's, though Monday is
        ("2026-11-23T23:00:00+00:00", True),
    ],
)
def test_hours_past_midnight_belong_to_the_day_they_began_on(moment: str, held: bool) -> None:
    """`mon-fri 22:00-06:00` is five nights, and the last of them ends on Saturday."""
    night = Band(days=0b0011111, start=22 * 60, end=6 * 60, input=1, output=1, cached_input=1, cache_write=1)
    assert night.holds(datetime.fromisoformat(moment).timestamp()) is held


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
        cache_write_1h=st.integers(-5, 20),
        audio_in=st.integers(-5, 20),
        audio_out=st.integers(-5, 20),
        image_in=st.integers(-5, 20),
        image_out=st.integers(-5, 20),
    ),
    APART,
)
def test_nonsense_counts_of_an_upstream_cannot_make_money(usage: Usage, apart: Apart | None) -> None:
    """An upstream that reports negative or impossible counts must not lower what is charged below zero."""
    sane = checked(usage)
    assert 0 <= sane.cached + sane.cache_write + sane.audio_in + sane.image_in <= sane.prompt
    assert 0 <= sane.reasoning + sane.audio_out + sane.image_out <= sane.completion
    assert 0 <= sane.cache_write_1h <= sane.cache_write
    assert min(sane.audio_in, sane.image_in, sane.audio_out, sane.image_out) >= 0
    assert cost_nano(sane, Price(id="p", input=7, output=9, cached_input=1, cache_write=11, apart=apart)) >= 0
