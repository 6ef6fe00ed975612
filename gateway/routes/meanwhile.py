"""Two people over the same form: the second is told what the first has set, before it is replaced.

Knows: what a form was filled with, what is in force. Does not know: what the fields mean, where they are kept.
The form carries a mark of what was in force when it was shown; one without it (a script's) is taken as it is.
"""

import hashlib
from collections.abc import Mapping

import msgspec

SEEN = "seen"
_encode = msgspec.json.Encoder(order="deterministic").encode


def mark(fields: Mapping[str, str] | None) -> str:
    """Stands for what is in force; empty where nothing is."""
    return "" if fields is None else hashlib.sha256(_encode(dict(fields))).hexdigest()[:16]


def changed(form: Mapping[str, str], current: Mapping[str, str] | None, words: Mapping[str, str]) -> str:
    """What to tell whoever has not seen what is in force now; empty where there is nothing to tell.

    `words`: field -> its name on the page, of the fields that are told.
    """
    if form.get(SEEN, mark(current)) == mark(current):
        return ""
    if current is None:
        return "It was taken out meanwhile. What you entered is below: send it once more to set it again."
    told = ", ".join(f"{name} {current[field]}" for field, name in words.items() if current[field])
    had = "It was changed meanwhile" if form[SEEN] else "There is one already"
    return f"{had}: {told}. What you entered is below: send it once more to replace all of that."
