"""A prompt that ends an engine's process is asked twice at most, and who was there with it is not blamed for it.

Knows: who is under way at one engine, that suspects run one after another. Does not know: who is suspected
(`policies.quarantine`), what an engine is, why its process ended.
Source: the failure table of docs/threats.md; vLLM and SGLang restart with the same prompt until somebody looks.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from hashlib import blake2b

import msgspec
import structlog
from msgspec import Struct

from engine.api import EngineLost
from gateway.errors import PromptQuarantined, UpstreamTimeout
from gateway.providers import Sending
from policies.quarantine import SHUT_FOR, Quarantine, Standing

log = structlog.get_logger("nearhit.engine")
_NOT_THE_PROMPT = ("stream", "stream_options", "model")
_encode = msgspec.json.Encoder(order="deterministic").encode


class Presence(Struct):
    """One request at an engine."""

    lost: bool = False

    def broke(self, error: Exception) -> None:
        """It was not answered, and `error` is why."""
        self.lost = isinstance(error, EngineLost)


class Suspicion:
    """Of one engine, in one worker. `monotonic`: seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._quarantine = Quarantine()
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def around(self, sending: Sending) -> AsyncGenerator[Presence, None]:
        """Around one request of this engine. Raises PromptQuarantined, UpstreamTimeout; what is raised within passes.

        The time it waits for its turn counts as time without a token.
        """
        standing: Standing = "clear"
        if self._quarantine:
            standing = self._quarantine.standing(_digest(sending), self._monotonic())
        if standing == "shut":
            raise PromptQuarantined(
                f"This prompt ended the engine's process twice; it is not asked again for {SHUT_FOR / 60:g} minutes."
            )
        if standing == "suspect":
            await self._wait(sending)
        presence = Presence()
        try:
            yield presence
            if standing == "suspect":
                self._quarantine.answered(_digest(sending))
        finally:
            if presence.lost:
                standing_now = self._quarantine.was_there(_digest(sending), self._monotonic())
                log.error("an engine's process ended with a request in it", model=sending.model, prompt=standing_now)
            if standing == "suspect":
                self._turn.release()

    async def _wait(self, sending: Sending) -> None:
        try:
            async with asyncio.timeout(sending.timeout):
                await self._turn.acquire()
        except TimeoutError as error:
            raise UpstreamTimeout(
                f"The engine's process has ended under this request before; no turn came within {sending.timeout:g} s."
            ) from error


def _digest(sending: Sending) -> bytes:
    body = {name: value for name, value in sending.body.items() if name not in _NOT_THE_PROMPT}
    return blake2b(_encode([sending.operation, body]), digest_size=16).digest()
