"""Text from outside, made fit for a column: PostgreSQL stores no NUL, no database stores half a surrogate pair.

Knows: what every supported database accepts. Does not know: where the text came from.
One such string in a batch would otherwise keep the whole batch out of the database for ever.
"""

LONGEST = 400


def clean(text: str, longest: int = LONGEST) -> str:
    """`text`, at most `longest` characters, with what cannot be stored replaced."""
    if len(text) > longest:
        text = text[:longest]
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def cleaned(text: str | None, longest: int = LONGEST) -> str | None:
    return clean(text, longest) if text else None
