"""Why a worker does not start, in a sentence instead of a trace: a full disk, a database that is away, or too new.

Knows: what a system that refuses raises, ASGI's word for a start that failed. Does not know: what is started.
"""

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from socket import gaierror
from typing import Any

from sqlalchemy.exc import DBAPIError

from gateway.db.migrate import NoRoom, StaleSchema
from gateway.db.session import UNREACHABLE, words_of

Send = Callable[[Any], Awaitable[None]]
_UNANSWERED = (ConnectionError, TimeoutError, gaierror)
"""A network's words, which name no one. Nothing else is waited for over it at a start: Redis may be away."""


class StartTrouble:
    """One per application. A mistake of ours keeps its trace. `hopeless`: another try ends as this one did."""

    def __init__(self) -> None:
        self.hopeless = False
        self._sentence: str | None = None

    @contextmanager
    def noted(self) -> Generator[None, None, None]:
        """Around the start."""
        try:
            yield
        except (StaleSchema, *UNREACHABLE) as error:
            cause = error.orig if isinstance(error, DBAPIError) else error
            words = words_of(error)
            if isinstance(cause, _UNANSWERED):
                words = f"the database does not answer: {words}"
            self.hopeless = isinstance(error, NoRoom)
            self._sentence = f"nearhit: cannot start: {words}. `nearhit doctor` says what to mend."
            raise

    def told(self, send: Send) -> Send:
        """`send` of a lifespan, with the sentence in place of the trace."""

        async def sent(message: Any) -> None:
            failed = message["type"] == "lifespan.startup.failed" and self._sentence is not None
            await send({**message, "message": self._sentence} if failed else message)

        return sent
