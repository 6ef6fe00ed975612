"""Between an answer and a cache entry: what is worth keeping, in which form, and how it comes back.

Kept is one canonical body without the identity of the call that made it; it serves streamed and whole replies alike.
Does not know: stores, vectors, who may read.
"""

from typing import cast

import msgspec

from cache.types import Hit, Kept
from gateway.call import Body, Call, Chunk
from gateway.flights import Flight
from gateway.stream import fold, read_finish, read_usage
from policies.money import Usage

_LARGEST = 1 << 20
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
_IDENTITY = frozenset({"id", "created", "model"})


def kept_from(call: Call, flight: Flight) -> Kept | None:
    """The entry for a landed flight, None when it must not be kept.

    Kept are whole answers in which every choice ended by itself: never one that was cut, cut short by a limit or a
    filter, that calls a tool, or that refuses.
    """
    landing = flight.landing
    if landing.ended != "complete" or not flight.chunks:
        return None
    body = flight.chunks[0].data if flight.chunks[0].final else fold([chunk.data for chunk in flight.chunks])
    if call.operation != "embedding" and not _whole(body):
        return None
    answer = _encode({key: value for key, value in body.items() if key not in _IDENTITY})
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


def replayed(hit: Hit) -> Flight:
    """A kept answer as a flight that has already landed, with its reader joined."""
    flight = Flight(None, streamed=False)
    body = _decode(hit.entry.answer)
    flight.landing.provider, _, flight.landing.model = hit.entry.model.partition("/")
    flight.landing.usage = read_usage(body)
    flight.landing.finish = read_finish(body)
    flight.landing.ended = "complete"
    flight.push(Chunk(body, flight.landing.usage, flight.landing.finish, final=True))
    flight.join()
    flight.end()
    return flight


def _whole(body: Body) -> bool:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        return False
    return all(_ended_well(choice) for choice in cast("list[object]", choices))


def _ended_well(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    found = cast("Body", choice)
    message = found.get("message")
    if found.get("finish_reason") != "stop":
        return False
    if message is None:
        return isinstance(found.get("text"), str)
    if not isinstance(message, dict):
        return False
    said = cast("Body", message)
    return bool(said.get("content")) and not said.get("tool_calls") and not said.get("refusal")


def _took(flight: Flight) -> float:
    step = flight.landing.steps[-1]
    return (step.ended_at - step.sent_at) * 1e3
