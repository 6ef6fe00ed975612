"""A month once more: what nothing changes stays to the nano-USD, what changes is priced attempt by attempt."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.money import Price, Tier, Usage, bound_nano, cost_nano
from policies.whatif import Attempt, CacheWanted, Hits, Replay, Verdict

OLD = Price(id="old", input=1_000, output=2_000, cached_input=500, cache_write=1_000)
NEW = Price(
    id="new",
    input=3_000,
    output=1_000,
    cached_input=3_000,
    cache_write=3_000,
    tiers=(Tier(start=50, input=9_000, output=9_000, cached_input=9_000, cache_write=9_000),),
)
USAGE = st.builds(Usage, prompt=st.integers(0, 100), completion=st.integers(0, 100))


def asked(usage: Usage, **more: bool) -> Attempt:
    return Attempt(provider="p", model="m", usage=usage, amount=cost_nano(usage, OLD), **more)


def hits(source: str, requests: int = 2, saved: int = 1_000) -> Hits:
    tokens = {"prompt": 10 * requests, "completion": 5 * requests}
    return Hits(provider="p", model="m", source=source, requests=requests, saved=saved, **tokens)


def played(cache: CacheWanted, attempts: list[Attempt], price: Price | None = None, *kept: Hits) -> Verdict:
    play = Replay(cache)
    for one in attempts:
        play.attempt(one, "p/m" if price is None else "p/other", price)
    for hit in kept:
        play.hits(hit, "p/m" if price is None else "p/other", price)
    return play.verdict()


@given(st.lists(USAGE, max_size=20))
def test_nothing_changed_is_what_was(usages: list[Usage]) -> None:
    """A replay that is not exact where nothing changes cannot be trusted where something does."""
    found = played(CacheWanted(), [asked(usage) for usage in usages], None, hits("exact"), hits("semantic"))
    assert found.would == found.actual == sum(cost_nano(usage, OLD) for usage in usages)
    assert found.assumed == []


@given(st.lists(USAGE, min_size=1, max_size=20))
def test_another_price_is_charged_per_attempt(usages: list[Usage]) -> None:
    """Tiers and the rounding of each attempt make a difference that sums of tokens would miss."""
    found = played(CacheWanted(), [asked(usage) for usage in usages], NEW)
    assert found.would == sum(cost_nano(usage, NEW) for usage in usages)
    assert any("another model" in line for line in found.assumed)


def test_what_nobody_counted_and_what_was_corrected() -> None:
    """An upper bound stays one at the other price; a correction is an amount, not tokens; both are told."""
    usage = Usage(prompt=60, completion=10)
    found = played(CacheWanted(), [asked(usage, bounded=True), asked(usage, fixed=True)], NEW)
    assert found.would == bound_nano(60, 10, NEW) + cost_nano(usage, OLD)
    assert [line for line in found.assumed if line[0] == "1"] == [
        "1 attempts nobody counted are at the most they can have cost",
        "1 corrections stay as they are",
    ]


def test_a_model_without_a_price_stays_and_is_told() -> None:
    """Counting it as nothing would make every unknown model look cheap."""
    play = Replay(CacheWanted())
    play.attempt(asked(Usage(prompt=10)), "p/unknown", None)
    found = play.verdict()
    assert (found.would, found.actual, found.lines[0].unpriced) == (10, 10, 1)
    assert any("had no other price" in line for line in found.assumed)


@pytest.mark.parametrize(("mode", "more"), [("off", 1_000 + 600 + 30), ("exact", 600), ("as-it-was", 0)])
def test_without_its_cache_a_month_costs_what_the_hits_saved(mode: str, more: int) -> None:
    """The saving told on the savings page and the cost told here must be the same number, less what checking cost."""
    audit, usage = asked(Usage(prompt=7), audit=True), Usage(prompt=100)
    kept = (hits("exact"), hits("semantic", saved=600), hits("shared", saved=30))
    found = played(CacheWanted(mode=mode), [asked(usage), audit], None, *kept)  # type: ignore[arg-type]
    assert found.actual == 107
    assert found.would == 100 + more + (0 if mode == "off" else 7)


def test_hits_at_another_price_cost_the_mean_of_their_tokens() -> None:
    """A hit that would have been asked of another model never had a price there."""
    found = played(CacheWanted(mode="off"), [], NEW, hits("exact", requests=4))
    assert found.would == 4 * cost_nano(Usage(prompt=10, completion=5), NEW)


def test_another_hit_rate_scales_what_was_asked() -> None:
    """Half of 100 requests were hits; at three quarters the other half costs half of what it did."""
    attempts = [asked(Usage(prompt=10)) for _ in range(50)]
    found = played(CacheWanted(hit_rate=Fraction(3, 4)), attempts, None, hits("exact", requests=50))
    assert (found.actual, found.would) == (500, 250)
    assert played(CacheWanted(hit_rate=Fraction(1, 2)), attempts, None, hits("exact", requests=50)).would == 500
    assert any("as likely to be a hit" in line for line in found.assumed)
