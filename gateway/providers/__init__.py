"""What an upstream is to the gateway, and how one is found: `kind: openai` is the module `gateway.providers.openai`.

Adding a provider is adding a file here with `Config` and `build`; siblings never import each other. A file of somebody
else's package will do: one that is installed with an entry point of the group `nearhit.providers` is found by its name.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from types import ModuleType
from typing import Literal, Protocol, cast, runtime_checkable

from msgspec import Struct

from gateway.call import Body, Chunk, Given, Native, Operation
from policies.money import Usage

Billing = Literal["stops-on-close", "bills-anyway"]
TokenPath = Literal["tokenize", "detokenize"]


class Sending(Struct, frozen=True, kw_only=True):
    """One attempt at one upstream. `body` is ready to send: upstream model name, capped output, usage asked for.

    `id` is the attempt id. `tenant` is an opaque isolation salt. `timeout` bounds the wait for the first chunk and
    `idle` every later gap, both in seconds. `background`: others go first. `traceparent`: W3C trace context for an
    upstream over HTTP. `extra`: headers of this one call. `native`: the client's own request, for a provider that
    speaks its dialect (and says so: `speaks`). `keys`: a pool writes down here which of its keys it asks. `given`:
    nothing is sent, this is the answer (`gateway.upstream.batching`).
    """

    id: str
    operation: Operation
    model: str
    body: Body
    stream: bool
    tenant: str
    timeout: float
    idle: float
    background: bool = False
    traceparent: str | None = None
    extra: Mapping[str, str] = {}
    native: Native | None = None
    keys: list[str] = []
    given: Given | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What joins the upstream's own trace and logs to this attempt."""
        own = {**self.extra, "x-request-id": self.id}
        return own if self.traceparent is None else {**own, "traceparent": self.traceparent}


class Partial(Exception):
    """An answer broke off after its first chunk. `usage` is what is known to have been consumed, if anything is."""

    def __init__(self, message: str, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage


Cannot = Callable[[Operation, Body, Native | None], str]


class Provider(Protocol):
    """`billing` says what a closed connection costs: nothing more, or the whole answer all the same.

    Three more may be there. `cannot(operation, body, native)`: the operation or the first field of a request that
    `send` would refuse whatever else is in it, empty for none, by one quick look; the same function for all that refuse
    alike, or None. `speaks`: the dialect it takes as it came. `ignored_fields(body)`: those it leaves out of account.
    """

    name: str
    billing: Billing

    def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        """Chunks as they come: events when `sending.stream`, else exactly one body with `final`.

        Until the first chunk raises a GatewayError; after it only `Partial`. Ends normally only when the upstream said
        that the answer is whole (finish reason and end mark). Closing the generator closes the upstream call.
        """
        ...

    async def consumed(self, attempt: str) -> Usage | None:
        """What an attempt that was closed early has used, exactly; None where nobody tells. Takes at most a second."""
        ...

    async def models(self) -> list[str]: ...

    def ready(self) -> str | None:
        """None when requests are served, else what is still missing, in words."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class TellsTokens(Protocol):
    """Providers whose servers may say themselves what tokens a text is made of."""

    async def told_of_tokens(self, path: TokenPath, body: Body) -> Body | None:
        """What the server answers on that path; None where servers of this kind have none. Raises GatewayError."""
        ...


_GROUP = "nearhit.providers"


def known() -> list[str]:
    """Those that ship."""
    return list(_in_folders(tuple(__path__)))


@cache
def _in_folders(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(module.name for module in iter_modules(folders)))


def load(kind: str) -> ModuleType:
    """Raises LookupError that lists the known kinds."""
    if kind in known():
        return import_module(f"{__name__}.{kind}")
    others = {found.name: found for found in entry_points(group=_GROUP)}
    if kind in others:
        return cast("ModuleType", others[kind].load())
    raise LookupError(f"Unknown provider {kind!r}. Known: {', '.join([*known(), *sorted(others)])}.")
