"""Bills add up to what was spent, however costs are split."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.statements import Facts, Shared, Split, TeamFacts, bills, shares, total

AMOUNT = st.integers(-(10**15), 10**15)
WEIGHTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 10**9), min_size=1)
SPENT = st.dictionaries(st.sampled_from("abcdef"), st.integers(-1_000, 10**12))


@given(AMOUNT, WEIGHTS)
def test_parts_add_up_and_are_in_proportion(amount: int, weights: dict[str, int]) -> None:
    """A split that loses or invents a nano-USD makes statements differ from the ledger."""
    parts = shares(amount, weights)
    assert sum(parts.values()) == amount
    whole = sum(weights.values())
    for name, part in parts.items():
        exact = amount * weights[name] / whole if whole else amount / len(weights)
        assert abs(part - exact) < 1 + abs(exact) * 1e-9


def test_the_largest_remainder_gets_what_is_left() -> None:
    """The rule is fixed, so that the same month always tells the same bills."""
    assert shares(100, {"a": 1, "b": 1, "c": 1}) == {"a": 34, "b": 33, "c": 33}
    assert shares(10, {"a": 6, "b": 6, "c": 1}) == {"a": 5, "b": 4, "c": 1}
    assert shares(-100, {"a": 1, "b": 1, "c": 1}) == {"a": -34, "b": -33, "c": -33}


@pytest.mark.parametrize("weights", [{}, {"a": -1}])
def test_nobody_to_split_among_is_an_error(weights: dict[str, int]) -> None:
    """A cost that is split among nobody would silently be gone."""
    with pytest.raises(ValueError, match="at least one team"):
        shares(5, weights)


@given(SPENT, SPENT, st.lists(st.sampled_from(["even", "spend", "requests", "fixed"]), max_size=3), st.data())
def test_all_bills_are_the_ledger_and_the_shared_costs(
    spent: dict[str, int], adjusted: dict[str, int], splits: list[Split], data: st.DataObject
) -> None:
    """Finance adds the bills up and compares them with the ledger and the invoices of shared things."""
    shared = [
        Shared(
            name=f"cost {number}",
            amount_nano=data.draw(st.integers(0, 10**12)) if number else None,
            team=None if number else "a",
            split=split,
            shares={"a": 1, "b": 2, "c": 3} if split == "fixed" else {},
        )
        for number, split in enumerate(splits)
    ]
    facts = Facts(teams=[TeamFacts("b", requests=5), TeamFacts("c", requests=1)], shared=shared)
    fixed = sum(cost.amount_nano or 0 for cost in shared)
    assert total(bills(spent, adjusted, facts)) == sum(spent.values()) + sum(adjusted.values()) + fixed


def test_a_shared_team_owes_nothing_itself() -> None:
    """A platform team's spend is everybody's: each pays a part of it and the team none."""
    shared = [Shared(name="platform", amount_nano=None, team="core", split="spend")]
    found = {bill.team: bill for bill in bills({"core": 900, "a": 200, "b": 100}, {}, Facts(shared=shared))}
    assert found["core"].total_nano == 0
    assert (found["a"].total_nano, found["b"].total_nano) == (800, 400)
    assert [(part.name, part.amount_nano, part.weight, part.weights) for part in found["a"].parts] == [
        ("platform", 600, 200, 300)
    ]


def test_savings_are_net_of_their_cost() -> None:
    """A wrong hit saved nothing, and checking hits is paid."""
    assert TeamFacts("a", saved_nano=100, corrected_nano=-30, audit_nano=20).net_saved_nano == 50


def test_what_is_shared_is_split_among_teams() -> None:
    """The administrator's one request to try something would bear a team's part of it, which nobody pays."""
    shared = [Shared(name=split, amount_nano=900, team=None, split=split) for split in ("even", "spend", "requests")]
    teams = [TeamFacts("", requests=9), TeamFacts("a", requests=2), TeamFacts("b", requests=1)]
    spent = {"": 50, "a": 200, "b": 100}
    found = {bill.team: bill.shared_nano for bill in bills(spent, {}, Facts(teams=teams, shared=shared, nobody=False))}
    assert found == {"": 0, "a": 450 + 600 + 600, "b": 450 + 300 + 300}
    alone = bills({"": 50}, {}, Facts(shared=shared[:1], nobody=False))
    assert [(bill.team, bill.shared_nano) for bill in alone] == [("", 900)]
    as_it_was = bills(spent, {}, Facts(teams=teams, shared=shared[:1]))
    assert [bill.shared_nano for bill in as_it_was] == [300, 300, 300]


def test_a_team_that_did_nothing_pays_no_even_part() -> None:
    """The platform team, whose own spend is shared, paid half of the machines in a month in which it did nothing."""
    shared = [
        Shared(name="machines", amount_nano=90, team=None, split="even"),
        Shared(name="platform", amount_nano=None, team="core", split="even"),
    ]
    found = {bill.team: bill.shared_nano for bill in bills({"a": 5, "b": 1}, {}, Facts(shared=shared, named=False))}
    assert found == {"a": 45, "b": 45, "core": 0}
    sealed = {bill.team: bill.shared_nano for bill in bills({"a": 5, "b": 1}, {}, Facts(shared=shared))}
    assert sealed == {"a": 30, "b": 30, "core": 30}  # as it was closed
    (only,) = bills({}, {}, Facts(shared=shared, named=False))
    assert (only.team, only.shared_nano) == ("core", 90)  # somebody has to
