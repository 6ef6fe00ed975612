"""Wording whose right answer changes with the clock, so that meaning alone can never make a kept answer right.

Knows English words only. Errs towards caution: "electric current" is taken for "current", which costs a semantic hit.
"""

import re

# Only texts with one of these words are looked at closely: nearly all are let go after one pass over their words.
_HINTS = frozenset(
    (
        *(
            "today",
            "todays",
            "tonight",
            "tonights",
            "now",
            "nowadays",
            "tomorrow",
            "tomorrows",
            "yesterday",
            "yesterdays",
        ),
        *(
            "latest",
            "newest",
            "current",
            "currently",
            "recent",
            "recently",
            "breaking",
            "upcoming",
            "ongoing",
            "moment",
        ),
        *("days", "far", "as", "date", "live", "this", "next", "last", "past", "coming", "time", "day", "ago", "from"),
        *(
            "weather",
            "forecast",
            "outside",
            "price",
            "prices",
            "rate",
            "rates",
            "news",
            "headlines",
            "score",
            "trending",
        ),
    )
)
_WORD = re.compile(r"[a-z]+")
# Longer texts hold documents, not questions about the moment.
_MAX_CHARS = 4_000

_TIME_SENSITIVE = re.compile(
    r"""\b(?:
        today(?:'?s)? | tonight(?:'?s)? | now | nowadays | tomorrow(?:'?s)? | yesterday(?:'?s)? | latest | newest |
        current | currently | recent | recently | breaking | upcoming | ongoing | at\ the\ moment | these\ days |
        so\ far | as\ of | up[\ -]to[\ -]date | live\ (?:score|update|price|stream)s? | (?:right|just|by|until)\ now |
        (?:this|next|last|past|coming)\ (?:minute|hour|morning|afternoon|evening|night|week|weekend|month|quarter|
            year|season|spring|summer|autumn|fall|winter|monday|tuesday|wednesday|thursday|friday|saturday|sunday)s? |
        what(?:'s|\ is)?\ (?:the\ )?(?:time|date|day)\ (?:is\ it|it\ is|of\ day|in) |
        what(?:'s|\ is)\ the\ (?:time|date)(?=\s*[?.!]|\s*$|\ in\b) |
        (?:\d+|an?|few|\w+)\ (?:minute|hour|day|week|month|year)s?\ (?:ago|from\ now) |
        weather | forecast | temperature\ outside | (?:stock|share|gas|fuel|gold|oil|bitcoin|crypto)\ prices? |
        exchange\ rates? | news | headlines | score\ of\ the | trending
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)


def is_time_sensitive(text: str) -> bool:
    """Whether `text` asks about a moving present ("the latest …", "today", "this week")."""
    if len(text) > _MAX_CHARS or _HINTS.isdisjoint(_WORD.findall(text.lower())):
        return False
    return _TIME_SENSITIVE.search(text) is not None
