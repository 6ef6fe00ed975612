"""A small world around the real ledger: processes that die, a database that fails, a provider that keeps its own bill.

Every action is one method, so that the state machine and the seeded-bug runs drive the same world; `check` holds after
every action, `settle_down` brings everything to rest and checks what must hold then.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from sqlalchemy import Float, bindparam, select
from sqlalchemy.exc import OperationalError

from gateway.call import Principal
from gateway.db.session import Database
from gateway.errors import BudgetExhausted, Overloaded
from gateway.ledger import Hold, Ledger, book
from gateway.ledger.balances import Standing
from gateway.ledger.book import Return
from gateway.ledger.posts import Line
from gateway.ledger.segments import Segment
from policies.budget import parse_window_id
from tests import empty_database
from tests.clock import FrozenClock
from tests.unit.ledger.rig import Rig, budget, call, plan, settled
from tests.unit.ledger.witness import OfPostgres, OfSQLite, Witness

T = TypeVar("T")
_SHARED_MEMORY = Path("/dev/shm")
_SEGMENT_BYTES = 4_096
LIMITS = {"key:k0": 60, "key:k1": 250, "org": 400}
_strings = msgspec.json.Decoder(list[str]).decode


class FaultyDatabase(Database):
    """Can be down, and can lose the reply to a transaction that did commit."""

    down = False
    lose_reply = False

    async def transact(self, work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        if self.down:
            raise OperationalError("down", None, ConnectionError("down"))
        result = await super().transact(work, *args, **kwargs)
        if self.lose_reply:
            self.lose_reply = False
            raise OperationalError("reply lost", None, ConnectionError("reply lost"))
        return result


class Attempt:
    """One upstream call, as the provider knows it: `billed` is what the invoice will say."""

    def __init__(self, hold: Hold, owner: Ledger, want: int) -> None:
        self.hold = hold
        self.owner = owner
        self.want = want
        self.generated = 0
        self.windows = hold.dispatch.windows
        self.billed: int | None = None

    def hang_up(self, extra: int) -> None:
        """The connection is gone: a provider that stops has made a little more, the other kind makes all of it."""
        stops = self.hold.plan.billing == "stops-on-close"
        made = min(self.want, self.generated + extra) if stops else self.want
        self.billed = 1 + made


class World:
    """Two processes of one host on one database: SQLite, or a fresh one of the PostgreSQL at `server`."""

    def __init__(self, server: str | None = None) -> None:
        self.loop = asyncio.new_event_loop()
        parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
        self.home = Path(tempfile.mkdtemp(prefix="nearhit-ledger-", dir=parent))
        self.clock = FrozenClock()
        self._clock_there = book._CLOCK
        url = None if server is None else self.run(empty_database.fresh_postgres(server))
        if url is None:
            empty_database.put(self.home / "nearhit.db")
            self.direct: Witness = OfSQLite(self.home / "nearhit.db")
        else:
            self.direct = OfPostgres(url, self.loop)
            self._set_clock_there()
        self.rig = Rig(self.home, url, self.clock, FaultyDatabase)
        self.database = cast("FaultyDatabase", self.rig.database)
        self.run(self.rig.start())
        self.synced: dict[int, int] = {}
        self.attempts: list[Attempt] = []
        self.live: list[Attempt] = []
        self.shipped: list[tuple[str, Line]] = []
        self.ceiling = dict(LIMITS)
        self.corrected: dict[str, int] = {}
        self.seen: dict[str, dict[str, Any]] = {}
        self.happened: Counter[str] = Counter()
        self.ledgers = [self.boot(), self.boot()]
        for scope, limit in LIMITS.items():
            self.run(self.ledgers[0].set_budget(budget(scope, limit, window="day"), "test"))
        for ledger in self.ledgers:
            self.run(ledger._tender._beat())
            self.run(ledger.reload_budgets())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def _set_clock_there(self) -> None:
        """The server's clock is nobody's on this host, but the days of this world must pass on it too."""
        begun = self.clock.now() - self.clock.monotonic()
        there = bindparam("there", callable_=lambda: begun + self.clock.monotonic(), type_=Float)
        book._CLOCK = cast("Any", select(there))

    def boot(self) -> Ledger:
        """A new process: it recovers what dead ones left."""

        async def start() -> Ledger:
            ledger = await self.rig.ledger(telemetry={"explain_days": 0}, prepare=lambda made: self._instrument(made))
            return ledger

        return self.run(start())

    def _instrument(self, ledger: Ledger) -> None:
        """Small segments, and a note of how far each file is safe from a power cut."""
        journal = ledger._journal
        journal._segment_bytes = _SEGMENT_BYTES

        def sync(descriptor: int) -> None:
            sizes = {segment.fd: segment.used for segment in list(journal._segments)}
            os.fdatasync(descriptor)
            self.synced[os.fstat(descriptor).st_ino] = sizes.get(descriptor, _SEGMENT_BYTES)

        journal._sync = sync
        post = ledger._shipper._posts.post

        async def noted(boot: str, lines: Any, now: float) -> Any:
            standings = await post(boot, lines, now)
            self.shipped.extend((boot, line) for line in lines)
            return standings

        ledger._shipper._posts.post = noted

    # -- actions -----------------------------------------------------------------------------------------------------

    def admit(self, who: int, key: str, most: int, want: int, stops: bool, refused: bool) -> None:
        """A request arrives; what is held is sent, and the provider may refuse it before it generates anything."""
        ledger = self.ledgers[who % len(self.ledgers)]
        asked = call(Principal(key_id=key, team="acme", project="app"))
        attempt = plan(asked, most=most, billing="stops-on-close" if stops else "bills-anyway")
        try:
            hold = self.run(ledger.hold(asked, attempt))
        except (BudgetExhausted, Overloaded):
            return
        if refused:
            ledger.void(hold, "refused")
            return
        self.happened["admitted"] += 1
        made = Attempt(hold, ledger, min(want, most - 1))
        self.attempts.append(made)
        self.live.append(made)

    def generate(self, which: int, tokens: int) -> None:
        if self.live:
            attempt = self.live[which % len(self.live)]
            attempt.generated = min(attempt.want, attempt.generated + tokens)
            seen = settled(1 + attempt.generated).usage
            attempt.owner.progress(attempt.hold, seen)

    def finish(self, which: int) -> None:
        """The whole answer arrived, with the provider's count."""
        if self.live:
            attempt = self.live.pop(which % len(self.live))
            attempt.generated = attempt.want
            attempt.billed = 1 + attempt.want
            attempt.owner.settle(attempt.hold, settled(attempt.billed))

    def cut(self, which: int, extra: int, ended: str) -> None:
        """The stream broke off, or the client left and it was closed: nobody said what it cost."""
        if self.live:
            attempt = self.live.pop(which % len(self.live))
            attempt.hang_up(extra)
            received = settled(1 + attempt.generated, source="estimated", ended=ended)
            attempt.owner.settle(attempt.hold, received)

    def ship(self, who: int) -> None:
        self._try(self.ledgers[who % len(self.ledgers)]._shipper.ship())

    def ship_again(self, which: int) -> None:
        """An old batch arrives a second time."""
        if self.shipped and not self.database.down:
            boot, line = self.shipped[which % len(self.shipped)]
            posts = self.ledgers[0]._recovery._posts
            self._try(type(posts).post(posts, boot, [line], self.clock.now()))

    def tend(self, who: int, seconds: float, lose_reply: bool) -> None:
        self.clock.advance(seconds)
        self.database.lose_reply |= lose_reply
        self._try(self.ledgers[who % len(self.ledgers)]._tender.turn())

    def hand_back(self, who: int, times: int) -> None:
        """What is idle goes back; the reply to each time but the last is lost, so that it is done again."""
        leases = self.ledgers[who % len(self.ledgers)]._leases
        release = leases._book.release

        async def unheard(boot: str, back: Sequence[Return]) -> list[Standing]:
            await release(boot, back)
            raise OperationalError("reply lost", None, ConnectionError("reply lost"))

        self.clock.advance(30.0)
        leases._book.release = unheard
        for _ in range(times - 1):
            self._try(leases.tend())
        leases._book.release = release
        self._try(leases.tend())

    def kill(self, who: int, extra: int, power: bool, keep: float) -> None:
        """kill -9, or a power cut that also takes what the disk had not been told to keep; then a new process."""
        self.happened["power cut" if power else "killed"] += 1
        at = who % len(self.ledgers)
        victims = self.ledgers if power else [self.ledgers[at]]
        for ledger in list(victims):
            for attempt in [attempt for attempt in self.live if attempt.owner is ledger]:
                self.live.remove(attempt)
                attempt.hang_up(extra)
            segments = list(ledger._journal._segments)
            if power:
                self._lose_unsynced(segments, keep)
            self.rig.kill(ledger)
        down, self.database.down, self.database.lose_reply = self.database.down, False, False
        fresh = [self.boot() for _ in victims]
        self.ledgers = fresh if power else [*self.ledgers[:at], *fresh, *self.ledgers[at + 1 :]]
        self.database.down = down

    def break_database(self, down: bool) -> None:
        self.happened["database down"] += down
        self.database.down = down

    def lose_next_reply(self) -> None:
        self.happened["reply lost"] += 1
        self.database.lose_reply = True

    def roll_day(self) -> None:
        self.clock.advance(86_400)

    def set_clock(self, seconds: float) -> None:
        """Somebody sets the clock of the host, also back into yesterday."""
        self.happened["clock set"] += 1
        self.clock.jump(seconds)

    def edit_limit(self, scope: str, limit: int) -> None:
        if self.database.down:
            return
        self.database.lose_reply = False
        self.run(self.ledgers[0].set_budget(budget(scope, limit, window="day"), "test"))
        for ledger in self.ledgers:
            self.run(ledger.reload_budgets())
        self.ceiling[scope] = max(self.ceiling[scope], limit)

    def correct(self, which: int, delta: int) -> None:
        """Finance corrects what an attempt cost; whoever is told that it failed tries once more."""
        if not self.attempts or self.database.down:
            return
        attempt = self.attempts[which % len(self.attempts)]
        for _ in range(2):
            try:
                made = self.run(
                    self.ledgers[0].adjust(attempt.hold.plan.id, delta, reason="test", actor="finance"),
                )
            except OperationalError:
                continue
            except ValueError:  # not posted yet, or it would have cost less than nothing
                return
            self.happened["corrected"] += 1
            self.corrected[made] = delta
            for window in attempt.windows:  # it is the truth whatever the limit, and what it takes off can be spent
                self.ceiling[parse_window_id(window)[0]] += abs(delta)
            return

    def _try(self, work: Coroutine[Any, Any, Any]) -> None:
        with contextlib.suppress(OperationalError):
            self.run(work)

    def _lose_unsynced(self, segments: list[Segment], keep: float) -> None:
        for segment in segments:
            safe = self.synced.get(os.fstat(segment.fd).st_ino, 0)
            kept = safe + int((segment.used - safe) * keep) if segment.used > safe else segment.used
            os.pwrite(segment.fd, bytes(segment.size - kept), kept)

    # -- what must hold ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """I1 conservation, I2 limits, I3 at most one terminal entry per attempt, I6 nothing that was posted changes and
        only corrections take off; after every action.
        """
        with self.direct.moment():  # a lease may just be growing in the background
            believed = self._believed()
            entries, windows, leases = self._entries(), self._windows(), self._leases()
            real = dict(self._granted())
        for name, amount in believed.items():
            assert amount <= real.get(name, 0), f"I2 {name}: may spend {amount} of a lease of {real.get(name, 0)}"
        spent: Counter[str] = Counter()
        for entry in entries.values():
            for name in entry["windows"]:
                spent[name] += entry["amount"]
        for name, (window_spent, held) in windows.items():
            assert window_spent == spent[name], f"I1 {name}: spent {window_spent}, entries say {spent[name]}"
            assert held == leases[name], f"I1 {name}: held {held}, leases say {leases[name]}"
            assert held >= 0, f"I1 {name}: held {held}"
            most = self.ceiling[parse_window_id(name)[0]]
            assert window_spent + held <= most, f"I2 {name}: {window_spent} spent and {held} held of {most}"
        assert {name: entries.get(name) for name in self.seen} == self.seen, "I6 an entry was changed"
        self.seen = entries
        corrections = {name: entry["amount"] for name, entry in entries.items() if entry["source"] == "adjust"}
        assert corrections == self.corrected, f"I6 corrected by {corrections}, wanted {self.corrected}"
        assert all(entry["amount"] >= 0 for name, entry in entries.items() if name not in corrections), "I6 below 0"
        assert self._count("entry_conflict") == 0, "I3 two different ends of one attempt"

    def settle_down(self) -> None:
        """Faults stop, everything ends: I4 nothing lost, I5 nothing held for ever, I7 windows, I8 rebuild = stored."""
        self.database.down = self.database.lose_reply = False
        while self.live:
            self.finish(0)
        for ledger in self.ledgers:
            self.run(ledger.close())
            self.rig.ledgers.remove(ledger)
        self.ledgers = []
        last = self.boot()
        self.run(last.flush())
        findings = self.run(last.verify())
        self.run(last.close())
        self.rig.ledgers.remove(last)
        self.check()
        assert findings == [], f"I8 {findings}"
        assert all(held == 0 for _, held in self._windows().values()), f"I5 {self._windows()}"
        assert list((self.home / "journal").iterdir()) == [], "I5 a journal was left"
        self._check_bill()

    def _check_bill(self) -> None:
        entries = self._entries()
        billed: Counter[str] = Counter()
        for attempt in self.attempts:
            name, due = attempt.hold.plan.id, attempt.billed
            assert due is not None
            entry = entries.get(name)
            assert entry is not None, f"I4 the provider billed {due} for {name}, the ledger has nothing"
            assert entry["amount"] >= due, f"I4 {name}: {entry['amount']} posted, {due} billed"
            assert entry["source"] != "provider" or entry["amount"] == due, f"I4 {name}: not exact"
            assert tuple(entry["windows"]) == attempt.windows, f"I7 {name}: {entry['windows']}"
            for window in attempt.windows:
                span = parse_window_id(window)[2]
                assert span.start <= entry["admitted"] < span.end, f"I7 {name}: {entry['admitted']} is not in {window}"
            billed.update(dict.fromkeys(attempt.windows, due))
        for name, amount in billed.items():
            assert amount <= self.ceiling[parse_window_id(name)[0]], f"I2' {name}: {amount} billed"

    def _entries(self) -> dict[str, dict[str, Any]]:
        rows = self.direct.rows("SELECT id, amount_nano, source, windows, admitted FROM entry")
        return {
            row[0]: {"amount": row[1], "source": row[2], "windows": _strings(row[3]), "admitted": row[4]}
            for row in rows
        }

    def _windows(self) -> dict[str, tuple[int, int]]:
        rows = self.direct.rows("SELECT id, spent_nano, held_nano FROM budget_window")
        return {row[0]: (row[1], row[2]) for row in rows}

    def _leases(self) -> Counter[str]:
        open_ = "SELECT window_id, sum(granted_nano - consumed_nano) FROM lease WHERE NOT closed GROUP BY window_id"
        return Counter({row[0]: int(row[1]) for row in self.direct.rows(open_)})

    def _granted(self) -> list[tuple[tuple[str, str], int]]:
        rows = self.direct.rows("SELECT boot, window_id, granted_nano FROM lease WHERE NOT closed")
        return [((row[0], row[1]), row[2]) for row in rows]

    def _count(self, table: str) -> int:
        return int(self.direct.rows(f"SELECT count(*) FROM {table}")[0][0])

    def _believed(self) -> dict[tuple[str, str], int]:
        """What each process takes itself to have leased."""
        return {(one.boot, p.id): p.granted - p.releasing for one in self.ledgers for p in one._pools.all.values()}

    def close(self) -> None:
        """Let go of everything, whatever state it is in."""
        book._CLOCK = self._clock_there
        self.direct.close()
        for ledger in list(self.rig.ledgers):
            self.rig.kill(ledger)
        self.run(self.rig.tasks.finish(1.0))
        self.run(self.database.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        shutil.rmtree(self.home, ignore_errors=True)
