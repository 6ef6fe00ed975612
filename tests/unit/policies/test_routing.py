"""The strategies as functions: what every ranking must hold, whatever the places look like."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from policies.money import Price
from policies.routing import (
    CREDENTIAL_REFUSED,
    IMAGES,
    TOOLS,
    Asked,
    Place,
    brought_forward,
    home_of,
    known,
    rank,
    strategy,
)
from policies.routing.affinity import Load
from policies.routing.affinity import cost as affine
from policies.routing.agreement import majority, mean_logprob, said
from policies.routing.draws import exponential, mixed
from tests.proofs import examples

times = st.sampled_from([-1.0, 0.0, 5.0, 80.0, 3_000.0])
prices = st.none() | st.builds(
    Price,
    id=st.just("p"),
    input=st.integers(0, 10**8),
    output=st.integers(0, 10**8),
    cached_input=st.just(0),
    cache_write=st.just(0),
)


@st.composite
def places(draw: st.DrawFn) -> list[Place]:
    count = draw(st.integers(1, 12))
    return [
        Place(
            name=f"p{number}/m",
            number=number,
            weight=draw(st.sampled_from([0.0, 0.1, 1.0, 9.0])),
            price=draw(prices),
            context=draw(st.sampled_from([0, 100, 100_000])),
            lacks=draw(st.sampled_from([0, TOOLS, TOOLS | IMAGES])),
            shut_until=draw(st.sampled_from([0.0, 5.0, 20.0])),
            shut="circuit open",
            probing=draw(st.booleans()),
            in_flight=draw(st.integers(0, 40)),
            waiting=draw(st.sampled_from([0.0, 3.0])),
            running=draw(st.sampled_from([0.0, 9.0])),
            kv_used=draw(st.sampled_from([0.0, 0.5, 0.95, 1.0])),
            ttft_ms=draw(times),
            tpot_ms=draw(times),
            slow_ttft_ms=draw(times),
            slow_tpot_ms=draw(times),
            queued_tokens=draw(st.integers(0, 9_000)),
        )
        for number in range(count)
    ]


asks = st.builds(
    Asked,
    prompt=st.integers(1, 200_000),
    output=st.integers(0, 4_096),
    now=st.just(10.0),
    needs=st.sampled_from([0, TOOLS, IMAGES]),
    draw=st.integers(0, 2**64 - 1),
)


# What is drawn is ranked by every strategy, since drawing it takes longer, and so there is more of it.
MANY = settings(max_examples=examples(300))
SHUT = [Place(name="p/m", number=0, shut_until=20.0, shut="circuit open"), Place(name="q/m", number=1, context=9)]


@MANY
@example(asked=Asked(prompt=10, output=1, now=10.0), given=SHUT)  # nobody can answer
@given(asked=asks, given=places())
def test_every_place_is_ranked_once_or_left_out_with_a_reason(asked: Asked, given: list[Place]) -> None:
    """A place that is lost is an outage nobody sees; one ranked twice is a storm."""
    for name in known():
        _ranked_once_or_left_out(name, asked, given)


def _ranked_once_or_left_out(name: str, asked: Asked, given: list[Place]) -> None:
    ranking = rank(strategy(name), asked, given)
    left_out = [place for place, _ in ranking.left_out]
    assert sorted(place.number for place in [*ranking.order, *left_out]) == [place.number for place in given]
    assert all(why for _, why in ranking.left_out)
    for place in ranking.order:
        assert not place.lacks & asked.needs
        assert not place.context or asked.prompt + asked.output <= place.context
        assert asked.now >= place.shut_until


@MANY
@given(asked=asks, given=places())
def test_the_order_is_that_of_the_told_costs(asked: Asked, given: list[Place]) -> None:
    """The explanation must be the reason: parts that sum to the cost, and costs that rise; who stands by comes last."""
    for name in known():
        _in_the_order_of_costs(name, asked, given)


def _in_the_order_of_costs(name: str, asked: Asked, given: list[Place]) -> None:
    ranking = rank(strategy(name), asked, given)
    totals = [sum(parts) for parts in ranking.costs]
    told_as: Any = ranking.told()["candidates"]
    marks = [row.get("stands_by", False) for row in told_as[: len(totals)]]
    assert [(mark, total) for mark, total in zip(marks, totals, strict=True)] == sorted(zip(marks, totals, strict=True))
    assert marks == [place.weight == 0 for place in ranking.order]
    assert not any(math.isnan(total) for total in totals)
    assert all(len(parts) == len(ranking.strategy.parts) for parts in ranking.costs)
    assert all(part >= 0 for parts in ranking.costs for part in parts)
    told = ranking.told()
    assert told["strategy"] == name


@MANY
@given(asked=asks, given=places(), number=st.integers(0, 11))
def test_more_load_never_makes_a_place_better(asked: Asked, given: list[Place], number: int) -> None:
    """Otherwise a full replica draws what fills it further."""
    watched = given[number % len(given)]
    before = {name: rank(strategy(name), asked, given).order for name in known() if name != "weighted"}
    watched.in_flight += 5
    watched.queued_tokens += 5_000
    for name, order in before.items():
        if watched in order:
            assert rank(strategy(name), asked, given).order.index(watched) >= order.index(watched), name


def test_weights_are_kept_over_many_draws() -> None:
    """A share that is written down must be the share that is measured."""
    given = [Place(name="a", number=0, weight=3.0), Place(name="b", number=1, weight=1.0), Place(name="c", weight=0.0)]
    given[2].number = 2
    firsts: Counter[str] = Counter()
    for seed in range(4_000):
        asked = Asked(prompt=1, output=1, now=0.0, draw=mixed(seed, 0))
        order = rank(strategy("weighted"), asked, given).order
        firsts[order[0].name] += 1
        assert order[-1].name == "c"
    assert 0.72 < firsts["a"] / 4_000 < 0.78


@given(st.lists(st.text(min_size=1, max_size=6), min_size=2, max_size=9, unique=True), st.integers(0, 2**64 - 1))
def test_a_place_that_leaves_moves_only_its_own_sessions(names: list[str], session: int) -> None:
    """Rendezvous hashing: all other conversations stay where their prompt is cached."""
    given = [Place(name=name, number=number) for number, name in enumerate(names)]
    home = home_of(session, given)
    for gone in given:
        if gone is not home:
            assert home_of(session, [place for place in given if place is not gone]) is home


def test_bringing_forward_keeps_everybody() -> None:
    """A canary in front must not cost its route a candidate."""
    given = [Place(name=str(number), number=number) for number in range(3)]
    ranking = rank(strategy("ordered"), Asked(prompt=1, output=1, now=0.0), given)
    moved = brought_forward(ranking, given[2], "canary")
    assert [place.number for place in moved.order] == [2, 0, 1]
    assert [parts[0] for parts in moved.costs] == [2.0, 0.0, 1.0]


def test_an_unknown_strategy_lists_the_known_ones() -> None:
    """A typing mistake in the configuration should be mended without opening a manual."""
    with pytest.raises(LookupError, match="cheapest"):
        strategy("fattest")


@given(st.integers(0, 2**64 - 1), st.floats(0.01, 100))
def test_draws_are_finite_and_positive(bits: int, weight: float) -> None:
    """A draw of nan or minus infinity would decide every request."""
    assert 0 <= exponential(bits, weight) < math.inf


def test_a_majority_is_the_largest_group_and_the_earlier_one_of_equals() -> None:
    """Ties must not depend on chance, and an answer that failed is nobody's vote."""
    assert majority(["x", "y", "y"]) == (1, 2)
    assert majority(["x", "y"]) == (0, 1)
    assert majority([None, "y"]) == (1, 1)
    assert majority([None]) is None
    assert said(" The  Answer.\n") == said("the answer")


def test_the_mean_is_over_the_tokens_that_tell_it() -> None:
    """A cascade decides by this number; an answer without one is not sure of anything."""
    body: dict[str, object] = {"choices": [{"logprobs": {"content": [{"logprob": -1.0}, {"logprob": -0.5}]}}]}
    assert mean_logprob(body) == -0.75
    assert mean_logprob({"choices": [{"logprobs": None}]}) is None
    assert mean_logprob({}) is None


def test_where_nobody_can_answer_those_that_somebody_has_to_mend_are_asked() -> None:
    """Their refusal says what is to be done; a place in both lists would be asked and told as shut."""
    refused = Place(name="p/m", number=0, shut_until=20.0, shut=CREDENTIAL_REFUSED)
    asked = Asked(prompt=10, output=1, now=10.0)
    alone = rank(strategy("ordered"), asked, [refused, *SHUT[1:]])
    assert (alone.order, [place for place, _ in alone.left_out]) == ([refused], SHUT[1:])
    well = Place(name="r/m", number=2)
    beside = rank(strategy("ordered"), asked, [refused, *SHUT[1:], well])
    assert (beside.order, [place for place, _ in beside.left_out]) == ([well], [refused, *SHUT[1:]])


def test_ordered_keeps_the_order_and_cheapest_sorts() -> None:
    """Ties keep the written order; what has no price is tried last, because it can only be refused."""
    told = [None, (10, 10), (1, 1), (0, 0), (1, 1)]
    given = [
        Place(
            name=str(number),
            number=number,
            price=None
            if found is None
            else Price(id="p", input=found[0], output=found[1], cached_input=0, cache_write=0),
        )
        for number, found in enumerate(told)
    ]
    asked = Asked(prompt=100, output=100, now=0.0)
    assert [place.number for place in rank(strategy("ordered"), asked, given).order] == [0, 1, 2, 3, 4]
    assert [place.number for place in rank(strategy("cheapest"), asked, given).order] == [3, 2, 4, 1, 0]


@given(asked=asks, given=places())
def test_costs_written_out_for_speed_are_those_of_their_sources(asked: Asked, given: list[Place]) -> None:
    """Two copies of a formula drift apart unless something holds them together."""
    for place, parts in zip(given, strategy("prefix_affine").costs(asked, given), strict=True):
        load = Load(
            prefill_rate=place.prefill_rate,
            queued=place.queued_tokens + int(place.waiting * asked.prompt),
            running=max(place.in_flight, int(place.running)),
            slowdown_ms=place.slowdown_ms,
        )
        held = asked.matched[place.number] if asked.matched else 0
        source = affine(place.number, asked.prompt, held, asked.output, load)
        assert parts == pytest.approx((source.prefill, source.queue, source.company))


@pytest.mark.parametrize("name", ["least_busy", "slo"])
def test_a_full_cache_of_keys_and_values_is_avoided(name: str) -> None:
    """Who comes to a full one waits until another leaves, and its queue does not say so before somebody has come."""
    price = Price(id="p", input=1, output=1, cached_input=0, cache_write=0)

    def place(number: int, used: float) -> Place:
        measured = {"ttft_ms": 400.0, "slow_ttft_ms": 900.0, "tpot_ms": 10.0, "slow_tpot_ms": 20.0}
        load = {"in_flight": 4, "running": 4.0, "kv_used": used}
        return Place(name=str(number), number=number, price=price, **measured, **load)  # pyright: ignore[reportArgumentType] - numbers of both kinds

    asked = Asked(prompt=1, output=1, now=0.0)
    for used, first in ((1.0, 1), (0.95, 1), (0.9, 0), (0.2, 0)):
        assert rank(strategy(name), asked, [place(0, used), place(1, 0.2)]).order[0].number == first


@pytest.mark.parametrize(("first_token", "first"), [(0.9, 0), (1.2, 1)])
def test_a_promise_that_is_broken_is_not_bought_back_by_a_low_price(first_token: float, first: int) -> None:
    """A dollar counted as a thousand seconds: a usual answer for a tenth of a cent outweighed a second of lateness."""
    cheap = Price(id="c", input=100_000, output=100_000, cached_input=0, cache_write=0)
    dear = Price(id="d", input=10_000_000, output=30_000_000, cached_input=0, cache_write=0)
    given = [
        Place(name=str(number), number=number, price=price, slow_ttft_ms=ttft * 1e3, slow_tpot_ms=10.0)
        for number, (price, ttft) in enumerate([(cheap, first_token), (dear, 0.2)])
    ]
    asked = Asked(prompt=2_000, output=500, now=0.0, ttft_ms=1_000.0, tpot_ms=50.0)
    assert rank(strategy("slo"), asked, given).order[0].number == first
