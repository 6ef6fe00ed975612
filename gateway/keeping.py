"""Between an answer and a cache entry: what is worth keeping, in which form, and how it comes back.

Kept is one canonical body without the identity of the call that made it; it serves streamed and whole replies alike.
Does not know: stores, vectors, who may read.
"""

from typing import cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cache.types import Entry, Hit, Kept, Miss
from gateway.call import Body, Call
from gateway.flights import Flight
from gateway.stream import fold, read_usage
from policies.money import Usage

_LARGEST = 1 << 20
_encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.Decoder().decode
_IDENTITY = ("id", "created", "model")
_MOST_READ = 4_096
_read: dict[int, tuple[Usage | None, str | None]] = {}  # by entry id, which is never given twice


def kept_from(call: Call, flight: Flight) -> Kept | None:
    """The entry for a landed flight, None when it must not be kept.

    Kept are whole answers in which every choice ended by itself: never one that was cut, cut short by a limit or a
    filter, that calls a tool, that refuses, or that a cascade was not sure of.
    """
    landing = flight.landing
    if landing.ended != "complete" or landing.unsure or not flight.chunks:
        return None
    body = flight.chunks[0].data if flight.chunks[0].final else fold([chunk.data for chunk in flight.chunks])
    if call.operation != "embedding" and not _whole(body):
        return None
    told = body.copy()
    for name in _IDENTITY:
        told.pop(name, None)
    answer = _encode(told)
    if len(answer) > _LARGEST:
        return None
    usage = landing.usage or Usage()
    return Kept(
        answer=answer,
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        cost_nano=landing.cost_nano,
        latency_ms=_took(flight),
        origin=call.id,
    )


class _Told(Struct, frozen=True):
    """What is read out of a kept answer to count it; its text is left alone. `data`: of embeddings."""

    usage: msgspec.Raw = msgspec.Raw(b"null")
    choices: list["_Choice"] = []
    data: list[dict[str, msgspec.Raw]] = []


class _Choice(Struct, frozen=True):
    finish_reason: str | None = None
    message: dict[str, msgspec.Raw] | None = None
    text: str | None = None


def is_answer(kept: bytes) -> bool:
    """Whether these bytes can be told to a client: a store may hold what another version, or somebody else, wrote."""
    try:
        told = _decode_told(kept)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    said = all(choice.message is not None or choice.text is not None for choice in told.choices)
    return kept[:1] == b"{" and said and bool(told.choices or told.data)


def replayed(hit: Hit) -> Flight:
    """A kept answer as a flight that has already landed, with its reader joined.

    An entry names the whole route, since that is what must be the same; which place of several answered is not kept,
    so the first stands for them: a name that has a price, not all of them in one.
    """
    flight = Flight(None, streamed=False)
    entry, landing = hit.entry, flight.landing
    landing.provider, _, landing.model = entry.model.partition(",")[0].partition("/")
    landing.usage, landing.finish = _figures(entry)
    landing.ended = "complete"
    flight.kept = entry.answer
    flight.done = True
    flight.readers = 1
    return flight


def _figures(entry: Entry) -> tuple[Usage | None, str | None]:
    """Usage and finish reason of a kept answer, read once while it is in use."""
    found = _read.get(entry.id)
    if found is None:
        told = _decode_told(entry.answer)
        usage = read_usage({"usage": _decode_any(told.usage)})
        finish = next((choice.finish_reason for choice in reversed(told.choices) if choice.finish_reason), None)
        if len(_read) >= _MOST_READ:
            _read.clear()
        found = _read[entry.id] = (usage, finish)
    return found


def _whole(body: Body) -> bool:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        return False
    return all(map(_ended_well, cast("list[object]", choices)))


# By which services say, in words of their own, that an answer is all there; others (`pause_turn`,
# `MALFORMED_FUNCTION_CALL`, `network_error`) stand beside a `stop` for want of a better word. OpenRouter tells one with
# every answer.
_ENDS = frozenset(("", "stop", "stop_sequence", "end_turn", "complete", "completed", "eos", "eos_token"))


def _ended_well(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    found = cast("Body", choice)
    message, native = found.get("message"), found.get("native_finish_reason")
    if found.get("finish_reason") != "stop" or (native and str(native).lower() not in _ENDS):
        return False
    if message is None:
        return isinstance(found.get("text"), str)
    if not isinstance(message, dict):
        return False
    said = cast("Body", message)
    return bool(said.get("content")) and not said.get("tool_calls") and not said.get("refusal")


_decode_told = msgspec.json.Decoder(_Told).decode


def _took(flight: Flight) -> float:
    step = flight.landing.steps[-1]
    return (step.ended_at - step.sent_at) * 1e3


def with_before(found: Hit | Miss, earlier: Miss | None) -> Hit | Miss:
    """A second look-up, after waiting for another's answer, with the encoder's time that the first took."""
    if earlier is None or earlier.embedded is None:
        return found
    both = earlier.embedded if found.embedded is None else found.embedded.after(earlier.embedded)
    return replace(found, embedded=both)
