"""From an ending to an amount: exact where somebody counted, never below the bill where nobody did."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger import AttemptPlan, Settlement, given_up
from gateway.ledger.plan import posting
from policies.money import Usage, bound_nano, cost_nano
from tests.unit.ledger.rig import PRICE


def planned(billing: str = "stops-on-close", *, prompt: int = 20, output: int = 100) -> AttemptPlan:
    return AttemptPlan(
        id="r.1",
        request_id="r",
        provider="openai",
        model="gpt",
        price=PRICE,
        reserve_nano=bound_nano(prompt, output, PRICE),
        input_bound=prompt,
        max_output=output,
        billing=billing,  # type: ignore[arg-type]
    )


def ended(prompt: int, completion: int, source: str, how: str) -> Settlement:
    usage = Usage(prompt=prompt, completion=completion)
    return Settlement(usage=usage, source=source, ended=how, provider_id="")  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["provider", "engine"])
@pytest.mark.parametrize("how", ["complete", "cut", "cancelled"])
def test_a_count_is_posted_as_it_is(source: str, how: str) -> None:
    """Whoever counted is right, however the answer ended."""
    found = posting(planned(), ended(10, 30, source, how), 1.0)
    assert (found.amount, found.source, found.note, found.provider_id) == (40, source, None, None)


def test_an_overrun_is_posted_and_named() -> None:
    """A provider that bills more than it could is still owed; it must stand out, not be cut to fit."""
    found = posting(planned(), ended(20, 500, "provider", "complete"), 1.0)
    assert (found.amount, found.note) == (520, "overrun")


def test_a_count_that_is_none_is_not_believed() -> None:
    """An upstream that reports a billion tokens has a bug; what it can bill at most is known."""
    found = posting(planned(), ended(20, 10**9, "provider", "complete"), 1.0)
    assert (found.amount, found.source, found.note) == (120, "upper_bound", "implausible count")


def test_a_cut_answer_costs_what_came_and_a_moment_more() -> None:
    """A provider that stops on close has made a little more than what arrived: up to a second at the pace so far."""
    found = posting(planned(), ended(10, 40, "estimated", "cut"), 4.0)
    assert (found.source, found.usage.completion) == ("estimated", 50)
    assert posting(planned(), ended(10, 4, "estimated", "cut"), 100.0).usage.completion == 12


def test_an_unknown_prompt_counts_with_its_bound() -> None:
    """An answer without any usage was still read by the provider."""
    assert posting(planned(), ended(0, 4, "estimated", "cancelled"), 100.0).usage.prompt == 20


def test_a_provider_that_bills_anyway_is_owed_all() -> None:
    """Closing the connection saves nothing there, so nothing less than the reservation is safe."""
    found = posting(planned("bills-anyway"), ended(10, 4, "estimated", "cancelled"), 1.0)
    assert (found.amount, found.source) == (120, "upper_bound")


def test_a_complete_answer_without_a_count_is_estimated() -> None:
    """The answer is whole, so what was received is all there was, whatever the billing."""
    found = posting(planned("bills-anyway"), ended(10, 40, "estimated", "complete"), 1.0)
    assert (found.amount, found.source) == (50, "estimated")


def test_what_was_written_and_not_read_yet_is_covered() -> None:
    """Ten minutes of clients that left on a machine at load 11: of 13,574 calls 24 were posted below the bill."""
    plan = planned("stops-on-close")
    left = posting(plan, given_up(plan, streamed=True), 0.1)
    bill = cost_nano(Usage(prompt=20, completion=24), PRICE)
    assert bill <= left.amount < plan.reserve_nano


@given(
    st.sampled_from(["stops-on-close", "bills-anyway"]),
    st.integers(0, 100),
    st.integers(0, 8),
    st.integers(0, 100),
    st.sampled_from(["cut", "cancelled", "failed"]),
    st.floats(0.0, 100.0),
)
def test_an_estimate_is_never_below_the_bill(
    billing: str, made: int, more: int, want: int, how: str, elapsed: float
) -> None:
    """Whatever a provider of the declared kind may still have made after the cut is covered."""
    plan = planned(billing)
    received = min(made, want)
    billed = want if billing == "bills-anyway" else min(want, received + more)
    truth = cost_nano(Usage(prompt=20, completion=billed), PRICE)
    found = posting(plan, ended(20, received, "estimated", how), elapsed)
    assert truth <= found.amount <= plan.reserve_nano
    assert found.source in ("estimated", "upper_bound")
