"""A charge taken apart adds up to the charge."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from policies.meters import ROUNDING, in_nano, is_plain, meters, rate
from policies.money import Apart, Price, Tier, Usage, checked, cost_nano

RATE = st.integers(0, 10**8)
COUNT = st.integers(0, 100_000)
RATES = {"input": RATE, "output": RATE, "cached_input": RATE, "cache_write": RATE}
MAYBE = st.none() | RATE
APART = st.none() | st.builds(
    Apart,
    cache_write_1h=MAYBE,
    reasoning=MAYBE,
    audio_in=MAYBE,
    audio_out=MAYBE,
    image_in=MAYBE,
    image_out=MAYBE,
)
TIERS = st.lists(
    st.builds(Tier, start=st.integers(1, 100_000), apart=APART, **RATES), max_size=2, unique_by=lambda tier: tier.start
).map(lambda tiers: tuple(sorted(tiers, key=lambda tier: tier.start)))
FEES = {"web_search": MAYBE, "file_search": MAYBE}
PRICES = st.builds(Price, id=st.just("p"), request=RATE, tiers=TIERS, apart=APART, **FEES, **RATES)
USAGES = st.builds(
    Usage,
    prompt=COUNT,
    cached=COUNT,
    cache_write=COUNT,
    completion=COUNT,
    reasoning=COUNT,
    cache_write_1h=COUNT,
    audio_in=COUNT,
    audio_out=COUNT,
    image_in=COUNT,
    image_out=COUNT,
    web_searches=st.integers(0, 50),
    file_searches=st.integers(0, 50),
).map(checked)


@given(USAGES, PRICES)
def test_the_parts_add_up_to_what_is_rounded_up(usage: Usage, price: Price) -> None:
    """Exports tell a charge by its meters; a class or rate that is left out here would be missing from them."""
    parts = meters(usage, price)
    assert -(-sum(part.cost_pico for part in parts) // 1_000) == cost_nano(usage, price)
    assert all(part.quantity > 0 for part in parts)


@given(USAGES, PRICES, st.integers(-5, 10**9))
def test_whole_nano_usd_add_up_to_any_amount(usage: Usage, price: Price, amount: int) -> None:
    """Sealed lines are whole nano-USD, and their sum is the ledger's to the last one."""
    assert sum(cost for _, _, cost in in_nano(meters(usage, price), amount)) == amount


@given(st.lists(USAGES, min_size=1, max_size=5), st.builds(Price, id=st.just("p"), request=RATE, **FEES, **RATES))
def test_attempts_at_a_plain_price_can_be_metered_together(usages: list[Usage], price: Price) -> None:
    """The database adds up tokens of many attempts before they are taken apart."""
    assert is_plain(price)
    whole = Usage(**{name: sum(getattr(usage, name) for usage in usages) for name in usages[0].__struct_fields__})
    together = sum(part.cost_pico for part in meters(whole, price, len(usages)))
    assert together == sum(part.cost_pico for usage in usages for part in meters(usage, price))


@given(USAGES, PRICES)
def test_the_rate_of_a_meter_is_what_the_meter_charges(usage: Usage, price: Price) -> None:
    """List prices stand beside contracts meter by meter; a meter that reads another rate would invent a discount."""
    parts = meters(usage, replace(price, tiers=()))
    assert [rate(price, part.meter) for part in parts] == [part.pico for part in parts]
    assert rate(price, ROUNDING) is None
