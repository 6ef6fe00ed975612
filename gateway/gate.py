"""The outermost gate of the data plane: before a body is read or a key is looked up, may this request come in?

Turned away are newcomers beyond `server.max_in_flight`, beyond the memory there is, and as many as keep the event loop
from falling behind (`policies.overload`), those of the busiest keys and batch work first. What is under way goes on.
A request takes several turns of the loop on its way, and each can be late by a little: so the lag is that of a timer
and of as many turns after it. One turn takes all that has come since the last, so a long turn makes the next longer:
under pressure nobody is let in any more once a turn has taken as long as requests may wait. A turn that is long
because this process was given no processor is no overload: turning people away would not shorten it.
Knows: the loop's lag, how many are in flight, whose keys were let in lately, memory. Does not know: what a key
may do (its text only tells keys apart here, by a hash), bodies, dialects.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from gateway.errors import Overloaded
from policies.overload import Pressure, Seen, chance, comes_back_in, let_in, level, memory_full, pressed

PROBE = 0.01  # seconds between two looks at the loop
TURNS = 4  # of the loop that a look takes, within a window: about as many as a miss before it is sent on
WINDOW = 0.1  # the least lag in so long counts: one long garbage collection is no overload
BURST = 600  # newcomers since the loop was last in time: so many at once are a burst, however slow the machine is,
_BURST_LASTS = 1.0  # unless it is known that they are more than so many seconds of work,
_KNOWN = 50.0  # which takes so many requests lately
LATEST = 1.5  # seconds the loop may be late in a burst before newcomers are turned away
BEHIND = 0.4  # the same beyond a burst, where it was not late before
AGAIN = 0.06  # and where it was late already: an overload grows from turn to turn
_OWN = 2.0  # a turn counts as so many times the processor time that it took, at most
_LATE = 0.05  # seconds: twice in a row so late is a reason not to wait for the end of a window
_LEAST_PROBES = 2
_FEWEST = 4  # newcomers in a window below which turning them away could not help
_MOST_KEYS = 4_096
_FADES = 0.9  # per window, what is remembered of who asked
_PER_SECOND = (1.0 - _FADES) / (_FADES * WINDOW)  # of a faded count, once it is steady
_FORGOTTEN = 0.05
_MEMORY_EVERY = 10  # windows
_CGROUPS, _OURS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_FILES = {  # by the controller's name in `_OURS`: where it is mounted, limit, usage, what can be given back at once
    "": ("", "memory.max", "memory.current", "inactive_file"),
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_NO_LIMIT = 1 << 50

Headers = Iterable[tuple[bytes, bytes]]


class Load(Struct, frozen=True):
    """How the gate stands now. `lag` in seconds, `share` of newcomers turned away for it; `full`: no memory is left."""

    in_flight: int
    lag: float
    share: float
    full: bool


class Clocks(NamedTuple):
    """Seconds: the loop's own, and those of the processor that this process and the loop's thread have used."""

    monotonic: Callable[[], float]
    processor: Callable[[], float]
    thread: Callable[[], float]


CLOCKS = Clocks(time.monotonic, time.process_time, time.thread_time)


class Gate:
    """One per worker. `random` in [0, 1); `turned_away` counts a reason.

    `target`: the lag in seconds that requests may meet. `memory`: bytes used and allowed.
    """

    def __init__(
        self,
        most: int,
        target: float,
        *,
        random: Callable[[], float],
        turned_away: Callable[[str], None],
        memory: Callable[[], tuple[int, int | None]] | None = None,
        clocks: Clocks = CLOCKS,
    ) -> None:
        self._most = most
        self._target = target
        self._random = random
        self._turned_away = turned_away
        self._monotonic, self._processor, self._thread = clocks
        self._used = 0.0  # of the processor, when the last look at the loop ended
        self._worked = 0.0  # by the loop's thread, when the window began
        self._read_memory = memory or memory_used
        self._pressure = Pressure()
        self._full = False
        self._in_flight = 0
        self._came = 0
        self._let_in = 0
        self._outside = 0  # let in, and not entered yet
        self._asked: tuple[dict[int, float], dict[int, float]] = ({}, {})  # of people, of batches: faded counts
        self._levels = (inf, inf)
        self._handle: asyncio.Handle | None = None
        self._looking = 0.0  # since when, in this look
        self._due = self._least = inf  # _due: when this turn of the loop began, or the next look is to begin
        self._last = 0.0  # the lag that was seen last
        self._surge = 0  # newcomers since the loop was last in time
        self._burst = float(BURST)  # of them, so many may be all
        self._cut = False
        self._began = 0.0
        self._probes = self._windows = 0

    # The way in

    def refusal(self, headers: Headers) -> Overloaded | None:
        """None to come in, and then `left` is due; else what to answer."""
        return self.knock(headers) or self.enter()

    def knock(self, headers: Headers) -> Overloaded | None:
        """None for one that may `enter`. To be asked once for each newcomer."""
        self._came += 1
        self._surge += 1
        if self._in_flight >= self._most:
            return self._crowded()
        if self._full:
            return self._refused("memory", "its memory is nearly used up")
        if self._pressure.share > 0.0 and self._random() < self._chance(*_told(headers)):
            return self._refused("lag", "more came in than can be answered in time")
        if self._is_behind():
            return self._late()
        self._outside += 1
        return None

    def enter(self) -> Overloaded | None:
        """None, and then `left` is due; else what to answer."""
        self._outside -= 1
        if self._in_flight >= self._most:
            return self._crowded()
        if self._is_behind():
            return self._late()
        self._in_flight += 1
        self._let_in += 1
        return None

    def _is_behind(self) -> bool:
        """Whether one more would make this turn of the loop too long, with those that were let in and did not start."""
        late = self._monotonic() - self._due
        if late <= 0.0 and self._outside <= 0:  # mostly
            return False
        # Of a burst all come in, however long they take together.
        waiting = max(0, self._outside) / self._pressure.capacity if self._pressure.rate < inf else 0.0
        longest = self._longest()
        return late + waiting > longest and min(late, _OWN * (self._processor() - self._used)) + waiting > longest

    def _late(self) -> Overloaded:
        self._cut = True
        return self._refused("behind", "too many came at once")

    def _crowded(self) -> Overloaded:
        return self._refused("in-flight", "as many requests are being answered as one worker may")

    def left(self) -> None:
        """A request that was let in has been answered, or its client has gone."""
        self._in_flight -= 1

    @contextmanager
    def aside(self) -> Generator[None]:
        """While the body of one that entered is on its way: it takes no place of those that are answered.

        So clients that send slowly keep nobody out; how many may wait is bounded by the connections there may be.
        Raises Overloaded at the end where the place is gone; `left` is due in either case.
        """
        self._in_flight -= 1
        try:
            yield
        finally:
            self._in_flight += 1
        if self._in_flight > self._most:
            raise self._crowded()

    @property
    def yielding(self) -> bool:
        """Whether work that nobody waits for should wait itself."""
        return self._full or self._pressure.share > 0.0

    def load(self) -> Load:
        return Load(self._in_flight, self._pressure.delay, self._pressure.share, self._full)

    def _refused(self, reason: str, words: str) -> Overloaded:
        self._turned_away(reason)
        wait = comes_back_in(self._pressure, self._random())
        headers = (("retry-after", str(max(1, round(wait)))), ("retry-after-ms", str(round(wait * 1_000))))
        return Overloaded(f"Not now: {words}. Try again in {wait:.0f} s.", headers=headers)

    def _longest(self) -> float:
        """Seconds that a turn of the loop may take beyond the next look at it."""
        if self._pressure.rate < inf:
            return max(0.0, self._target - PROBE)
        if self._surge <= self._burst:
            return LATEST
        return AGAIN if self._last > _LATE else BEHIND

    def _chance(self, key: int, kind: int) -> float:
        """A key that was not seen in the last windows meets the average: inventing one is of no use."""
        asked = self._asked[kind]
        if key not in asked and len(asked) >= _MOST_KEYS:
            asked.pop(next(iter(asked)))
        known = asked.get(key, 0.0)
        asked[key] = known + 1.0
        return chance(known * _PER_SECOND, self._levels[kind]) if known >= 1.0 else self._pressure.share

    # Looking at the loop

    def start(self) -> None:
        """From within the running loop."""
        self._began, self._used, self._worked = self._monotonic(), self._processor(), self._thread()
        self._next(asyncio.get_running_loop())

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = inf

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = self._looking = loop.time() + PROBE
        self._handle = loop.call_at(self._due, self._turn, loop, TURNS)

    def _turn(self, loop: asyncio.AbstractEventLoop, left: int) -> None:
        self._due = self._monotonic()
        if left > 1 and self._due - self._looking < WINDOW:
            self._handle = loop.call_soon(self._turn, loop, left - 1)
        else:
            self._looked(self._due)
            self._next(loop)

    def _looked(self, now: float) -> None:
        used = self._processor()
        before, self._last = self._last, max(0.0, min(now - self._looking, _OWN * (used - self._used)))
        self._used = used
        self._least = min(self._least, self._last)
        self._probes += 1
        if self._last <= _LATE:
            self._surge, self._burst = 0, self._is_burst()
        if self._surge > self._burst and self._pressure.rate == inf and (both := min(before, self._last)) > _LATE:
            self._end_window(now, both)
        elif self._probes >= _LEAST_PROBES and now - self._began >= WINDOW:
            self._end_window(now, self._least)

    def _is_burst(self) -> float:
        """How many newcomers are one, by what a request cost before they came."""
        known = self._pressure.requests >= _KNOWN
        return min(BURST, max(_KNOWN, _BURST_LASTS * self._pressure.capacity)) if known else float(BURST)

    def _end_window(self, now: float, least: float) -> None:
        worked = self._thread()
        self.window(now - self._began, least, worked - self._worked)
        self._began, self._probes, self._least, self._worked = now, 0, inf, worked

    def window(self, seconds: float, least: float, worked: float) -> None:
        """A stretch is over, of which the loop's thread worked so many seconds: what the least lag in it means."""
        delay = least if self._came >= _FEWEST * seconds / WINDOW else 0.0
        seen = Seen(seconds, delay, self._came, self._let_in, worked, cut=self._cut, burst=self._surge <= self._burst)
        self._pressure = pressed(self._pressure, seen, self._target)
        self._came = self._let_in = self._outside = 0  # one that went away before it entered is forgotten with it
        self._cut = False
        self._divide()
        self._windows += 1
        if self._windows % _MEMORY_EVERY == 0:
            self._full = memory_full(*self._read_memory(), before=self._full)

    def _divide(self) -> None:
        """The rate among the keys: people first, each up to an even part, and what they leave to batches."""
        for asked in self._asked:
            for key, count in list(asked.items()):
                if count * _FADES > _FORGOTTEN:
                    asked[key] = count * _FADES
                else:
                    del asked[key]
        people, batches = ([count * _PER_SECOND for count in asked.values()] for asked in self._asked)
        rate = self._pressure.rate
        first = level(people, rate)
        self._levels = (first, level(batches, rate - let_in(people, first)) if rate < inf else inf)


def _told(headers: Headers) -> tuple[int, int]:
    """Whose request, as a number, and 1 where nobody waits for it. Only looked at under pressure."""
    key, batch = 0, 0
    for name, value in headers:
        if name in (b"authorization", b"x-api-key", b"api-key"):
            key = hash(value)
        elif name == b"x-nearhit-priority":
            batch = int(value.strip().lower() == b"batch")
    return key, batch


def memory_used(groups: Path = _CGROUPS, ours: Path = _OURS) -> tuple[int, int | None]:
    """Bytes that count against the nearest limit of a control group that this process is in, caches of files aside.

    And that limit: of the container, or of the service of systemd. (0, None) where none is set.
    """
    try:
        lines = [line.split(":", 2) for line in ours.read_text("utf-8").splitlines()]
    except OSError:
        return 0, None
    for _, controllers, path in lines:
        found = next((_FILES[name] for name in controllers.split(",") if name in _FILES), None)
        if found is not None and (told := _nearest(groups / found[0], path.strip("/"), found)) is not None:
            return told
    return 0, None


def _nearest(mounted: Path, path: str, files: tuple[str, str, str, str]) -> tuple[int, int] | None:
    """Use and limit of the group or of the first above it that has one. Within a container only the root is there."""
    _, limit, used, cached = files
    own = mounted / path
    for group in (own, *own.parents):
        if (group / limit).exists():
            text = (group / limit).read_text("ascii").strip()
            if text.isdigit() and int(text) < _NO_LIMIT:
                stat = (line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
                aside = next((int(value) for name, value in stat if name == cached), 0)
                return int((group / used).read_text("ascii")) - aside, int(text)
        if group == mounted:
            break
    return None
