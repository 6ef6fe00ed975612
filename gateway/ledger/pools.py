"""What this process may spend from memory: one pool per budget window, and which pools a request draws on.

Knows: integers, budgets in force, the current window of each. Does not know: databases, journals, waiting.

A pool is this process's lease on one window. `left` is what requests may still reserve without asking anybody; it is
compared and lowered in one step of the event loop, so concurrent requests cannot both take the last cent.
"""

from collections.abc import Iterable
from zoneinfo import ZoneInfo

from msgspec import Struct

from gateway.call import Call
from gateway.errors import BudgetExhausted
from policies.budget import Budget, is_roomy, period, scopes_of, told, window_id
from policies.money import usd

# Team, project, key, user, names of the model, tags.
Asker = tuple[str, str, str, str | None, tuple[str, ...], tuple[tuple[str, str], ...]]
_MOST_ASKERS = 4_096
_NEVER = -(1 << 62)
_WORKING_SET = 32  # requests' worth that a process likes to have in hand to begin with
_SOON_SECONDS = 2.0
# So much spending is fetched at once, and more once less than a minute of it is in hand: whenever the database goes
# away, that is what a process can go on for.
_FETCHED_SECONDS = 90.0
_OUTAGE_SECONDS = 60.0
_PAUSE_SECONDS = 2.0


def asker_of(call: Call, provider: str, model: str) -> Asker:
    """What an attempt's budgets are found by; one the gateway makes for itself draws on those of model and tags."""
    who, asked = call.principal, call.directives
    models = (call.model, model, f"{provider}/{model}")
    if not call.charged:
        return "", "", "", None, models, asked.tags
    return who.team, who.project, who.key_id, asked.user, models, asked.tags


class Pool:
    """The lease on one window. All amounts in nano-USD.

    `granted` and `consumed` mirror the lease row; `outstanding` is reserved by requests that run; `unshipped` is
    settled but not yet in the database. `spent`, `held`, `limit`: the window's balance when it was last read, at
    `contact` (monotonic seconds). `size`, `enlarged`: how large the last addition was, and when; `passed` is what had
    gone through this pool by then; `returned`: how often the database had what was `releasing`. Where less than `low`
    is left, more is fetched ahead, but not before `again`.
    """

    __slots__ = (
        "again",
        "budget",
        "consumed",
        "contact",
        "ends",
        "enlarged",
        "granted",
        "held",
        "id",
        "last_used",
        "limit",
        "low",
        "outstanding",
        "passed",
        "releasing",
        "returned",
        "size",
        "spent",
        "starts",
        "unshipped",
    )

    def __init__(self, budget: Budget, identity: str, starts: int, ends: int) -> None:
        self.budget = budget
        self.id = identity
        self.starts = starts
        self.ends = ends
        self.limit = budget.limit_nano
        self.spent = 0
        self.held = 0
        self.contact = float("-inf")
        self.granted = 0
        self.consumed = 0
        self.releasing = 0
        self.returned = 0
        self.outstanding = 0
        self.unshipped = 0
        self.last_used = 0.0
        self.low = _NEVER
        self.again = float("-inf")
        self.size = 0
        self.enlarged = float("-inf")
        self.passed = 0

    @property
    def hard(self) -> bool:
        return self.budget.mode == "hard"

    @property
    def left(self) -> int:
        return self.granted - self.consumed - self.releasing - self.unshipped - self.outstanding

    @property
    def free(self) -> int:
        """What nobody has spent or leased, as of the last contact."""
        return self.limit - self.spent - self.held

    @property
    def headroom(self) -> int:
        """What a request of this process could still get: what is left and free, and what is on its way back."""
        mine = self.granted - self.consumed - self.unshipped - self.outstanding
        return max(0, mine + self.limit - self.spent - self.held)

    @property
    def used(self) -> float:
        """The fraction of the limit that is spent or spoken for."""
        return 1.0 - self.headroom / self.limit if self.limit else 1.0

    @property
    def idle(self) -> bool:
        """Whether nothing here is waiting to end or to be shipped."""
        return self.outstanding == 0 and self.unshipped == 0

    def take(self, amount: int, now: float) -> None:
        self.outstanding += amount
        self.last_used = now

    def end(self, reserved: int, amount: int) -> None:
        """A reservation ended as `amount`, which is on its way to the database."""
        self.outstanding -= reserved
        self.unshipped += amount

    def balance(self, limit: int, spent: int, held: int, now: float) -> None:
        """The window as the database has it."""
        self.limit, self.spent, self.held, self.contact = limit, spent, held, now

    def appetite(self, need: int, now: float) -> int:
        """How much to ask for when little is left: a while at the pace since the last time, at least some requests.

        Used up within moments: at least twice as much as then, since a pace cannot be told from an instant.
        """
        early = now - self.enlarged <= _SOON_SECONDS
        return max(_WORKING_SET * need, int(self._pace(now) * _FETCHED_SECONDS), 2 * self.size if early else 0)

    def sized(self, amount: int, now: float) -> None:
        """Note the size of a fresh lease: at two thirds of it the next is fetched ahead, unless little is left."""
        self.low = amount * 2 // 3 if is_roomy(self.limit, self.free) else _NEVER
        self.size, self.enlarged, self.passed = amount, now, self._through()

    def paced(self, now: float) -> None:
        """Where spending has become quicker since the last fetch, the next one is due earlier."""
        if self.low != _NEVER:
            self.low = max(self.low, int(self._pace(now) * _OUTAGE_SECONDS))

    def in_vain(self, now: float) -> None:
        """Nothing could be fetched: ahead of need it is tried again after a pause."""
        self.again = now + _PAUSE_SECONDS

    def _pace(self, now: float) -> float:
        """Nano-USD a second since the last addition; 0 where that was a moment ago."""
        since = now - self.enlarged
        return (self._through() - self.passed) / since if since > _SOON_SECONDS else 0.0

    def _through(self) -> int:
        """What this process has spent or reserved here."""
        return self.consumed + self.unshipped + self.outstanding

    def refusal(self, need: int) -> BudgetExhausted:
        """Why a request for `need` cannot be had: names the budget, what is spent and held, and when it starts anew."""
        others = max(0, self.held - (self.granted - self.consumed))
        held, spent = others + self.outstanding, self.spent + self.unshipped
        ends, window = self.budget.window != "total", self.budget.window
        refusal = BudgetExhausted(
            f"The budget {self.budget.scope} of {usd(self.limit)} USD {'per' if ends else 'in'} {window} is exhausted: "
            f"{usd(spent)} USD spent, {usd(held)} USD held for running requests, and this request may cost up to "
            f"{usd(need)} USD. It {f'resets at {told(self.ends)}' if ends else 'never resets'}.",
            headers=(("x-should-retry", "false"), ("x-nearhit-budget-remaining-usd", usd(self.headroom))),
        )
        refusal.scope, refusal.headroom = self.budget.scope, self.headroom
        refusal.held_up = held > 0 and spent + need <= self.limit
        refusal.degrade_to = self.budget.degrade_to
        return refusal


class Drawn(Struct, frozen=True, gc=False):
    """The pools that one asker's requests draw on between two instants, and the ids of their windows, in order."""

    pools: tuple[Pool, ...] = ()
    windows: tuple[str, ...] = ()
    starts: float = float("-inf")
    ends: float = float("inf")


NOTHING = Drawn()


class _Standing:
    """A budget in force, with the pool of its current window."""

    __slots__ = ("budget", "pool", "zone")

    def __init__(self, budget: Budget, zone: ZoneInfo, pool: Pool) -> None:
        self.budget = budget
        self.zone = zone
        self.pool = pool


class Pools:
    """Every pool of this process. Their number is bounded by budgets in force, plus windows that are ending.

    `degrades`: whether any budget has a cheaper model asked instead.
    """

    def __init__(self) -> None:
        self._standing: dict[str, _Standing] = {}
        self._of: dict[Asker, Drawn] = {}
        self.degrades = False
        self.all: dict[str, Pool] = {}

    def __bool__(self) -> bool:
        return bool(self._standing)

    def put(self, budgets: Iterable[Budget], instant: float) -> None:
        """Make exactly these budgets the ones in force. Pools of windows that still stand keep what they hold."""
        fresh: dict[str, _Standing] = {}
        for budget in budgets:
            zone = ZoneInfo(budget.timezone)
            pool = self._pool(budget, zone, instant)
            pool.budget = budget
            pool.limit = budget.limit_nano
            fresh[budget.scope] = _Standing(budget, zone, pool)
        self._standing = fresh
        self.degrades = any(entry.budget.degrade_to is not None for entry in fresh.values())
        self._of.clear()

    def standing(self, scope: str) -> Budget | None:
        """The budget in force for exactly this scope."""
        found = self._standing.get(scope)
        return None if found is None else found.budget

    def drawn_on(self, asker: Asker, instant: float) -> Drawn:
        """The pools of every budget that `asker` falls under (`policies.budget.scopes_of`), in the window now.

        Which those are is remembered while the budgets stand and no window of any of them ends.
        """
        found = self._of.get(asker)
        if found is None or not found.starts <= instant < found.ends:
            entries = [self._standing[scope] for scope in scopes_of(*asker) if scope in self._standing]
            for entry in entries:
                if not entry.pool.starts <= instant < entry.pool.ends:
                    entry.pool = self._pool(entry.budget, entry.zone, instant)
                    self._of.clear()  # nobody may go on drawing on the pool that has just been left
            if len(self._of) >= _MOST_ASKERS:
                self._of.clear()
            pools = tuple([entry.pool for entry in entries])
            found = self._of[asker] = Drawn(
                pools,
                tuple(sorted([pool.id for pool in pools])),
                max([pool.starts for pool in pools], default=NOTHING.starts),
                min([pool.ends for pool in pools], default=NOTHING.ends),
            )
        return found

    def degraded(self, asker: Asker, instant: float) -> tuple[str, str, float] | None:
        """The first budget of `asker` that wants a cheaper model asked by now: its scope, the model, the part used."""
        for pool in self.drawn_on(asker, instant).pools:
            to, at = pool.budget.degrade_to, pool.budget.degrade_at
            if to is not None and at is not None and pool.used >= at:
                return pool.budget.scope, to, pool.used
        return None

    def drop_ended(self, instant: float) -> None:
        """Forget pools that no budget points to and that hold nothing."""
        current = {id(entry.pool) for entry in self._standing.values()}
        for name, pool in list(self.all.items()):
            gone = id(pool) not in current or instant >= pool.ends
            if gone and pool.idle and pool.granted == pool.consumed and pool.releasing == 0:
                del self.all[name]

    def is_current(self, pool: Pool) -> bool:
        entry = self._standing.get(pool.budget.scope)
        return entry is not None and entry.pool is pool

    def _pool(self, budget: Budget, zone: ZoneInfo, instant: float) -> Pool:
        span = period(budget.window, zone, instant)
        name = window_id(budget, span)
        pool = self.all.get(name)
        if pool is None:
            pool = self.all[name] = Pool(budget, name, span.start, span.end)
        return pool
