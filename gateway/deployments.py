"""What is known of every place a request can go to: load, speed, failures, how long it is to be left alone.

Knows: what attempts report and what places say of themselves (`gateway.fleet_load`). Does not know: routes, strategies,
money. One registry per worker, bounded; the `Place`s of routes that lead to a target are kept current by it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Literal

from msgspec import Struct

from gateway.catalog import Target
from policies.routing import CREDENTIAL_REFUSED, MENDABLE, NO_SUCH_MODEL, UNKNOWN, Place
from policies.routing.affinity import PrefixIndex
from policies.routing.circuit import Circuit, State
from policies.routing.samples import Samples
from policies.routing.takeover import Takeover

_MOST = 4_096
_PATIENCE = 1.0  # seconds a place is left alone that asks for patience without saying how long
_LONGEST_PATIENCE = 300.0  # of an upstream's Retry-After that is believed
_PATIENT = "asked for patience"
_REFUSED_FOR = 10.0  # seconds a place is left alone that refuses our credential, or has no such model
Told = Literal["succeeded", "failed", "patience", "refused", "unknown", "nothing"]


class Load(Struct, frozen=True, kw_only=True):
    """What a place says of itself: requests that run and wait there, and how full its KV cache is, of 1."""

    running: float
    waiting: float
    kv_used: float = 0.0


class Doing(Struct, frozen=True, kw_only=True):
    """How a place does at this moment; None where nothing was measured of late.

    `open_for_s`: seconds until it may be asked again; `patient_for_s`: the part of them that it asked for itself;
    `running`, `waiting`, `kv_used`: as it says of itself.
    """

    target: str
    server: str
    circuit: State
    open_for_s: float
    patient_for_s: float
    probing: bool
    failed_in_a_row: int
    in_flight: int
    running: float
    waiting: float
    kv_used: float
    ttft_ms: float | None
    ttft_p90_ms: float | None
    ttft_p95_ms: float | None
    tpot_ms: float | None
    tpot_p90_ms: float | None
    tpot_p95_ms: float | None


class Deployment:
    """One target. Times are monotonic seconds."""

    def __init__(self, target: Target, number: int) -> None:
        self.target = target
        self.number = number
        self.circuit = Circuit()
        self.takeover = Takeover()
        self.in_flight = 0
        self.queued_tokens = 0
        self.patient_until = 0.0
        self.patient_as = ""  # why
        self.load = Load(running=0.0, waiting=0.0)
        self._ttft, self._tpot = Samples(), Samples()
        self._speed = (UNKNOWN,) * 4
        self._measured = 0.0
        self._unread = False  # something was measured since
        self._shut = False  # as routes were told last
        self.places: list[Place] = []

    def attach(self, place: Place) -> None:
        self.places.append(place)
        self._tell()

    def sent(self, prompt: int, now: float) -> None:
        """A request of so many prompt tokens goes there."""
        self.circuit.sent(now)
        self.in_flight += 1
        self.queued_tokens += prompt
        self._tell_changed()

    def began(self, prompt: int, ttft: float, now: float) -> None:
        """Its first token came after `ttft` seconds."""
        self.queued_tokens -= prompt
        self.circuit.succeeded(now)
        if self.patient_until and self.patient_as in MENDABLE:
            self.patient_until = 0.0
        self._ttft.add(ttft * 1e3, now)
        self._unread = True
        self._tell_changed()

    def ended(self, told: Told, now: float, *, prompt: int = 0, patience: float | None = None) -> None:
        """It is over, and what that says about the place. `prompt`: where it never began."""
        self.in_flight -= 1
        self.queued_tokens -= prompt
        if told == "failed":
            self.circuit.failed(now)
        elif told == "succeeded":
            self.circuit.succeeded(now)
        else:
            self.circuit.unknown()
        if told == "patience":
            until = now + min(_LONGEST_PATIENCE, _PATIENCE if patience is None else patience)
            # Who names no time takes nothing off one that was named before.
            self.patient_until = until if patience is not None else max(until, self.patient_until)
            self.patient_as = _PATIENT
        elif told in ("refused", "unknown"):
            self.patient_until = now + _REFUSED_FOR
            self.patient_as = CREDENTIAL_REFUSED if told == "refused" else NO_SUCH_MODEL
        self._tell_changed()

    def wrote(self, tokens: int, seconds: float, now: float) -> None:
        """So many tokens after the first took that long."""
        if tokens > 0:
            self._tpot.add(seconds * 1e3 / tokens, now)
            self._unread = True

    def loaded(self, load: Load) -> None:
        self.load = load
        self._tell()

    def came_back(self, now: float) -> None:
        self.circuit.came_back(now)
        self._tell()

    def allows(self, now: float) -> bool:
        return now >= self.patient_until and self.circuit.allows(now)

    def refresh(self, now: float, *, speed: bool = True) -> None:
        """Every second: what is old falls out of what was measured, and a probe that was lost is given up.

        `speed`: somebody is about to look at how fast it is, which is sorted out then and not for every answer.
        """
        if now - self._measured >= 1.0:
            if self.circuit.probe_since and not self.circuit.is_probing(now):
                self.circuit.unknown()
            self._measure(now)
        elif speed and self._unread:
            self._measure(now)

    def _measure(self, now: float) -> None:
        self._measured, self._unread = now, False
        ttft, slow_ttft = self._ttft.percentiles(now, 0.5, 0.9)
        tpot, slow_tpot = self._tpot.percentiles(now, 0.5, 0.9)
        self._speed = (ttft, slow_ttft, tpot, slow_tpot)
        self._tell()

    @property
    def slow_ttft(self) -> float:
        """The 95th percentile of the time to the first token in seconds; negative where unknown."""
        (slow,) = self._ttft.percentiles(self._measured, 0.95)
        return slow / 1e3

    def told(self, now: float) -> Doing:
        """For people."""
        ttft = self._ttft.percentiles(now, 0.5, 0.9, 0.95)
        tpot = self._tpot.percentiles(now, 0.5, 0.9, 0.95)
        ttft_ms, ttft_p90_ms, ttft_p95_ms, tpot_ms, tpot_p90_ms, tpot_p95_ms = (
            None if value < 0 else round(value, 1) for value in (*ttft, *tpot)
        )
        return Doing(
            target=str(self.target),
            server=self.target.replica,
            circuit=self.circuit.state(now),
            open_for_s=round(max(0.0, self.circuit.open_until - now, self.patient_until - now), 1),
            patient_for_s=round(max(0.0, self.patient_until - now), 1),
            probing=self.circuit.is_probing(now),
            failed_in_a_row=self.circuit.in_a_row,
            in_flight=self.in_flight,
            running=self.load.running,
            waiting=self.load.waiting,
            kv_used=self.load.kv_used,
            ttft_ms=ttft_ms,
            ttft_p90_ms=ttft_p90_ms,
            ttft_p95_ms=ttft_p95_ms,
            tpot_ms=tpot_ms,
            tpot_p90_ms=tpot_p90_ms,
            tpot_p95_ms=tpot_p95_ms,
        )

    def _tell_changed(self) -> None:
        """Bring every route's view up to date after a request: of a place that is well only how busy it is changes."""
        if self.circuit.open_until or self.patient_until or self._shut:
            self._tell()
            return
        for place in self.places:
            place.in_flight, place.queued_tokens = self.in_flight, self.queued_tokens

    def _tell(self) -> None:
        """Bring every route's view of it up to date."""
        circuit, load = self.circuit, self.load
        self._shut = bool(circuit.open_until or self.patient_until or circuit.probe_since)
        patient = self.patient_until > circuit.open_until
        for place in self.places:
            place.shut_until = self.patient_until if patient else circuit.open_until
            place.shut = self.patient_as if patient else "circuit open"
            place.probing = bool(circuit.probe_since)
            place.in_flight, place.queued_tokens = self.in_flight, self.queued_tokens
            place.running, place.waiting, place.kv_used = load.running, load.waiting, load.kv_used
            place.ttft_ms, place.slow_ttft_ms, place.tpot_ms, place.slow_tpot_ms = self._speed


class Deployments:
    """All of them, by target; the longest unused idle one makes room. `held`: which prompts were sent where."""

    def __init__(self, *, monotonic: Callable[[], float]) -> None:
        self._known: OrderedDict[Target, Deployment] = OrderedDict()
        self._monotonic = monotonic
        self._free: list[int] = []
        self.held = PrefixIndex()

    def __iter__(self) -> Iterator[Deployment]:
        return iter(list(self._known.values()))

    def of(self, target: Target) -> Deployment:
        found = self._known.get(target)
        if found is None:
            number = self._free.pop() if self._free else len(self._known)
            found = self._known[target] = Deployment(target, number)
            self._make_room()
        return found

    def forget_places(self) -> None:
        """Routes are being laid out anew."""
        for deployment in self._known.values():
            deployment.places.clear()

    def told(self) -> list[Doing]:
        """For people: every place that has been used, and how it does."""
        now = self._monotonic()
        for deployment in self._known.values():
            deployment.refresh(now)
        return [deployment.told(now) for deployment in self._known.values()]

    def left_alone(self) -> dict[str, int]:
        """How many places of each provider are not asked at the moment."""
        now, found = self._monotonic(), dict[str, int]()
        for deployment in self:
            name = deployment.target.provider
            found[name] = found.get(name, 0) + (not deployment.allows(now))
        return found

    def _make_room(self) -> None:
        if len(self._known) <= _MOST:
            return
        oldest = list(self._known.values())[: _MOST // 4]
        gone = [deployment for deployment in oldest if not deployment.in_flight and not deployment.places]
        for deployment in gone:
            del self._known[deployment.target]
        numbers = [deployment.number for deployment in gone]
        self.held.forget(*numbers)  # before somebody else gets them
        self._free += numbers
