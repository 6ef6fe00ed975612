"""Tools that a service ran by itself in a chat, told beside the answer: as counts of its usage, which are charged.

Knows: Groq's `executed_tools`, whole and streamed, which of them search. Does not know: what any of them costs.
Source: console.groq.com/docs/compound, /docs/web-search, /docs/browser-search; the shapes of its client, groq-python
(chat_completion_message, chat_completion_chunk).
"""

from collections.abc import Callable

from gateway.call import Body
from gateway.upstream.fields import mapping, objects, whole_number, words

# A page that is opened, code and a browser are billed otherwise, by what no answer tells: their fees are unknown.
_SEARCHES = frozenset({"search", "web_search", "browser_search", "browser.search"})


def counting(tell: Callable[[Body], None] | None) -> Callable[[Body], None]:
    """Of one answer: each tool counts once, though a stream tells it when it begins and again with its result."""
    ran: dict[tuple[int | None, int], str] = {}

    def told(body: Body) -> None:
        if tell is not None:
            tell(body)
        for choice in objects(body.get("choices")):
            for kind in ("message", "delta"):
                for place, tool in enumerate(objects(mapping(choice.get(kind)).get("executed_tools"))):
                    number = whole_number(tool.get("index")) if kind == "delta" else place
                    key = (whole_number(choice.get("index")), place if number is None else number)
                    ran[key] = words(tool.get("type")) or ran.get(key, "")
        usage = mapping(body.get("usage"))
        if ran and usage:
            searches = sum(kind in _SEARCHES for kind in ran.values())
            found: Body = {"server_tool_use": {"web_search_requests": searches}} if searches else {}
            if others := len(ran) - searches:
                found["unpriced_calls"] = others
            body["usage"] = {**usage, **found}

    return told
