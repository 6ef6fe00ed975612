"""Find stop strings in text that arrives in pieces, never showing a part of one.

Knows: strings. Does not know: tokens, models.
"""


class StopMatcher:
    """Feed pieces with `push`; it returns what may be shown. After `found`, nothing more is shown.

    The longest tail that could still become a stop string is held back, so a reader never sees the beginning of one.
    When two stop strings match, the one that begins first wins. `flush` returns what was held back at a natural end.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.matched = ""  # which of them

    @property
    def found(self) -> bool:
        return bool(self.matched)

    def push(self, piece: str) -> str:
        if not self._stops:
            return piece
        if self.found:
            return ""
        text = self._held + piece
        starts = [(at, len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if starts:
            at, _, self.matched = min(starts)
            self._held = ""
            return text[:at]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Length of the longest suffix of `text` that begins some stop string."""
        longest = max(len(stop) for stop in self._stops) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
