"""Whether this gateway may take requests: not while engines and the encoder load for the first time.

Knows: which parts were ready once, which have said that they cannot serve. Does not know: HTTP, upstreams, how a part
is started again. What is down does not take the rest along: hits, other models and upstreams go on being answered, and
a balancer that sends nobody here any more would end those as well. Where nothing is left that could answer anything
new, it had better: the last engine that is down is waited for.
"""

from collections.abc import Callable, Mapping

from msgspec import Struct

from engine.api import Engine


class Standing(Struct, frozen=True):
    """Parts by name, each with why. `waiting`: is loading; `down`: was ready before, or cannot be."""

    waiting: dict[str, str]
    down: dict[str, str]


class Readiness:
    """One per worker. `encoder` says what the encoder lacks; None: nothing. `elsewhere`: others than these engines can
    be asked."""

    def __init__(
        self, engines: Mapping[str, Engine], encoder: Callable[[], str | None], elsewhere: Callable[[], bool]
    ) -> None:
        self._engines = engines
        self._encoder = encoder
        self._elsewhere = elsewhere
        self._were_ready: set[str] = set()

    def look(self) -> Standing:
        found = Standing({}, {})
        answering = False
        for name, engine in self._engines.items():
            stats = engine.stats()
            answering |= stats.ready
            self._note(found, name, None if stats.ready else stats.loading or "loading", hopeless=stats.failed)
        if not answering and not self._elsewhere():
            found.waiting.update(found.down)
            found.down.clear()
        self._note(found, "encoder", self._encoder(), hopeless=False)
        return found

    def _note(self, found: Standing, name: str, why: str | None, *, hopeless: bool) -> None:
        if why is None:
            self._were_ready.add(name)
        else:
            (found.down if hopeless or name in self._were_ready else found.waiting)[name] = why
