"""How far hits are to be trusted, measured: counts per tenant and model, their share of wrong ones and its bounds.

Knows sums, Wilson's interval and that a judge errs. Does not know who counts, or what is done about it.
"""

import hashlib
import math
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from cache.types import Group, Trust

_Z = 1.959964  # the 97.5 % point of the normal distribution
_DOUBT = 0.01
_FEWEST = 20  # hits before people's reports are a share of anything
_SUMS = (
    *("hits", "audited", "audited_wrong", "undecided", "reported_wrong", "confirmed", "explored", "explored_same"),
    *("flips", "quarantines", "aliases", "alerts"),
)


def name_of(group: Group) -> bytes:
    """Under which the store keeps a group's counts."""
    return b"t:" + hashlib.sha256(msgspec.msgpack.encode(group)).digest()


class TrustForm:
    """Implements `cache.folded.Form`: an event is what is to be added."""

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(Trust)

    def fresh(self) -> Trust:
        return Trust()

    def fold(self, value: Trust, event: Trust) -> Trust:
        return Trust(**{name: getattr(value, name) + getattr(event, name) for name in _SUMS})

    def encode(self, value: Trust) -> bytes:
        return msgspec.msgpack.encode(value)

    def decode(self, blob: bytes) -> Trust | None:
        try:
            return self._decoder.decode(blob)
        except msgspec.DecodeError:
            return None


def measured(trust: Trust, budget: float) -> Trust:
    """`trust` with its share of wrong hits among those served by meaning, and the bounds of 95 %.

    From audits, which are drawn by chance, corrected for how often their judge errs. What people report is no sample,
    but every report is a wrong hit: their share of all hits is a lower bound of its own.
    """
    reported = min(1.0, trust.reported_wrong / trust.hits) if trust.hits else 0.0
    if not trust.audited:
        rate = reported if trust.reported_wrong else None
        low, high = (reported, 1.0) if trust.reported_wrong else (None, None)
        return replace(trust, rate=rate, low=low, high=high, budget=budget)
    flip = min(0.45, trust.flips / trust.audited)
    low, high = wilson(trust.audited_wrong, trust.audited)
    rate, low, high = (max(reported, _corrected(p, flip)) for p in (trust.audited_wrong / trust.audited, low, high))
    return replace(trust, rate=rate, low=low, high=high, budget=budget)


def pooled(trusts: Iterable[Trust], budget: float) -> Trust | None:
    """Several groups as one, measured like each of them; None where there are none."""
    form, found = TrustForm(), None
    for trust in trusts:
        found = trust if found is None else form.fold(found, trust)
    return None if found is None else measured(found, budget)


def broken(trust: Trust, budget: float) -> bool:
    """Whether more hits are wrong than allowed, beyond doubt: so many wrong audits, judge's errors counted, would come
    about with a chance of 1 % at most were it not so; or people have reported more than that share of all hits.
    """
    return proven(trust, budget) or (trust.hits >= _FEWEST and trust.reported_wrong > budget * trust.hits)


def proven(trust: Trust, budget: float) -> bool:
    """The same by audits alone: what a scope's brake goes by. People's reports shut what is near, and no more."""
    flip = min(0.45, trust.flips / trust.audited) if trust.audited else 0.0
    share = min(1.0, budget + flip * (1.0 - 2.0 * budget))
    return trust.audited_wrong > 0 and _tail(trust.audited_wrong, trust.audited, share) <= _DOUBT


def _tail(least: int, drawn: int, share: float) -> float:
    """The chance of `least` or more among `drawn` (binomial)."""
    if not 0.0 < share < 1.0:
        return share
    below = sum(
        math.exp(
            math.lgamma(drawn + 1)
            - math.lgamma(k + 1)
            - math.lgamma(drawn - k + 1)
            + k * math.log(share)
            + (drawn - k) * math.log1p(-share)
        )
        for k in range(min(least, drawn + 1))
    )
    return max(0.0, 1.0 - below)


def wilson(wrong: float, judged: float) -> tuple[float, float]:
    """Wilson's score interval: honest also for few and for none wrong (Wilson 1927)."""
    share, spread = wrong / judged, _Z * _Z / judged
    middle = share + spread / 2
    half = _Z * math.sqrt(max(0.0, share * (1 - share)) / judged + spread / (4 * judged))
    low, high = (middle - half) / (1 + spread), (middle + half) / (1 + spread)
    return min(share, max(0.0, low)), max(share, min(1.0, high))


def _corrected(seen: float, flip: float) -> float:
    """The share behind one that was seen by a judge who is wrong with chance `flip` (Rogan and Gladen 1978)."""
    return min(1.0, max(0.0, (seen - flip) / (1.0 - 2.0 * flip)))
