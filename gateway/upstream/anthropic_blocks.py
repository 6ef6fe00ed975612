"""One content block of Anthropic's answers while it comes, and what it is in the end.

Knows: what its pieces are put together to, which contents chat completions can say without loss. Does not know: events,
their order.
Source: Anthropic's API reference, messages; the types of its Python client, 0.121.0.
"""

from gateway.call import Body
from gateway.stream import StreamGarbage, parse
from gateway.upstream.fields import objects, words

_ORDER = ("redacted_thinking", "thinking", "text", "tool_use")  # in which a chat answer is told again
_PLAIN = {
    "redacted_thinking": {"type", "data"},
    "thinking": {"type", "thinking", "signature"},
    "text": {"type", "text"},
    "tool_use": {"type", "id", "name", "input"},
}


class Block:
    """A content block that is still coming. `place`: of a call among calls; `more`: fields that came late."""

    def __init__(self, content: Body) -> None:
        self.kind = words(content.get("type"))
        self.place = 0
        self.text: list[str] = []
        self.arguments: list[str] = []
        self.citations = objects(content.get("citations"))
        self.signature = words(content.get("signature"))
        self.more: Body = {}
        self._content = content

    def whole(self) -> Body:
        """As it stands in an answer that is not streamed; thinking must be given back like this, with its signature."""
        told = {**self._content, **self.more}
        if self.kind == "text":
            told["text"] = "".join(self.text)
            return told | ({"citations": self.citations} if self.citations else {})
        if self.kind == "thinking":
            return {**told, "thinking": "".join(self.text), "signature": self.signature}
        written = "".join(self.arguments or self.text)
        if not written or self.kind == "redacted_thinking":
            return told
        try:
            return {**told, "input": parse(written.encode("utf-8", "replace"))}
        except StreamGarbage:  # cut by the limit: what was written of it
            return {**told, "input": {"invalid_json": written}}

    def annotations(self, start: int, end: int) -> list[Body]:
        """Where a text, which stands from `start` to `end`, was found on the web; OpenAI has no word for documents."""
        found: list[Body] = []
        for cited in self.citations:
            if url := words(cited.get("url")):
                told: Body = {"url": url, "title": words(cited.get("title")), "start_index": start, "end_index": end}
                found.append({"type": "url_citation", "url_citation": told})
        return found


def is_plain(content: list[Body]) -> bool:
    """Whether a chat answer holds all of it, and in the same order."""
    kinds = [words(block.get("type")) for block in content]
    if any(kind not in _PLAIN for kind in kinds) or kinds.count("text") > 1:
        return False
    if [_ORDER.index(kind) for kind in kinds] != sorted(_ORDER.index(kind) for kind in kinds):
        return False
    return not any(
        name not in _PLAIN[kind] and value is not None
        for kind, block in zip(kinds, content, strict=True)
        for name, value in block.items()
    )
