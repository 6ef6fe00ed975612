"""How one language of clients is read and how it is answered: what every dialect has to offer.

The inner language is OpenAI's chat completions. A dialect turns a request into one, and a `Voice` tells that answer
in the client's own words; everything between (budgets, cache, ledger, providers) never learns which it was.
Knows no HTTP beyond a status and header lines, no providers, no money.
"""

from typing import Protocol

from msgspec import Struct

from gateway.call import Body, Need, Operation
from gateway.errors import GatewayError


class Voice(Protocol):
    """Tells one answer to one client; made for one request and used by one reader.

    One that can relay an upstream's own events is a `Native` as well.
    """

    def expect(self, usage: object) -> None:
        """What is known of the usage before the first event is told: all of it where the answer is whole already."""
        ...

    def whole(self, body: Body) -> bytes:
        """An answer that is not streamed; `body` is a chat completion."""
        ...

    def events(self, data: Body) -> bytes:
        """What one chat chunk amounts to, as it goes to the client; may be empty."""
        ...

    def end(self) -> bytes:
        """What stands behind the last chunk of a whole answer."""
        ...

    def failed(self, error: GatewayError) -> bytes:
        """What stands behind the last chunk of an answer that broke off."""
        ...


class Native(Protocol):
    """A voice that relays."""

    speaks: str

    def natively(self, events: list[Body], data: Body) -> bytes:
        """Events of an upstream that speaks this dialect; `data`: the chat chunk that was made of them."""
        ...


class Asked(Struct, frozen=True, kw_only=True):
    """A request in the inner language. `voice` None: it is answered in that too. `ignored`: fields left out.

    `need`: what it asks for that the inner language cannot say.
    """

    body: Body
    stream: bool
    include_usage: bool
    voice: Voice | None = None
    ignored: tuple[str, ...] = ()
    need: Need | None = None


class Dialect(Protocol):
    """`operation`: of the inner request. `repeats`: whether equal bytes may be known again (`gateway.repeats`)."""

    name: str
    operation: Operation
    repeats: bool

    def read(self, body: Body) -> Asked:
        """Check and translate. Raises InvalidRequest, `param` a path in the client's own terms."""
        ...

    def refusal(self, error: GatewayError, request_id: str) -> tuple[int, bytes]:
        """Status and JSON body for a failure before the first byte."""
        ...

    def lines(self, request_id: str) -> str:
        """Header lines beyond those of every answer, each with its line end."""
        ...
