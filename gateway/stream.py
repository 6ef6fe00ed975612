"""OpenAI's streams: events to bytes and back, and what the gateway reads out of a body on its way.

Knows: framing, the in-band error, usage and finish reasons. `fold` and `unfold` turn events into a body and a body
into events (see `gateway.stream_fold`). Does not know: sockets, tenants, money beyond token counts.
"""

from typing import cast

import msgspec

from gateway.call import Body
from gateway.errors import GatewayError
from gateway.stream_fold import fold, unfold
from gateway.stream_sse import MAX_EVENT, MAX_LINE, EventParser, StreamGarbage
from policies.money import Usage

__all__ = [
    "DONE",
    "MAX_EVENT",
    "MAX_LINE",
    "EventParser",
    "StreamGarbage",
    "encode_event",
    "fold",
    "in_band_error",
    "parse",
    "read_finish",
    "read_usage",
    "unfold",
]

DONE = b"data: [DONE]\n\n"
DONE_DATA = b"[DONE]"
# More tokens than any model takes or gives; a larger count is a broken upstream, not a bill.
_MOST_TOKENS = 1 << 40
_TOTALS = frozenset(("prompt_tokens", "completion_tokens", "total_tokens"))
_WEB_SEARCHES = frozenset(("web_search_requests", "web_search_calls"))
_FILE_SEARCHES = frozenset(("file_search_requests", "file_search_calls"))
_FREE_CALLS = frozenset(("web_fetch_requests", "mcp_calls"))
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def encode_event(body: Body) -> bytes:
    """One event on the wire: `data: {json}` and a blank line."""
    return b"data: %b\n\n" % _encode(body)


def in_band_error(error: GatewayError) -> bytes:
    """How an error is told after the first event. The stream then ends without `[DONE]`."""
    return b"data: %b\n\n" % error.body()


def parse(data: bytes) -> Body:
    """The JSON object of one event. Raises StreamGarbage for anything else."""
    try:
        found = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StreamGarbage("sent what is not JSON") from error
    if not isinstance(found, dict):
        raise StreamGarbage("sent JSON that is not an object")
    return cast("Body", found)


def read_finish(body: Body) -> str | None:
    """The finish reason in an event or body: the last choice that has one."""
    found = None
    choices = body.get("choices")
    if isinstance(choices, list):
        for choice in cast("list[object]", choices):
            if isinstance(choice, dict):
                reason = cast("Body", choice).get("finish_reason")
                if isinstance(reason, str):
                    found = reason
    return found


def read_usage(body: Body) -> Usage | None:
    """Token counts of an event or body; None when absent or impossible (not whole numbers, negative, absurd).

    A part that is larger than its whole is ignored rather than believed: those tokens then count at the full price.
    """
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return None
    usage = cast("Body", usage)
    prompt = _count(usage.get("prompt_tokens"))
    completion = _count(usage.get("completion_tokens", 0))
    if prompt is None or completion is None:
        return None
    if not usage.keys() - _TOTALS:  # all that most servers tell
        return Usage(prompt=prompt, completion=completion)
    details = usage.get("prompt_tokens_details")
    cached = _part(details, "cached_tokens", prompt)
    if not cached:
        # DeepSeek and Together tell their prefix caches at the top level.
        cached = _part(usage, "prompt_cache_hit_tokens", prompt) or _part(usage, "cached_tokens", prompt)
    cache_write = _part(details, "cache_write_tokens", prompt - cached)
    made = usage.get("completion_tokens_details")
    web, files, others = _ran(usage)
    return Usage(
        prompt=prompt,
        cached=cached,
        cache_write=cache_write,
        completion=completion,
        reasoning=_part(made, "reasoning_tokens", completion),
        cache_write_1h=_part(usage.get("cache_creation"), "ephemeral_1h_input_tokens", cache_write),
        audio_in=_part(details, "audio_tokens", prompt),
        audio_out=_part(made, "audio_tokens", completion),
        image_in=_part(details, "image_tokens", prompt),
        image_out=_part(made, "image_tokens", completion),
        web_searches=web,
        file_searches=files,
        unpriced=others,
    )


def _ran(usage: Body) -> tuple[int, int, int]:
    """What the service has done beside reading and writing, for a fee each: web searches, file searches, all else.

    Anthropic and OpenRouter tell `server_tool_use`, xAI `server_side_tool_usage_details`, Perplexity its queries. What
    has another name than those known to be free or priced counts as something whose price nobody knows.
    """
    web, files, others = _of(usage, "num_search_queries"), 0, _of(usage, "unpriced_calls")
    for told in (usage.get("server_tool_use"), usage.get("server_side_tool_usage_details")):
        for name in cast("Body", told) if isinstance(told, dict) else ():
            count = _of(cast("Body", told), name)
            if name in _WEB_SEARCHES:
                web += count
            elif name in _FILE_SEARCHES:
                files += count
            elif name not in _FREE_CALLS:
                others += count
    return web, files, others


def _of(counts: Body, name: str) -> int:
    return _count(counts.get(name)) or 0


def _count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS:
        return value
    return None


def _part(details: object, name: str, whole: int) -> int:
    if not isinstance(details, dict):
        return 0
    count = _count(cast("Body", details).get(name))
    return count if count is not None and count <= whole else 0
