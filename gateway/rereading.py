"""How a process reads its settings again: what its server hands to the application.

Knows: two callables. Does not know: what is done with new settings (`gateway.reloading`), so a server is there before
any part of the application is imported.
"""

from collections.abc import Callable

from msgspec import Struct

from gateway.settings import Settings


class Rereading(Struct, frozen=True):
    """`read`: the settings as they are written now; None in a process that was not given a file.

    `spread`: has the other workers read them too.
    """

    read: Callable[[], Settings] | None = None
    spread: Callable[[], None] | None = None
