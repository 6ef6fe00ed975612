"""The one exception commands raise: something is wrong, and the message says how to mend it."""


class Wrong(Exception):
    """Ends the command with exit code 1 and this message."""
