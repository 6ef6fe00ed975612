"""The bundled engines and the bundled encoder as one provider: chat and completions on the engine a model names,
embeddings on the encoder.

Knows: how the sequences of one call run side by side and end together. Does not know: torch, processes, prices, HTTP.
`Sending.timeout` bounds the wait for the first token, streamed or not; `idle` every later gap.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

from msgspec.structs import replace

from cache.embedder import Encoder, EncoderDown
from engine import api
from engine.api import Delta, Engine
from gateway import engine_forms
from gateway.call import Body, Chunk
from gateway.embedding_answers import TokenIds, embed
from gateway.engine_answers import Answer, fingerprint, whole
from gateway.engine_requests import Sequence, cannot, ignored_fields, sequences
from gateway.errors import (
    EngineEnded,
    EngineUnavailable,
    GatewayError,
    InvalidRequest,
    NotFound,
    Overloaded,
    UpstreamTimeout,
)
from gateway.providers import Billing, Partial, Sending
from gateway.stream import fold
from gateway.suspicion import Suspicion
from gateway.tasks import Tasks
from gateway.upstream.passing import refuse_passed
from policies.money import Usage

__all__ = ["LocalProvider", "build", "ignored_fields"]

# Deltas that may wait between an engine and a reader that is slow, for all sequences of a call together.
_WAITING = 64
# Attempts whose usage can still be asked for after they were closed.
_REMEMBERED = 1_024

_ABORT_TOLD = 0.5  # seconds within which an engine tells what an aborted request has used
_ASKED = 50
_COMES_BACK = 2  # seconds: about as long as a small model takes to be started again


class LocalProvider:
    """`engines` by the model name they answer to. Neither they nor the encoder are started or stopped here.

    The encoder answers to `encoder_name`; `encoder_model` is where its tokenizer is found (`minilm`, or a folder).
    """

    billing: Billing = "stops-on-close"
    cannot = staticmethod(cannot)
    ignored_fields = staticmethod(ignored_fields)  # told to clients in `x-nearhit-ignored`

    def __init__(  # noqa: PLR0913 - one name per part it is made of
        self,
        name: str,
        engines: Mapping[str, Engine],
        encoder: Encoder | None,
        *,
        tasks: Tasks,
        encoder_name: str = "minilm",
        encoder_model: str = "minilm",
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self._engines = dict(engines)
        self._encoder = encoder
        self._encoder_name = encoder_name
        self._tasks = tasks
        self._token_ids = TokenIds(encoder_model)
        self._now = now
        self._recent: OrderedDict[str, _Run] = OrderedDict()
        self._suspicions = {model: Suspicion(monotonic) for model in self._engines}

    async def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        refuse_passed(self.name, sending)
        if sending.operation == "embedding":
            yield await self._embed(sending)
            return
        engine = self._engine(sending.model)
        found = sequences(sending)
        answer = Answer(sending, found, int(self._now()), fingerprint(engine.info()))
        events: list[Body] = []
        run = _Run(engine, found, sending, answer, self._tasks)
        self._remember(sending.id, run)
        async with self._suspicions[sending.model].around(sending) as presence:
            if presence.alone:
                run.suspect()
            try:
                async with aclosing(run.deltas()) as deltas:
                    async for sequence, delta in deltas:
                        for chunk in answer.chunks(sequence, delta):
                            if sending.stream:
                                run.told = True
                                yield chunk
                            else:
                                events.append(chunk.data)
            except _Broken as broken:
                presence.broke(broken.error)
                raise self._told(broken.error, run, engine_forms.asked_in(sending.body)) from broken.error
        last = answer.last()
        if sending.stream:
            yield last
        else:
            events.append(last.data)
            yield whole(fold(events), answer.usage(), answer.computed)

    async def prompt_tokens(self, sending: Sending) -> int:
        """Prompt tokens of a chat, exactly; raises what `send` would."""
        engine = self._engine(sending.model)
        try:
            return await engine.count_tokens(sequences(sending)[0].request)
        except api.EngineError as error:
            raise _before(self.name, error) from error

    async def tokens(self, sending: Sending, *, specials: bool | None) -> list[int]:
        """Ids of the tokens of one prompt, as `engine.api` says; raises what `send` would."""
        engine = self._engine(sending.model)
        try:
            return await engine.tokens(sequences(sending)[0].request, specials=specials)
        except api.EngineError as error:
            raise _before(self.name, error) from error

    async def spelled(self, model: str, ids: list[int]) -> api.Spelled:
        """Raises NotFound, InvalidRequest, EngineUnavailable."""
        try:
            return await self._engine(model).spelled(ids)
        except api.EngineError as error:
            raise _before(self.name, error) from error

    def usage_of(self, attempt: str) -> Usage | None:
        """What an attempt that was closed early has consumed, once its engine knows; None until then."""
        found = self._recent.get(attempt)
        return None if found is None else found.usage()

    async def consumed(self, attempt: str) -> Usage | None:
        """The engine says it a moment after the abort; of what was never asked of one, nobody."""
        if attempt not in self._recent:
            return None
        for _ in range(_ASKED):
            if (usage := self.usage_of(attempt)) is not None:
                return usage
            await asyncio.sleep(_ABORT_TOLD / _ASKED)
        return None

    async def models(self) -> list[str]:
        return [*self._engines, *([self._encoder_name] if self._encoder is not None else [])]

    def ready(self) -> str | None:
        missing: list[str] = []
        for name, engine in self._engines.items():
            stats = engine.stats()
            if not stats.ready:
                missing.append(f"engine {name}: {stats.loading or 'loading'}")
        if self._encoder is not None and (status := self._encoder.status()) is not None:
            missing.append(f"encoder: {status}")
        return "; ".join(missing) or None

    async def close(self) -> None:
        """Engines and encoder are stopped by who started them."""

    def window(self, model: str) -> int | None:
        """Tokens that the engine of this name holds of one sequence; None while it loads, and of what is none."""
        engine = self._engines.get(model)
        found = None if engine is None else engine.info()
        return None if found is None else found.context

    def _engine(self, model: str) -> Engine:
        engine = self._engines.get(model)
        if engine is None:
            raise NotFound(f"{self.name} has no engine called {model!r:.200}. Known: {', '.join(self._engines)}.")
        return engine

    async def _embed(self, sending: Sending) -> Chunk:
        if self._encoder is None or sending.model != self._encoder_name:
            raise NotFound(f"{self.name} has no embedding model called {sending.model!r:.200}.")
        try:
            async with asyncio.timeout(sending.timeout):
                return await embed(self._encoder, self._token_ids, sending)
        except EncoderDown as error:
            raise Overloaded(f"The encoder is not ready: {error.reason}.", headers=(("retry-after", "2"),)) from error
        except TimeoutError as error:
            raise UpstreamTimeout(f"{self.name} made no embeddings within {sending.timeout:g} s") from error

    def _remember(self, attempt: str, run: "_Run") -> None:
        self._recent[attempt] = run
        if len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)

    def _told(self, error: Exception, run: "_Run", form: str) -> Exception:
        """An engine's error as the gateway's: before the first chunk a GatewayError, after it Partial."""
        if not run.told:
            return _before(self.name, error, form)
        return Partial(f"{self.name} broke off its answer: {error}", run.usage())


class _Broken(Exception):
    """A sequence failed, and with it the call."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Ended(api.EngineFailed):
    """A sequence ended for a reason that is no answer: aborted, lost, or out of time in the queue."""


class _Late(Exception):
    """No token came in time."""


class _Run:
    """The sequences of one call on one engine. `told`: whether the caller has already been given a chunk."""

    def __init__(self, engine: Engine, found: list[Sequence], sending: Sending, answer: Answer, tasks: Tasks) -> None:
        self._engine = engine
        self._answer = answer
        self._found = found
        self._timeout = sending.timeout
        self._idle = sending.idle
        self._tasks = tasks
        self._going = 0  # sequences that the engine has, or is just asked to take
        self._held: set[str] = set()  # requests it has no room for yet
        self._room = asyncio.Semaphore(0)  # one for each sequence that has ended
        self.told = False

    def suspect(self) -> None:
        """A process may have ended because of it: no pool passes it on."""
        self._found = [replace(one, request=replace(one.request, suspected=True)) for one in self._found]

    def deltas(self) -> AsyncGenerator[tuple[Sequence, Delta], None]:
        """Raises _Broken when any sequence fails. Closing it aborts all of them."""
        return self._one(self._found[0]) if len(self._found) == 1 else self._many()

    def usage(self) -> Usage | None:
        """What was consumed so far: None unless the engine knows it of every sequence that it took."""
        for found in self._found:
            usage = self._engine.usage_of(found.request.id)
            if usage is not None:
                self._answer.note(found.index, usage)
            elif found.request.id not in self._held:
                return None
        return self._answer.usage()

    async def _one(self, sequence: Sequence) -> AsyncGenerator[tuple[Sequence, Delta], None]:
        wait = self._timeout
        async with aclosing(self._engine.generate(sequence.request)) as generated:
            while True:
                try:
                    async with asyncio.timeout(wait):
                        delta = await anext(generated)
                except TimeoutError as error:
                    raise _Broken(_Late(f"no token for {wait:g} s")) from error
                except StopAsyncIteration as error:
                    raise _Broken(_Ended("the engine ended the answer without a reason")) from error
                except api.EngineError as error:
                    raise _Broken(error) from error
                wait = self._idle
                if delta.finish_reason in ("abort", "error", "deadline"):
                    raise _Broken(_Ended(f"the engine ended the answer with {delta.finish_reason}"))
                yield sequence, delta
                if delta.finish_reason is not None:
                    return

    async def _was_turned_away(
        self, sequence: Sequence, put: Callable[[tuple[Sequence, Delta]], Awaitable[None]]
    ) -> bool:
        """Answer one of several; True if the engine is full of its siblings, so that there is room once one has ended.

        More sequences than an engine lets wait at once would be refused for ever, by an engine that has nothing to do.
        Raises _Broken.
        """
        self._going += 1
        try:
            async with aclosing(self._one(sequence)) as deltas:
                async for item in deltas:
                    await put(item)
        except _Broken as broken:
            if self._going == 1 or not isinstance(broken.error, api.Overloaded):
                raise
            self._held.add(sequence.request.id)
            return True
        else:
            self._room.release()
            return False
        finally:
            self._going -= 1

    async def _many(self) -> AsyncGenerator[tuple[Sequence, Delta], None]:
        """All sequences at once, merged in the order in which their tokens come."""
        ready: asyncio.Queue[tuple[Sequence, Delta] | _Broken | None] = asyncio.Queue(_WAITING)

        async def pump(sequence: Sequence) -> None:
            try:
                while await self._was_turned_away(sequence, ready.put):
                    await self._room.acquire()
                    self._held.discard(sequence.request.id)
            except _Broken as broken:
                await ready.put(broken)
            else:
                await ready.put(None)

        running = [self._tasks.spawn(pump(found), f"sequence {found.request.id}") for found in self._found]
        try:
            left = len(running)
            while left:
                item = await ready.get()
                if item is None:
                    left -= 1
                elif isinstance(item, _Broken):
                    raise item
                else:
                    yield item
        finally:
            for task in running:
                task.cancel()


def _before(name: str, error: Exception, form: str = "response_format") -> GatewayError:
    """`form`: the field of the request that asked for one."""
    if isinstance(error, api.InvalidRequest):
        param = form if error.param == "response_format" else error.param
        return InvalidRequest(str(error), param=param, code=error.code)
    if isinstance(error, api.Overloaded):
        wait = max(1, round(error.retry_after))
        return Overloaded(f"{name} is at its limit: {error}", headers=(("retry-after", str(wait)),))
    if isinstance(error, _Late):
        return UpstreamTimeout(f"{name} made {error}")
    if isinstance(error, api.EngineLost) and error.twice:
        why = "The engine's process ended twice with this request in it; it is not asked a third time."
        return EngineEnded(why, headers=(("x-should-retry", "false"),))
    return EngineUnavailable(f"{name} failed: {error}", headers=(("retry-after", str(_COMES_BACK)),))


def build(  # noqa: PLR0913 - one name per part it is made of
    engines: Mapping[str, Engine],
    encoder: Encoder | None,
    *,
    tasks: Tasks,
    name: str = "local",
    encoder_name: str = "minilm",
    encoder_model: str = "minilm",
    now: Callable[[], float] = time.time,
) -> LocalProvider:
    """Unlike other kinds it is given what it runs on: engines by model name, and the encoder's client."""
    return LocalProvider(
        name, engines, encoder, tasks=tasks, encoder_name=encoder_name, encoder_model=encoder_model, now=now
    )
