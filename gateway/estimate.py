"""The most a call can cost in tokens, before anything is sent.

An upper bound by construction: a byte-level tokenizer never makes more than one token of a byte, and the output is
capped by a number that is always sent upstream. What bytes do not bound has a bound of its own: pictures the largest
that models read, recordings their length at the fewest bytes; files, films and what a service's own tools read, the
model's window.
Does not know: budgets, tokenizers, providers.
"""

import math
import re
from collections.abc import Callable
from typing import Literal, cast

from msgspec import Struct, structs

from gateway.call import HEARD, PAINTED, PASSED, Body, Call
from gateway.dialects.passed import FILES
from gateway.errors import InvalidRequest
from gateway.wire_shapes import MOST_TOKENS
from policies.money import Price, bound_nano

_PER_MESSAGE = 16  # tokens a chat template may add around a message
_PER_PICTURE = 16_384  # the most that a model makes of one, whatever its bytes: those that read every pixel
_PER_PICTURE_BY_TILE = 48_169  # gpt-4o-mini counts 5,667 for each of eight tiles, and 2,833
_LARGEST_WINDOW = 1 << 20  # tokens, where nobody knows how much a model reads
_EMBEDDED_OVERHEAD = 8
_PER_IMAGE = 8_192  # tokens of the largest image in the best quality, and more
_FRAMES = 9  # of a moving picture, where nobody says
_DIGITS = 4
_BYTES_OF_SOUND = 100  # per token of a transcription; a second has ten tokens, and at least 1,000 bytes
_SOUND_IN_BASE64 = 40  # characters per token in a chat; a second has at most 32 tokens (Gemini), and 1,333 at least
_LENGTHENED = frozenset({"mp3", "wav"})  # formats in which a second of silence takes bytes as well
_ABOUT_TOOLS = 1_024  # tokens a service adds to tell a model of tools and formats; the longest known text takes 735
_RUN_BY_CLIENTS = ("bash_", "text_editor_", "computer", "memory_", "local_shell", "apply_patch")
_ADVISING = "advisor_"  # Anthropic's tool by which another model is asked
_MOST_SEARCHES = 64  # in one answer, where the client sets no limit; the longest that are known make fewer
_LIMIT_OF_SEARCHES = 10_000  # a client's own limit beyond it is none that anybody would reach
# Groq's systems that search where they see fit, and its tool: they read what they find, in as many rounds as they like.
_RESEARCHING = re.compile(r"(?:^|/)compound(?:-beta)?(?:-mini)?$")
_BROWSING = "browser_search"
ALWAYS_SEARCHING = re.compile(r"-search-(?:preview|api)")  # OpenAI's models that search for every answer, asked or not
_SPOKEN_PER_BYTE = 4  # tokens of sound made of a byte of text; at the usual pace it is one and a half
_SLOWEST = 0.25
_LEAST_OUTPUT = 16  # tokens; a shorter answer is not worth the prompt


class Bound(Struct, frozen=True, kw_only=True):
    """`output` counts all choices together. `injected`: the cap added because the client named none, under `field`.

    `searches`: how many the service may make, for a fee each.
    """

    input: int
    output: int
    searches: int = 0
    field: Literal["max_tokens", "max_completion_tokens"] = "max_completion_tokens"
    injected: int | None = None


def largest_window() -> int:
    """Where nobody knows which model reads."""
    return _LARGEST_WINDOW


def bound(call: Call, default_output: int, model: str = "", window: Callable[[], int | None] = largest_window) -> Bound:
    """Upper bounds of a call's input and output tokens. `default_output` caps each choice that has no cap.

    `model`: the upstream's name for it; `window`: how many tokens it reads at most (None: unknown), asked only where
    nothing else bounds the prompt.
    """
    if call.operation == "embedding":
        return Bound(input=call.size + _EMBEDDED_OVERHEAD * _inputs(call.body.get("input")), output=0)
    if call.operation in PASSED:
        return _of_passed(call)
    body, read = call.body, call.size
    choices = _whole(body.get("n"), 1)
    field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    if call.operation == "completion":
        prompts = _inputs(body.get("prompt"))
        choices = max(choices, _whole(body.get("best_of"), 1)) * prompts
        read += _PER_MESSAGE * prompts
        asked, injected = body.get("max_tokens"), 16  # the legacy endpoint's documented default
    else:
        more, tools = _around(cast("list[object]", body.get("messages") or []), model), _about_tools(call)
        if more is None or tools is None or _RESEARCHING.search(model):
            read = window() or _LARGEST_WINDOW
        else:
            read = max(0, read + more) + tools
        asked = body.get("max_completion_tokens")
        if asked is None:
            asked = body.get("max_tokens")
        injected = default_output
    searches = 0 if call.operation == "completion" else _searches(call, model)
    if isinstance(asked, int):
        longest = asked if call.native is None else _longest(asked, call)
        return Bound(input=read, output=longest * choices, searches=searches, field=field)
    return Bound(input=read, output=injected * choices, searches=searches, field=field, injected=injected)


def _longest(asked: int, call: Call) -> int:
    """Of one choice, by whichever of the models that Anthropic is to ask."""
    return max([asked, *(min(_whole(row.get("max_tokens"), 0), MOST_TOKENS) for row in _fallbacks(call))])


def _of_passed(call: Call) -> Bound:
    """Of a recording its seconds or tokens, at the fewest bytes that either takes; of texts their bytes.

    Of speech its bytes as well, and the sound that is made of them, which some models are paid for. Of a picture that
    is sent the most that any model makes of one, of each that is painted the largest.
    """
    if call.operation in HEARD:
        return Bound(input=call.size // _BYTES_OF_SOUND + 1, output=call.size // _BYTES_OF_SOUND + 1)
    if call.operation == "speech":
        speed = call.body.get("speed")
        slow = max(_SLOWEST, min(1.0, float(speed))) if isinstance(speed, int | float) else 1.0
        spoken = len(str(call.body.get("input") or "").encode("utf-8", "replace"))
        return Bound(input=call.size, output=math.ceil(spoken * _SPOKEN_PER_BYTE / slow))
    if call.operation not in PAINTED:
        return Bound(input=call.size, output=0)
    files = cast("list[tuple[str, str, str, bytes]]", call.body.get(FILES) or [])
    read = call.size - sum(len(content) for *_, content in files) + len(files) * _PER_PICTURE
    images = _told(call.body.get("n"), 1)
    frames = _told(call.body.get("frame_count"), _FRAMES) if call.body.get("output_format") == "gif" else 1
    return Bound(input=read, output=images * frames * _PER_IMAGE)


def _told(value: object, default: int) -> int:
    """A form's fields are text."""
    return (
        int(value) if isinstance(value, str) and value.isdecimal() and len(value) < _DIGITS else _whole(value, default)
    )


def within(limits: Bound, price: Price, headroom: int) -> Bound | None:
    """The same with an injected cap that `headroom` nano-USD can pay for; None where that is no answer any more.

    Only a cap of ours may be lowered: what the client asked for is its own.
    """
    if limits.injected is None or limits.output <= 0:
        return None
    choices = limits.output // limits.injected
    low, high = 0, limits.injected - 1
    while low < high:
        middle = (low + high + 1) // 2
        if bound_nano(limits.input, middle * choices, price, limits.searches) <= headroom:
            low = middle
        else:
            high = middle - 1
    if low < _LEAST_OUTPUT:
        return None
    return structs.replace(limits, output=low * choices, injected=low)


def asked_output(call: Call, default: int) -> int:
    """Output tokens the client allows in all; `default` per choice where it says nothing. A guess, not a bound."""
    if call.operation == "embedding" or call.operation in PASSED:
        return 0
    asked = call.body.get("max_completion_tokens")
    if asked is None:
        asked = call.body.get("max_tokens")
    return _whole(asked, default) * _whole(call.body.get("n"), 1)


def _inputs(value: object) -> int:
    """How many prompts a legacy `prompt` or an embedding's `input` holds: a list of numbers is one, else each item."""
    if isinstance(value, list):
        items = cast("list[object]", value)
        return 1 if items and isinstance(items[0], int) else max(1, len(items))
    return 1


def _around(messages: list[object], model: str) -> int | None:
    """Tokens beyond the bytes of the body, negative where those say little; None: something in it has no bound."""
    total = _PER_MESSAGE * (len(messages) + 1)
    for message in messages:
        content = cast("Body", message).get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            for part in cast("list[object]", content):
                more = _attached(cast("Body", part), model) if isinstance(part, dict) else 0
                if more is None:
                    return None
                total += more
    return total


def _about_tools(call: Call) -> int | None:
    """Tokens a service adds for tools and formats; None: a tool that runs there (a search) reads what it finds."""
    given = call.body.get("tools")
    added = _ABOUT_TOOLS if given or call.body.get("functions") or call.body.get("response_format") else 0
    if call.native is None:
        return None if given and any(tool.get("type") == _BROWSING for tool in _dicts(given)) else added
    if (call.need is not None and call.need.unbounded) or call.native.apart.get("context_management"):
        return None
    tools = [_dict(tool) for tool in cast("list[object]", call.native.apart.get("tools") or ())]
    if call.native.apart.get("mcp_servers") or not all(map(_runs_at_client, tools)):
        return None
    return added + _ABOUT_TOOLS * len(tools)


def _runs_at_client(tool: Body) -> bool:
    """OpenAI's shell runs there only in a container, which is named then; a search of the client's says whose it is."""
    kind = str(tool.get("type"))
    if kind == "shell":
        return _dict(tool.get("environment") or {"type": "local"}).get("type") == "local"
    return kind.startswith(_RUN_BY_CLIENTS) or (kind == "tool_search" and tool.get("execution") == "client")


def _searches(call: Call, model: str) -> int:
    """How many searches a request allows a service. OpenAI's limit is of all calls, Anthropic's of a tool's."""
    if call.native is None:
        given = call.body.get("tools")
        asked = given and any(_is_search(str(tool.get("type"))) for tool in _dicts(given))
        asked = asked or call.body.get("web_search_options") is not None
        return _MOST_SEARCHES if asked or ALWAYS_SEARCHING.search(model) or _RESEARCHING.search(model) else 0
    native = call.native
    theirs = native.dialect == "responses"  # whose items may bring tools as well
    uses = [
        _limit(tool.get("max_uses"), _MOST_SEARCHES)
        for tool in _dicts((theirs and native.apart.get("tools")) or native.body.get("tools"))
        if _is_search(str(tool.get("type")))
    ]
    most = native.body.get("max_tool_calls") if theirs else None
    return _limit(most, sum(uses)) if uses else 0


def _is_search(kind: str) -> bool:
    """To search among the tools themselves costs no fee."""
    return "search" in kind and not kind.startswith("tool_search")


def _limit(told: object, default: int) -> int:
    """What a client says of how often; nobody has looked at it: below nothing it would pay for the rest."""
    asked = _whole(told, default)
    return min(asked, _LIMIT_OF_SEARCHES) if asked >= 0 else default


def substitutes(call: Call) -> list[str]:
    """Models that Anthropic is to ask where the one that is asked for declines."""
    return [str(row.get("model")) for row in _fallbacks(call)]


def named_beside(call: Call) -> list[tuple[str, str]]:
    """Models that Anthropic is to ask besides, each with where it is named. Raises InvalidRequest for unknown forms."""
    native = call.native if call.native is not None and call.native.dialect == "messages" else None
    body = call.body if native is None else native.body
    found = [
        (f"tools[{at}].model", str(tool.get("model")))
        for at, tool in enumerate(_dicts(body.get("tools")))
        if str(tool.get("type")).startswith(_ADVISING)
    ]
    given = None if native is None else native.body.get("fallbacks")
    if given is None:
        return found
    rows = _dicts(given)
    if not isinstance(given, list) or len(rows) < len(cast("list[object]", given)):
        raise InvalidRequest("'fallbacks' must be a list of objects with a 'model'.", param="fallbacks")
    for at, row in enumerate(rows):
        if not isinstance(row.get("model"), str):
            where = f"fallbacks[{at}].model"
            raise InvalidRequest(f"'{where}' must be the name of a model.", param=where)
        found.append((f"fallbacks[{at}].model", str(row["model"])))
    return found


def _fallbacks(call: Call) -> list[Body]:
    native = call.native
    return _dicts(native.body.get("fallbacks")) if native is not None and native.dialect == "messages" else []


def _attached(part: Body, model: str) -> int | None:
    """What a part counts beyond its bytes: a picture or a recording in it is not read byte by byte."""
    kind = part.get("type")
    if kind in ("file", "video_url"):
        return None
    if kind == "image_url":
        url = str(_dict(part.get("image_url")).get("url") or "")
        inline = len(url) - url.find(",") - 1 if url.startswith("data:") else 0
        return (_PER_PICTURE_BY_TILE if "gpt-4o-mini" in model else _PER_PICTURE) - inline
    if kind == "input_audio":
        audio = _dict(part.get("input_audio"))
        data = len(str(audio.get("data") or ""))
        return data // _SOUND_IN_BASE64 + 1 - data if audio.get("format") in _LENGTHENED else None
    return 0


def _dict(value: object) -> Body:
    return cast("Body", value) if isinstance(value, dict) else {}


def _dicts(value: object) -> list[Body]:
    rows = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Body", row) for row in rows if isinstance(row, dict)]


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def text_size(data: Body) -> int:
    """Bytes of generated text in an event or a body: never fewer than the tokens it took to make it."""
    return sum(_said(choice) for choice in cast("list[object]", data.get("choices") or ()))


def _said(value: object) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, dict):
        return sum(_said(item) for key, item in cast("Body", value).items() if key not in _NOT_GENERATED)
    if isinstance(value, list):
        return sum(_said(item) for item in cast("list[object]", value))
    return 0


_NOT_GENERATED = frozenset({"role", "finish_reason", "logprobs", "id", "type"})
