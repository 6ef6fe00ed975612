"""What the journal holds, and how one record becomes bytes: `length u32 | crc32c u32 | msgpack`, big endian.

Knows: shapes and framing. Does not know: files, when anything is written.
Every record says something that is true for good, so that reading any prefix of a journal twice changes nothing.
`gc=False`: nothing in a record refers back to it, and thousands wait for the database at a time; looking through them
for cycles took a sixth of the event loop's time.
"""

import struct
from collections.abc import Iterator

import msgspec
from crc32c import crc32c
from msgspec import Struct

from policies.money import Price, Tier, Usage

_HEADER = struct.Struct(">II")
HEADER_BYTES = _HEADER.size
LARGEST = 1 << 20


class Opened(Struct, array_like=True, frozen=True, gc=False, tag="O"):
    """First record of every segment: whose journal this is."""

    boot: str
    host: str
    at: float


class Rates(Struct, array_like=True, frozen=True, gc=False):
    """A price, compactly; `tiers` are (start, input, output, cached, cache_write).

    `terms`: the whole price, where it has more than these: classes priced apart, fees of searches.
    """

    id: str
    input: int
    output: int
    cached: int
    cache_write: int
    request: int
    status: str
    tiers: tuple[tuple[int, int, int, int, int], ...] = ()
    terms: Price | None = None


class Dispatch(Struct, array_like=True, frozen=True, gc=False, tag="D"):
    """About to send: on disk before the first byte leaves. `windows` are pinned here, whenever it settles.

    `tags` are `name=value`; `charged` as in `Call`.
    """

    id: str
    request_id: str
    admitted: float
    windows: tuple[str, ...]
    reserve: int
    input_bound: int
    max_output: int
    provider: str
    model: str
    price: Rates
    team: str
    project: str
    key_id: str
    user: str | None
    operation: str
    asked: str
    tags: tuple[str, ...] = ()
    charged: bool = True


class Progress(Struct, array_like=True, frozen=True, gc=False, tag="P"):
    """What a running stream has shown so far: the lower bound of what it will cost."""

    id: str
    prompt: int
    completion: int


class Settle(Struct, array_like=True, frozen=True, gc=False, tag="S"):
    """The end of an attempt; `number` counts ends in the order they are shipped.

    `tokens`: prompt, cached, cache_write, completion, reasoning; then, where there are any, the classes of `Usage`.
    `price`: what it was charged by, where that is not the dispatch's.
    """

    number: int
    id: str
    at: float
    amount: int
    tokens: tuple[int, ...]
    source: str
    ended: str
    provider_id: str | None
    note: str | None
    price: Rates | None = None


class Shipped(Struct, array_like=True, frozen=True, gc=False, tag="C"):
    """Every end up to and with this number is in the database."""

    number: int


Record = Opened | Dispatch | Progress | Settle | Shipped
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


def frame(record: Record) -> bytes:
    """The bytes of one record."""
    body = _encode(record)
    return _HEADER.pack(len(body), crc32c(body)) + body


def unframe(data: bytes | memoryview) -> Iterator[Record | None]:
    """The records of a segment in order. None for one that is damaged but followed by a sound one; stops at the tail.

    A torn tail (power cut in the middle of a write) is not an error: it was never promised to anyone.
    """
    view, at, damaged = memoryview(data), 0, 0
    while at + HEADER_BYTES <= len(view):
        length, check = _HEADER.unpack_from(view, at)
        end = at + HEADER_BYTES + length
        if length == 0 or length > LARGEST or end > len(view):
            return
        record = _sound(view[at + HEADER_BYTES : end], check)
        if record is None:
            damaged += 1
        else:
            yield from [None] * damaged
            damaged = 0
            yield record
        at = end


def _sound(body: memoryview, check: int) -> Record | None:
    if crc32c(body) != check:
        return None
    try:
        return _decode(body)
    except msgspec.ValidationError:
        return None


def rates(price: Price) -> Rates:
    tiers = tuple((tier.start, tier.input, tier.output, tier.cached_input, tier.cache_write) for tier in price.tiers)
    plain = price.apart is None and not price.bands and all(tier.apart is None for tier in price.tiers)
    plain = plain and price.web_search is None and price.file_search is None
    return Rates(
        price.id,
        price.input,
        price.output,
        price.cached_input,
        price.cache_write,
        price.request,
        price.status,
        tiers,
        None if plain else price,
    )


def price_of(
    name: str,
    numbers: tuple[int, int, int, int, int],
    tiers: "list[list[int]] | tuple[tuple[int, ...], ...]",
    terms: object = None,
) -> Price:
    """A price from its stored form: `numbers` are input, output, cached, cache_write, request.

    `terms`, where there are any, say it all. Raises msgspec.ValidationError for terms that are no price.
    """
    if terms is not None:
        return msgspec.convert(terms, Price)
    return Price(
        id=name,
        input=numbers[0],
        output=numbers[1],
        cached_input=numbers[2],
        cache_write=numbers[3],
        request=numbers[4],
        tiers=tuple(Tier(start=t[0], input=t[1], output=t[2], cached_input=t[3], cache_write=t[4]) for t in tiers),
    )


def tokens(usage: Usage) -> tuple[int, ...]:
    told = usage.prompt, usage.cached, usage.cache_write, usage.completion, usage.reasoning
    classes = usage.classes
    return told if classes is None else told + classes
