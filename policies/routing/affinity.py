"""Which replica should answer: the one that holds the prompt's beginning, unless its queue costs more than that saves.

Knows: chained hashes of prompts, who was lately given what, load in tokens. Does not know: sockets, health, the clock
(`now` in seconds is handed in), what a replica is: a process of our engine or another server behind a URL.

Everything is one cost in milliseconds, so that a choice can be told: "saves 180 ms of prefill, costs 20 ms of queue".
Sources: the cost is that of NVIDIA Dynamo's KV router, the approximate index with chained hashes of pieces of 16 tokens
or 64 characters, at most 256 of them, that of llm-d's scheduler.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

from msgspec import Struct

PIECE_TOKENS = 16
PIECE_CHARS = 64
CHARS_PER_TOKEN = PIECE_CHARS / PIECE_TOKENS
MOST_PIECES = 256
_CAPACITY = 31_250  # prefixes of one router; about 8 MB
_TTL_S = 300.0
_HASH_BYTES = 12


def text_keys(text: str, salt: str) -> list[bytes]:
    """One key for every whole 64 characters; equal keys mean an equal beginning under the same tenant's `salt`."""
    most = min(len(text) // PIECE_CHARS, MOST_PIECES)
    pieces = (text[at * PIECE_CHARS : (at + 1) * PIECE_CHARS].encode("utf-8", "surrogatepass") for at in range(most))
    return list(_chained(pieces, salt))


def token_keys(ids: Sequence[int], salt: str) -> list[bytes]:
    """One key for every whole 16 tokens."""
    most = min(len(ids) // PIECE_TOKENS, MOST_PIECES)
    pieces = (",".join(map(str, ids[at * PIECE_TOKENS : (at + 1) * PIECE_TOKENS])).encode() for at in range(most))
    return list(_chained(pieces, salt))


def _chained(pieces: Iterator[bytes], salt: str) -> Iterator[bytes]:
    previous = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()
    for piece in pieces:
        previous = blake2b(previous + piece, digest_size=_HASH_BYTES).digest()
        yield previous


class PrefixIndex:
    """Who was lately sent which beginnings: an approximation of what each replica's cache holds. Bounded both ways.

    `capacity`: keys in all, least recently used dropped first. `ttl_s`: a key older than that counts as evicted there;
    time is told in halves of it, so one may be given up when it is half as old. Replicas are small numbers, since those
    that hold a beginning are the bits of one: a beginning that all of them hold costs one look, not one for each.
    """

    def __init__(self, capacity: int = _CAPACITY, ttl_s: float = _TTL_S) -> None:
        self._capacity = capacity
        self._half = ttl_s / 2
        self._sent: OrderedDict[Hashable, _Holders] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sent)

    def note(self, keys: Iterable[Hashable], replica: int, now: float) -> None:
        """These pieces were sent to `replica`."""
        sent, bit, half = self._sent, 1 << replica, int(now / self._half)
        for key in keys:
            holders = sent.get(key)
            if holders is None:
                sent[key] = _Holders(half, bit)
                continue
            sent.move_to_end(key)
            if holders.half != half:
                holders.before = holders.lately if holders.half == half - 1 else 0
                holders.half, holders.lately = half, 0
            holders.lately |= bit
        while len(sent) > self._capacity:
            sent.popitem(last=False)

    def groups(self, keys: Iterable[Hashable], now: float) -> list[tuple[int, int]]:
        """The replicas that hold a beginning, as bits, with how many pieces from the first on; the longest last."""
        sent, half, found = self._sent, int(now / self._half), list[tuple[int, int]]()
        alive, count = -1, 0
        for key in keys:
            holders = sent.get(key)
            if holders is None:
                left = 0
            elif holders.half == half:
                left = alive & (holders.lately | holders.before)
            else:
                left = alive & holders.lately if holders.half == half - 1 else 0
            if left != alive:
                if count:
                    found.append((alive & ~left, count))
                if not left:
                    return found
                alive = left
            count += 1
        return [*found, (alive, count)] if count else found

    def matched(self, keys: Iterable[Hashable], now: float) -> dict[int, int]:
        """For each replica that holds any beginning: how many pieces from the first on."""
        return {replica: count for bits, count in self.groups(keys, now) for replica in numbers(bits)}

    def forget(self, *replicas: int) -> None:
        """The caches of these are gone: they restarted, slept, or are no more. One pass over all keys."""
        others = ~sum(1 << replica for replica in set(replicas))
        for key, holders in list(self._sent.items()):
            holders.lately &= others
            holders.before &= others
            if not holders.lately | holders.before:
                del self._sent[key]


class _Holders:
    """Of one beginning, as bits: `lately` in that `half` of a life, `before` in the one before it."""

    __slots__ = ("before", "half", "lately")

    def __init__(self, half: int, lately: int) -> None:
        self.half, self.lately, self.before = half, lately, 0


def numbers(bits: int) -> Iterator[int]:
    """The places of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


class Load(Struct, frozen=True, kw_only=True):
    """One replica now. `queued`: prompt tokens that are to be computed before ours. `running`: sequences decoding.

    `prefill_rate` in tokens/s; `slowdown_ms`: by how much one more running sequence lengthens every token of the rest.
    `wake_ms`: what it takes to wake it, 0 when it is awake.
    """

    prefill_rate: float
    queued: int = 0
    running: int = 0
    slowdown_ms: float = 0.0
    wake_ms: float = 0.0


class Cost(Struct, frozen=True, kw_only=True):
    """Milliseconds until the answer is complete, as far as the choice of replica decides it; `saved` is not paid."""

    replica: int
    prefill: float
    queue: float
    company: float
    wake: float
    saved: float

    @property
    def total(self) -> float:
        return self.prefill + self.queue + self.company + self.wake


def cost(replica: int, prompt: int, matched: int, output: int, load: Load) -> Cost:
    """Of a prompt of `prompt` tokens, `matched` of them cached there, with about `output` tokens to write.

    At least one token is always computed.
    """
    matched = min(matched, max(prompt - 1, 0))
    per_token = 1000 / max(load.prefill_rate, 1e-9)
    return Cost(
        replica=replica,
        prefill=(prompt - matched) * per_token,
        queue=load.queued * per_token,
        company=load.running * load.slowdown_ms * output,
        wake=load.wake_ms,
        saved=matched * per_token,
    )


def rank(
    prompt: int, matched: Mapping[int, int], output: int, loads: Mapping[int, Load], sticky: int | None = None
) -> list[Cost]:
    """Every replica of `loads`, cheapest first. `matched` in tokens. Equal costs: `sticky` first, then fewest running.

    A session's replica decides ties only: it must never outweigh a queue.
    """
    costs = [cost(replica, prompt, matched.get(replica, 0), output, load) for replica, load in loads.items()]
    return sorted(costs, key=lambda one: (one.total, one.replica != sticky, loads[one.replica].running, one.replica))
