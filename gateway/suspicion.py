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
from policies.quarantine import SHUT_FOR, Quarantine

log = structlog.get_logger("nearhit.engine")
_NOT_THE_PROMPT = ("stream", "stream_options", "model")
_encode = msgspec.json.Encoder(order="deterministic").encode


class Presence(Struct):
    """One request at an engine. `alone`: it is suspected, and no other suspect is there."""

    alone: bool
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
        alone = await self._runs_alone(sending)
        presence = Presence(alone)
        try:
            yield presence
            if alone:
                self._quarantine.answered(_digest(sending))
        finally:
            if presence.lost:
                found = self._quarantine.was_there(_digest(sending), self._monotonic(), alone=alone)
                log.error("an engine's process ended with a request in it", model=sending.model, prompt=found)
            if alone:
                self._turn.release()

    async def _runs_alone(self, sending: Sending) -> bool:
        """Whether it is suspected, and now has the turn; what it waited for may have cleared or shut it out."""
        if not self._is_suspect(sending):
            return False
        await self._wait(sending)
        alone = False
        try:
            alone = self._is_suspect(sending)
        finally:
            if not alone:
                self._turn.release()
        return alone

    def _is_suspect(self, sending: Sending) -> bool:
        if not self._quarantine:
            return False
        standing = self._quarantine.standing(_digest(sending), self._monotonic())
        if standing == "shut":
            raise PromptQuarantined(
                f"This prompt ended the engine's process twice; it is not asked again for {SHUT_FOR / 60:g} minutes."
            )
        return standing == "suspect"

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
