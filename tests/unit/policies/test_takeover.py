"""Which place may take over from one that fails, and that nobody waits for news that cannot come."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policies.routing.takeover import FRESH, QUIET, Takeover


def test_one_finds_out_and_each_answer_doubles_the_room() -> None:
    """A crowd that falls upon the next place is a storm if that one is down too, and nothing to fear if it is well."""
    place = Takeover()
    assert place.verdict(1.0, 1.0) == "unknown"
    place.came(1.0)
    assert place.verdict(1.0, 1.1) == "asked"
    place.answered(1.0, 1.2)
    place.left()
    for _ in range(2):
        assert place.verdict(1.0, 1.3) == "proven"
        place.came(1.0)
    assert place.verdict(1.0, 1.4) == "crowded"
    place.answered(1.3, 1.5)
    place.answered(1.3, 1.5)
    assert place.may == 8


def test_where_nothing_is_heard_twice_as_many_may_go_in_step_by_step() -> None:
    """A place that needs seconds for an answer would take over one request in that time, and then two."""
    place = Takeover()
    place.came(1.0)
    place.is_quiet(1.5, 0.25)
    assert place.verdict(1.0, 1.5) == "asked"
    for now, room in ((1.75, 1), (2.0, 2), (2.25, 4)):
        for _ in range(3):  # all who wait have heard nothing; that is one silence
            place.is_quiet(now, 0.25)
        for _ in range(room):
            assert place.verdict(1.0, now) == "slow"
            place.came(now)
        assert place.verdict(1.0, now) == "asked"
    place.failed(2.3)
    assert place.verdict(1.0, 2.3) == "failed"
    place.answered(2.2, 2.4)
    assert place.verdict(1.0, 2.4) == "crowded"
    place.is_quiet(3.1, 0.25)
    assert place.verdict(1.0, 3.1) == "proven"


def test_who_leaves_without_news_is_followed_by_one_at_a_time() -> None:
    """Clients in a hurry prove nothing: they must neither close a place for others nor open it to all of them."""
    place = Takeover()
    place.came(1.0)
    place.left()
    assert place.verdict(1.0, 1.4) == "unheard"
    assert place.verdict(1.2, 1.4) == "unknown"  # in another outage
    place.is_quiet(1.75, 0.25)
    assert place.verdict(1.0, 1.75) == "slow"
    place.came(1.75)
    assert place.verdict(1.0, 1.75) == "asked"


def test_what_was_sent_before_the_outage_proves_nothing() -> None:
    """Answers on their way when everything died arrive after it; a crowd that trusted them would be a storm."""
    place = Takeover()
    place.answered(sent=0.9, now=1.1)
    assert place.verdict(1.0, 1.2) == "unknown"
    assert place.verdict(0.9, 1.2) == "proven"
    assert place.verdict(0.9, 0.9 + FRESH) == "unknown"


def test_one_failure_narrows_what_is_proven_and_condemns_what_is_not() -> None:
    """A place that works loses a request now and then, and nobody else for it; one that never answered is down."""
    proven, never = Takeover(), Takeover()
    proven.answered(1.0, 1.0)
    for place in (proven, never):
        place.failed(1.5)
    assert (proven.verdict(0.5, 2.0), never.verdict(0.5, 2.0)) == ("proven", "failed")
    proven.came(2.0)
    assert proven.verdict(0.5, 2.0) == "crowded"
    assert never.verdict(2.0, 2.0) == "unknown"  # it failed in another outage


@pytest.mark.parametrize(("after", "recovered"), [(QUIET - 1.0, False), (QUIET, True)])
def test_a_flaky_place_fails_since_its_first_failure(after: float, recovered: bool) -> None:
    """Were every failure an outage of its own, the next place would have to prove itself again for each of them."""
    place = Takeover()
    place.failed(1.0)
    place.answered(1.5, 2.0)
    place.failed(3.0)
    assert place.failing_since == 1.0
    place.answered(3.5, 3.0 + after)
    assert (place.failing_since is None) is recovered


class Crowd(RuleBasedStateMachine):
    """Requests whose own place fails since 1.0 come to this one in any order, and end in any way."""

    def __init__(self) -> None:
        super().__init__()
        self.place, self.now = Takeover(), 1.0
        self.under_way: list[float] = []
        self.answered_since = False
        self.may_be_quiet = self.asked = False

    def _over(self, number: int) -> float:
        self.place.left()
        return self.under_way.pop(number % len(self.under_way))

    @rule(wait=st.floats(0.0, FRESH / 2))
    def time_passes(self, wait: float) -> None:
        self.now += wait

    @rule()
    def one_comes(self) -> None:
        verdict = self.place.verdict(1.0, self.now)
        if verdict == "proven":
            assert self.answered_since
            assert len(self.under_way) < max(self.place.may, self.place.quiet_may)
        elif verdict == "slow":
            assert self.may_be_quiet
            assert len(self.under_way) < self.place.quiet_may
        elif verdict == "unknown":
            assert not self.asked
        else:
            return
        self.place.came(self.now)
        self.asked = True
        self.under_way.append(self.now)

    @rule(step=st.floats(0.1, 2.0))
    def nothing_is_heard(self, step: float) -> None:
        self.place.is_quiet(self.now, step)
        self.may_be_quiet = True

    @precondition(lambda self: self.under_way)
    @rule(number=st.integers(0, 100))
    def one_is_answered(self, number: int) -> None:
        self.place.answered(self._over(number), self.now)
        self.answered_since = True

    @precondition(lambda self: self.under_way)
    @rule(number=st.integers(0, 100))
    def one_fails(self, number: int) -> None:
        self._over(number)
        self.place.failed(self.now)
        self.may_be_quiet = False

    @precondition(lambda self: self.under_way)
    @rule(number=st.integers(0, 100))
    def one_is_given_up(self, number: int) -> None:
        self._over(number)

    @invariant()
    def nobody_waits_for_news_that_cannot_come(self) -> None:
        if not self.under_way:
            assert self.place.verdict(1.0, self.now) not in ("crowded", "asked")

    @invariant()
    def the_count_is_right(self) -> None:
        assert self.place.under_way == len(self.under_way)


TestCrowd = Crowd.TestCase
