"""How a process reads its settings again: what its server hands to the application.

Knows: two callables. Does not know: what is done with new settings (`gateway.reloading`), so a server is there before
any part of the application is imported.
"""

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from gateway.settings import Settings, load


class Rereading(Struct, frozen=True):
    """`read`: the settings as they are written now; None in a process that was not given a file.

    `spread`: has the other workers read them too.
    """

    read: Callable[[], Settings] | None = None
    spread: Callable[[], None] | None = None


def written_now(config: Path | None) -> Settings:
    """The settings as they are written now. Raises ValueError, also for a file that is there and holds nothing at all.

    That is one which somebody is about to write: read as it stands, it would take every upstream and budget away.
    """
    path = config or Path("nearhit.yaml")
    if path.is_file() and not path.read_bytes().strip():
        raise ValueError(f"{path} is empty; without any setting it would read {{}}")
    return load(config)
