"""A pair of servers for one answer: one reads the prompt, the other writes, by the protocol of their engine.

    vllm     the prompt goes to the first with one token to write; what it says of its KV blocks goes to the second
    sglang   the same request goes to both at once, with where and under which number they meet
    llm-d    one request to the second, which fetches the prompt's blocks from the first named in a header

vLLM's blocks are those of one sequence: where several are asked for (`n`, a list of prompts) the server that writes
reads by itself, since it would give all of them the blocks of the first.
Knows: the three protocols, that closing the answer closes both calls, that the prompt is counted once, by the server
that writes, which servers fail. Does not know: the language (`gateway.upstream`), money, which pair is best beyond the
fewest calls.
Sources: vLLM's NIXL proxy, SGLang's mini load balancer, llm-d's routing sidecar.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager, suppress
from typing import Literal, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, structs

from gateway.call import Body, Chunk
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused, UpstreamTimeout, in_doubt
from gateway.providers import Billing, Partial, Sending
from gateway.settings import ProviderSettings
from gateway.stream_reader import prompts_of
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.upstream.base import Means
from gateway.upstream.compatible import CompatibleProvider, Service
from gateway.upstream.exchanges import config_of
from gateway.upstream.openai_http import Isolation, Manner
from gateway.upstream.quirks import Quirks
from policies.money import Usage
from policies.retry import worth_retrying

_NOT_FOR_PREFILL = ("stream", "stream_options", "min_tokens", "max_completion_tokens")
_WANTED: Body = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_BROKEN = Quirks(reasoning="reasoning", broken=frozenset({"abort", "error"}))
_MANNER = Manner(quirks=_BROKEN, isolation="cache_salt", counts_along="each")
_HEARD_OUT = 1.0  # seconds at most
_LONGEST_REST = 30.0  # seconds a server is left alone that fails again and again, where another can be asked


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`prefill`, `decode`: addresses of the servers, `/v1` included. `bootstrap_port`: where SGLang's prefill meets.

    `isolation`: as `gateway.upstream.openai_http.SpokenConfig` has it.
    """

    protocol: Literal["vllm", "sglang", "llm-d"]
    prefill: list[str] = msgspec.field(default_factory=list[str])
    decode: list[str] = msgspec.field(default_factory=list[str])
    bootstrap_port: int = 8_998
    models: tuple[str, ...] = ()
    plain_http: bool = False
    headers: dict[str, str] = {}
    isolation: Isolation | None = None


class _Server(Struct):
    """One server, how many calls it has under way, how long it is left alone, and when it was asked last."""

    provider: CompatibleProvider
    address: str
    in_flight: int = 0
    failures: int = 0
    rests_until: float = 0.0
    turn: int = 0

    @contextmanager
    def busy(self) -> Generator[None]:
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1


class PrefillDecode:
    """Obeys gateway.providers.Provider. `draw` gives the numbers under which SGLang's servers meet."""

    def __init__(self, name: str, settings: ProviderSettings, means: Means, draw: Callable[[], int]) -> None:
        """Raises ValueError for settings that cannot work."""
        config = config_of(name, settings, Config)
        if not config.decode or not config.prefill:
            raise ValueError(f"providers.{name}: prefill and decode each need at least one address")
        self.name = name
        self.billing: Billing = settings.billing if "billing" in settings.model_fields_set else "stops-on-close"
        self._config = config
        self._tasks = means.tasks
        self._draw = draw
        self._monotonic = means.monotonic
        self._turn = 0
        own: dict[str, object] = {"headers": config.headers, "plain_http": config.plain_http, "models": config.models}
        if config.isolation is not None:
            own["isolation"] = config.isolation

        def server(address: str) -> _Server:
            service = Service(base=address, keyed=False, manner=_MANNER)
            plain = ProviderSettings(kind="openai", base_url=address, api_key=settings.api_key, **own)  # pyright: ignore[reportArgumentType] - extras are checked by the kind
            return _Server(CompatibleProvider(name, plain, service, means), address)

        self._prefill = [server(address) for address in config.prefill]
        self._decode = [server(address) for address in config.decode]

    async def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        """The answer of the server that writes. Embeddings go to it alone, and what is more than one sequence."""
        second = self._next(self._decode)
        several = self._config.protocol != "sglang" and _is_several(sending.body)
        if sending.operation == "embedding" or several:
            chunks = self._asked(second, sending)
        elif self._config.protocol == "vllm":
            chunks = self._one_after_the_other(sending, second)
        elif self._config.protocol == "sglang":
            chunks = self._at_once(sending, self._next(self._prefill), second)
        else:
            first = self._next(self._prefill)
            with first.busy():
                async with aclosing(self._asked(second, _with_header(sending, first))) as chunks:
                    async for chunk in chunks:
                        yield chunk
            return
        with second.busy():
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    async def _one_after_the_other(self, sending: Sending, second: _Server) -> AsyncGenerator[Chunk, None]:
        """vLLM: until the prompt is read nothing is asked of the second server. Both share the time of one call."""
        until = self._monotonic() + sending.timeout
        read = await self._read_somewhere(sending, until)
        told = structs.replace(sending, body={**sending.body, "kv_transfer_params": read}, timeout=self._left(until))
        try:
            async with aclosing(self._asked(second, told)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        except UpstreamFailed as problem:  # before the first chunk: after it a failure is `Partial`
            others = [one for one in self._decode if one is not second]
            if not others or not _elsewhere(problem):
                raise
        # The blocks are where they were: another server fetches them, and the prompt is not read again.
        other = self._next(others)
        with other.busy():
            async with aclosing(self._asked(other, structs.replace(told, timeout=self._left(until)))) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _read_somewhere(self, sending: Sending, until: float) -> Body:
        """What a server that has read the prompt says of its blocks; another is asked where one did nothing."""
        body = {name: value for name, value in sending.body.items() if name not in _NOT_FOR_PREFILL}
        asked = structs.replace(sending, body={**body, "max_tokens": 1, "kv_transfer_params": _WANTED}, stream=False)
        left = list(self._prefill)
        while True:
            first = self._next(left)
            left.remove(first)
            asked = structs.replace(asked, timeout=self._left(until))
            try:
                with first.busy():
                    async with aclosing(self._asked(first, asked)) as chunks:
                        read = (await anext(chunks)).data.get("kv_transfer_params")
            except UpstreamFailed as problem:
                if not left or in_doubt(problem) or not _elsewhere(problem):
                    raise
                continue
            if not isinstance(read, dict):
                why = f"{self.name}: {first.address} told no kv_transfer_params; is a KV connector set up?"
                raise UpstreamFailed(why)
            return cast("Body", read)

    async def _at_once(self, sending: Sending, first: _Server, second: _Server) -> AsyncGenerator[Chunk, None]:
        """SGLang: both are asked; the first one's answer holds nothing of interest, but its failure ends the other."""
        meeting: Body = {
            "bootstrap_host": urlsplit(first.address).hostname,
            "bootstrap_port": self._config.bootstrap_port,
            "bootstrap_room": self._draw(),
        }
        asked = structs.replace(sending, body={**sending.body, **meeting})
        with first.busy():
            reading = self._tasks.spawn(_read(self._asked(first, asked)), f"prefill {sending.id}")
            try:
                async with aclosing(self._asked(second, asked)) as chunks:
                    following = self._tasks.spawn(_following(chunks), f"decode {sending.id}")
                    try:
                        await asyncio.wait([reading, following], return_when=asyncio.FIRST_COMPLETED)
                        if reading.done() and not following.done() and (problem := reading.result()) is not None:
                            raise problem
                        opening = await following
                    finally:
                        if not following.done():
                            following.cancel()
                            await asyncio.wait([following])  # a generator that still runs cannot be closed
                    if opening is not None:
                        yield opening
                    async for chunk in chunks:
                        yield chunk
                # All is written, so all was read: what that server still has to say about it is heard out.
                await asyncio.wait([reading], timeout=_HEARD_OUT)
            finally:
                reading.cancel()

    async def _asked(self, server: _Server, sending: Sending) -> AsyncGenerator[Chunk, None]:
        """As the server answers, which rests after a failure. One that hangs is avoided by what it has under way."""
        try:
            async with aclosing(server.provider.send(sending)) as chunks:
                async for chunk in chunks:
                    server.failures, server.rests_until = 0, 0.0
                    yield chunk
        except UpstreamFailed as problem:
            now = self._monotonic()
            if _elsewhere(problem) and now >= server.rests_until:
                server.rests_until = now + min(_LONGEST_REST, 2.0**server.failures)
                server.failures += 1
            raise

    def _next(self, servers: list[_Server]) -> _Server:
        """The fewest calls among those that do not rest; in turns where that is the same."""
        now = self._monotonic()
        found = min(servers, key=lambda one: (one.rests_until > now, one.in_flight, one.turn))
        self._turn += 1
        found.turn = self._turn
        return found

    def _left(self, until: float) -> float:
        return max(0.001, until - self._monotonic())

    async def consumed(self, attempt: str) -> Usage | None:  # noqa: ARG002 - the protocol's signature
        """Nobody tells what a closed call has cost."""
        return None

    async def models(self) -> list[str]:
        return await self._decode[0].provider.models()

    def ready(self) -> str | None:
        return None

    async def close(self) -> None:
        """The transport is shared and closed by who made it."""


async def _following(chunks: AsyncGenerator[Chunk, None]) -> Chunk | None:
    return await anext(chunks, None)


async def _read(answer: AsyncGenerator[Chunk, None]) -> GatewayError | None:
    """Read an answer to its end and forget it; why there is none, if there is none."""
    try:
        async with aclosing(answer) as chunks:
            with suppress(Partial):
                async for _ in chunks:
                    pass
    except GatewayError as problem:
        return problem
    return None


def _is_several(body: Body) -> bool:
    """Whether it asks for more than one sequence."""
    return bool(prompts_of(body)) or any(body.get(name) not in (None, 1) for name in ("n", "best_of"))


def _with_header(sending: Sending, first: _Server) -> Sending:
    """llm-d: the sidecar of the second server finds the first by its address."""
    return structs.replace(sending, extra={"x-prefiller-host-port": urlsplit(first.address).netloc})


def _elsewhere(problem: UpstreamFailed) -> bool:
    """Whether another server may do what one failed to; not where there is no time left."""
    refused = isinstance(problem, UpstreamRefused)
    return not isinstance(problem, UpstreamTimeout) and worth_retrying(problem.http_status, refused=refused)


def build(
    name: str,
    settings: ProviderSettings,
    *,
    transport: Transport,
    tasks: Tasks,
    monotonic: Callable[[], float] = time.monotonic,
    draw: Callable[[], int] = lambda: secrets.randbits(63),
) -> PrefillDecode:
    """Raises ValueError for settings that cannot work."""
    return PrefillDecode(name, settings, Means(transport=transport, tasks=tasks, monotonic=monotonic), draw)
