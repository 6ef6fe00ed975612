"""What choosing among places saved: against the place without a strategy, for what the choice has to answer for."""

import pytest

from gateway.catalog import Route, Target
from gateway.flights import Landing, Step
from gateway.model_settings import ModelSettings
from gateway.routed import routed_nano
from policies.money import Price, Usage

USAGE = Usage(prompt=10, completion=5)
PRICES = {"small": 1_000, "middle": 2_000, "large": 10_000}  # pico-USD a token, either way


def price(target: Target) -> Price | None:
    rate = PRICES.get(target.model)
    if rate is None:
        return None
    return Price(id=target.model, input=rate, output=rate, cached_input=rate, cache_write=rate, status="exact")


def route(strategy: str, *models: str) -> Route:
    targets = tuple(Target("p", model) for model in models)
    return Route(
        "smart",
        targets,
        ModelSettings.model_validate({"route": [f"p/{model}" for model in models], "strategy": strategy}),
    )


def step(cost: int, *, began: bool = True, result: str = "complete", why: str = "") -> Step:
    found = Step(id="r.1", provider="p", model="m", result=result, cost_nano=cost, why=why)
    found.first_chunk_at = 1.0 if began else 0.0
    return found


def landing(*steps: Step, ended: str = "complete") -> Landing:
    return Landing(steps=list(steps), usage=USAGE, ended=ended)  # pyright: ignore[reportArgumentType] - one of them


@pytest.mark.parametrize(
    ("of", "steps", "saved"),
    [
        (route("cheapest", "large", "small"), [step(15)], 150 - 15),
        (route("ordered", "large", "small"), [step(150)], 0),
        (route("ordered", "small", "large"), [step(40, began=False, result="upstream_timeout"), step(150)], 15 - 150),
        (route("cascade", "small", "large"), [step(15, why="rung")], 150 - 15),
        (route("cascade", "small", "large"), [step(15, why="rung"), step(150)], -15),
        (route("fastest", "small", "middle"), [step(4, began=False, result="cancelled"), step(30)], 15 - 34),
        (route("cheapest", "small"), [step(15)], 0),
        (route("cheapest", "unpriced", "small"), [step(15)], 0),
    ],
    ids=["cheaper", "the usual", "failed over", "sure at once", "not sure", "second call", "alone", "no price"],
)
def test_routing_is_measured_against_the_place_without_it(of: Route, steps: list[Step], saved: int) -> None:
    """A failure is nobody's choice; rungs that were not sure and second calls are the price of choosing."""
    assert routed_nano(of, landing(*steps), price) == saved


def test_an_answer_that_broke_off_saved_nothing() -> None:
    """How long it would have become elsewhere nobody knows."""
    assert routed_nano(route("cheapest", "large", "small"), landing(step(3), ended="cut"), price) == 0
