"""What a model thinks before it answers, told apart from the answer.

Knows: the marks `<think>` and `</think>` (DeepSeek-R1, Qwen3, SmolLM3), text in pieces. Does not know: tokens, tools.
"""

OPEN, CLOSE = "<think>", "</think>"


def thinks(template: str) -> bool:
    """Whether a chat template is of a model that thinks."""
    return OPEN in template or CLOSE in template


def begun(prompt: str) -> bool:
    """Whether the prompt already opened a block, so that the answer begins inside it."""
    return prompt.rstrip().endswith(OPEN)


class ThinkReader:
    """`push` gives (reasoning, text). A block can only stand at the beginning; white space around it is dropped."""

    def __init__(self, *, inside: bool) -> None:
        self._held = ""
        self._state = "inside" if inside else "before"
        self._fresh = True  # nothing was shown since the state began

    @property
    def inside(self) -> bool:
        return self._state == "inside"

    def push(self, piece: str) -> tuple[str, str]:
        self._held += piece
        if self._state == "before":
            self._begin()
        reasoning = self._inside() if self._state == "inside" else ""
        return reasoning, self._shown() if self._state == "after" else ""

    def flush(self) -> tuple[str, str]:
        """What was held back because it might have become a mark."""
        held, self._held = self._held, ""
        return (held.rstrip(), "") if self.inside else ("", held)

    def _begin(self) -> None:
        rest = self._held.lstrip()
        if rest.startswith(OPEN):
            self._held, self._state = rest[len(OPEN) :], "inside"
        elif rest and not OPEN.startswith(rest):
            self._state, self._fresh = "after", False  # no block: the answer keeps its own white space

    def _inside(self) -> str:
        text, mark, rest = self._held.partition(CLOSE)
        if mark:
            self._held, self._state = rest, "after"
            shown = text.rstrip()
        else:
            keep = next((size for size in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:size])), 0)
            visible = text[: len(text) - keep].rstrip()
            shown, self._held = visible, text[len(visible) :]
        if self._fresh:
            shown = shown.lstrip()
        self._fresh = bool(mark) or (self._fresh and not shown)
        return shown

    def _shown(self) -> str:
        text, self._held = self._held, ""
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        return text
