"""Why a worker does not start, in a sentence instead of a trace: a full disk, a database that is away, or too new.

Knows: what a system that refuses raises, ASGI's word for a start that failed. Does not know: what is started.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

from gateway.db.migrate import StaleSchema
from gateway.db.session import UNREACHABLE, told

Send = Callable[[Any], Awaitable[None]]


class StartTrouble:
    """One per application. A mistake of ours keeps its trace."""

    def __init__(self) -> None:
        self._sentence: str | None = None

    @contextmanager
    def noted(self) -> Generator[None, None, None]:
        """Around the start."""
        try:
            yield
        except (StaleSchema, *UNREACHABLE) as error:
            self._sentence = f"nearhit: cannot start: {told(error)}. `nearhit doctor` says what to mend."
            raise

    def told(self, send: Send) -> Send:
        """`send` of a lifespan, with the sentence in place of the trace."""

        async def sent(message: Any) -> None:
            failed = message["type"] == "lifespan.startup.failed" and self._sentence is not None
            await send({**message, "message": self._sentence} if failed else message)

        return sent
