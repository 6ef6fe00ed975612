"""Bugs that a ledger like this has had elsewhere, put in on purpose: the world must notice every one of them.

They are the nine of the reference model but one: a lease cannot be asked for again under a fresh id, for it has none;
it is the row of its boot and window. `not_journalled` stands for sending before the journal. The others are checks of
this implementation, removed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import structs

from gateway.ledger import adjust, balances, book, journal, leases, ledger, pools, posts, recovery
from gateway.ledger import plan as planning
from gateway.ledger.plan import Posting
from policies.money import Usage
from tests.unit.ledger.schedules import wander
from tests.unit.ledger.world import World

_MOST_SCHEDULES = 40
Patch = Callable[[pytest.MonkeyPatch], None]


def no_dedupe(patch: pytest.MonkeyPatch) -> None:
    """A redelivered entry moves the balances again."""
    spending = posts._spending

    def every(
        self: posts.Posts, connection: Any, boot: str, lines: Sequence[posts.Line], now: float, new: bool = False
    ) -> Any:
        found = original(self, connection, boot, lines, now, new=new)
        again = [line for line in lines if line.settle.id in seen]
        seen.update(line.settle.id for line in lines)
        if again:
            balances = self._windows.lock(connection, (name for line in again for name in line.dispatch.windows))
            held = posts.leases_of(connection, boot, list(balances))
            posts.spend(connection, boot, spending(again, held))
        return found

    original, seen = posts.Posts._post, set[str]()
    patch.setattr(posts.Posts, "_post", every)


def refund_on_cancel(patch: pytest.MonkeyPatch) -> None:
    """An answer that broke off is posted as free."""

    def free(plan: Any, settlement: Any, elapsed: float) -> Posting:
        if settlement.ended in ("cut", "cancelled"):
            return Posting(amount=0, usage=Usage(), source="estimated", ended=settlement.ended)
        return original(plan, settlement, elapsed)

    original = ledger.posting
    patch.setattr(ledger, "posting", free)


def no_sync_before_send(patch: pytest.MonkeyPatch) -> None:
    """The request leaves before its dispatch has reached the disk."""

    patch.setattr(journal.Journal, "synced", lambda self: None)


def not_journalled(patch: pytest.MonkeyPatch) -> None:
    """Nothing about an attempt is written down before it ends."""

    def nothing(self: journal.Journal, record: Any) -> Any:
        segment = self._segments[-1]
        segment.open_attempts += 1
        return segment

    patch.setattr(journal.Journal, "dispatch", nothing)


def recovery_voids(patch: pytest.MonkeyPatch) -> None:
    """What a dead process had in flight is taken for free."""

    def free(record: Any, progress: Any, now: float) -> posts.Line:
        line = original(record, progress, now)
        return posts.Line(record, structs.replace(line.settle, amount=0))

    original = recovery._unended
    patch.setattr(recovery, "_unended", free)


def attempt_id_reused(patch: pytest.MonkeyPatch) -> None:
    """Two attempts share one id, so the second one's cost is taken for a repeat."""

    def same(call: Any, plan: Any, windows: Any, instant: float, price: Any) -> Any:
        record = original(call, plan, windows, instant, price)
        return structs.replace(record, id="one")

    original = ledger.dispatch_record
    patch.setattr(ledger, "dispatch_record", same)
    patch.setattr(ledger, "Settle", lambda number, name, *rest: _Settle(number, "one", *rest))


def window_at_settle(patch: pytest.MonkeyPatch) -> None:
    """Spending falls into the day on which it ends, not the one on which it was admitted."""

    def late(self: ledger.Ledger, hold: Any, end: Any) -> int:
        record = hold.dispatch  # the windows of now, not of the admission
        asker = (record.team, record.project, record.key_id, record.user, (record.asked,), ())
        now = self._pools.drawn_on(asker, self._pulse.instant())
        hold.dispatch = structs.replace(hold.dispatch, windows=now.windows)
        return original(self, hold, end)

    original = ledger.Ledger._end
    patch.setattr(ledger.Ledger, "_end", late)


def no_limit_check(patch: pytest.MonkeyPatch) -> None:
    """Leases are granted whatever the limit says."""
    patch.setattr(book, "lease_amount", lambda limit, free, demand, least, appetite, processes: demand)


def reservations_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Two requests take the same room in a lease."""
    patch.setattr(pools.Pool, "take", lambda self, amount, now: None)
    patch.setattr(pools.Pool, "end", lambda self, reserved, amount: setattr(self, "unshipped", self.unshipped + amount))


def hand_back_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What is being handed back can be spent meanwhile."""

    async def careless(self: leases.Leases) -> None:
        try:
            await original(self)
        finally:
            for pool in self._pools.all.values():
                pool.releasing = 0

    original = leases.Leases.tend
    patch.setattr(leases.Leases, "tend", careless)


def sync_only_said(patch: pytest.MonkeyPatch) -> None:
    """The journal calls durable what it never told the disk to keep."""
    patch.setattr(journal.Journal, "_sync_all", lambda self, those: None)


def windows_never_end(patch: pytest.MonkeyPatch) -> None:
    """The windows that a key once drew on are remembered past midnight."""

    def remembered(self: pools.Pools, asker: Any, instant: float) -> Any:
        found = self._of.get(asker)
        return original(self, asker, instant) if found is None else found

    original = pools.Pools.drawn_on
    patch.setattr(pools.Pools, "drawn_on", remembered)


def release_repeated(patch: pytest.MonkeyPatch) -> None:
    """A hand-back whose reply was lost is done once more, out of what running requests rest on."""

    def again(self: book.Book, connection: Any, boot: str, back: Sequence[book.Return]) -> Any:
        held = balances.leases_of(connection, boot, [part.window for part in back])
        mistaken = [structs.replace(part, granted=held[part.window].granted) for part in back]
        return original(self, connection, boot, mistaken)

    original = book.Book._release
    patch.setattr(book.Book, "_release", again)


def no_slack(patch: pytest.MonkeyPatch) -> None:
    """Of an answer that was cut no more is posted than had arrived."""
    patch.setattr(planning, "_SLACK_TOKENS", 0)
    patch.setattr(planning, "_SLACK_SECONDS", 0.0)


def ends_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    """Recovery takes what its journal lost the end of for unended, though the end stands in the database."""

    async def all_of_them(self: recovery.Recovery, open_: list[Any]) -> list[Any]:
        return open_

    patch.setattr(recovery.Recovery, "_not_posted", all_of_them)


def handed_back_too_soon(patch: pytest.MonkeyPatch) -> None:
    """What an end has freed is handed to others before that end would survive a power cut."""

    async def at_once(self: leases.Leases) -> bool:
        return True

    patch.setattr(leases.Leases, "_settled_for_good", at_once)


def correction_repeated(patch: pytest.MonkeyPatch) -> None:
    """A correction whose reply was lost is told as failed, though it was made."""

    async def unheard(database: Any, windows: Any, alerting: Any, wanted: adjust.Correction, now: float) -> Any:
        return await database.transact(adjust._adjust, windows, alerting, wanted, now)

    patch.setattr(ledger, "adjust", unheard)


_Settle = ledger.Settle
# Each with a schedule that notices it: trying them one after the other takes up to thirty.
MUTANTS: dict[Patch, int] = {
    no_dedupe: 1,
    refund_on_cancel: 0,
    no_sync_before_send: 1,
    not_journalled: 0,
    recovery_voids: 1,
    attempt_id_reused: 0,
    window_at_settle: 1,
    no_limit_check: 5,
    reservations_not_counted: 23,
    hand_back_forgotten: 9,
    sync_only_said: 0,
    windows_never_end: 1,
    no_slack: 0,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_the_world_notices(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof is worth what it catches: each seeded bug must break an invariant within a few schedules."""
    monkeypatch.setattr(leases, "_RECLAIM_SECONDS", 0.0)
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KeyError), match=r"^I\d|\|day\|"):
        _wander_far(MUTANTS[mutant])


def test_the_world_notices_a_release_that_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """By chance the lost reply is nearly always another one's, so this schedule is written down; sound code passes."""
    _hand_back_twice()
    release_repeated(monkeypatch)
    with pytest.raises(AssertionError, match=r"^I2"):
        _hand_back_twice()


def test_the_world_notices_what_is_handed_back_too_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut just between the two is rarely met by chance."""
    _hand_back_and_lose_power()
    handed_back_too_soon(monkeypatch)
    with pytest.raises(AssertionError, match=r"^I2"):
        _hand_back_and_lose_power()


def test_the_world_notices_an_end_that_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same: an end that reached the database before the disk."""
    _post_and_lose_power()
    ends_not_looked_for(monkeypatch)
    with pytest.raises(AssertionError, match=r"^I3"):
        _post_and_lose_power()


def _post_and_lose_power() -> None:
    """An answer ends and is posted, and power fails before the disk has been told of its end."""
    world = _unsynced()
    try:
        world.admit(0, "k2", most=40, want=0, stops=False, refused=False)
        world.finish(0)
        world.ship(0)
        world.kill(0, extra=0, power=True, keep=0.0)
        world.check()
        world.settle_down()
    finally:
        world.close()


def _unsynced() -> World:
    """One in which no sync comes due by itself: what happens to it happens before that."""
    world = World()
    for one in world.ledgers:
        one._journal.sync_within = lambda seconds: None
    return world


def _hand_back_and_lose_power() -> None:
    """One process needs little of what it held and hands the rest back; another spends all of that; power fails."""
    world = _unsynced()
    try:
        world.admit(0, "k2", most=40, want=0, stops=False, refused=False)
        world.finish(0)
        world.hand_back(0, times=1)
        for most in (40,) * 9 + (39,):
            world.admit(1, "k2", most=most, want=most - 1, stops=False, refused=False)
        assert world.happened["admitted"] == 11
        world.kill(0, extra=0, power=True, keep=0.0)
        world.check()
        world.settle_down()
    finally:
        world.close()


def test_the_world_notices_a_correction_that_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is told that a correction failed makes it again: one whose reply was lost must not be told as failed."""
    _correct_unheard()
    correction_repeated(monkeypatch)
    with pytest.raises(AssertionError, match=r"^I6"):
        _correct_unheard()


def _correct_unheard() -> None:
    """A posted charge is corrected, and the reply to that is lost."""
    world = World()
    try:
        world.admit(0, "k2", most=40, want=39, stops=False, refused=False)
        world.finish(0)
        world.ship(0)
        world.lose_next_reply()
        world.correct(0, -7)
        assert world.happened["corrected"] == 1
        world.check()
        world.settle_down()
    finally:
        world.close()


def _hand_back_twice() -> None:
    """One process has a request running while it hands the rest of its lease back, again; another one takes it."""
    world = World()
    try:
        for _ in range(3):
            world.admit(0, "k2", most=40, want=39, stops=False, refused=False)
        world.hand_back(0, times=2)
        for most in (40,) * 7 + (10,):  # 400 in all, and then one more
            world.admit(1, "k2", most=most, want=most - 1, stops=False, refused=False)
            world.check()
        world.settle_down()
    finally:
        world.close()


def _wander_far(first: int) -> None:
    """Schedule `first`, and all others where a change has made it miss."""
    for seed in (first, *range(_MOST_SCHEDULES)):
        wander(seed)
