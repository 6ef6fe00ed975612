"""Offline batch: a file of requests in OpenAI's batch format in, a file of answers out, and goes on where it stopped.

Knows: lines of both files, how many requests may be in flight. Does not know: processes, terminals, models.

A line is `{"custom_id", "method", "url", "body"}`, an answer `{"id", "custom_id", "response": {"status_code", "body"},
"error"}`. Answers are appended as they end, in any order. Started again on the same files, what is answered is skipped.
Memory: the requests in flight and the set of answered ids.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

import msgspec
from msgspec import Struct

from engine.api import (
    Delta,
    Engine,
    EngineError,
    EngineFailed,
    EngineUsage,
    GenerateRequest,
    InvalidRequest,
    Overloaded,
    SamplingParams,
    left_open,
)

_DEFAULT_OUTPUT = {"/v1/chat/completions": 4096, "/v1/completions": 16}
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 30.0  # seconds before a request that was turned away is tried again
_TRIES = 8
_LOW = -10  # priority: whoever waits for an answer goes first


class Body(Struct, kw_only=True):
    """The part of an OpenAI request that an offline engine honours; anything else in a line is refused by name."""

    model: str = ""
    messages: list[dict[str, object]] | None = None
    prompt: str | list[int] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    user: str = ""


class BatchRequest(Struct, kw_only=True):
    """One line of the file."""

    custom_id: str
    url: Literal["/v1/chat/completions", "/v1/completions"]
    body: dict[str, Any]
    method: Literal["POST"] = "POST"


class _Answered(Struct):
    custom_id: str
    error: dict[str, Any] | None = None


class Progress(NamedTuple):
    """How far it is. `failed`: lines whose answer is an error; `skipped`: answered by an earlier run."""

    done: int
    failed: int
    skipped: int
    prompt_tokens: int
    completion_tokens: int


_line = msgspec.json.Decoder(BatchRequest)
_answered = msgspec.json.Decoder(_Answered)


class _Refused(Exception):
    """What a line's answer says instead of an answer."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


async def run(
    engine: Engine,
    source: Path,
    target: Path,
    *,
    in_flight: int = 64,
    show: Callable[[Progress], object] | None = None,
    sleep: Callable[[float], Any] = asyncio.sleep,
) -> Progress:
    """Answer every line of `source` that `target` does not answer yet. At most `in_flight` at once.

    Raises EngineFailed when the engine stays away: run it again then. `show` is called after each line.
    """
    known = _known(target)
    batch = _Batch(engine, show, sleep, Progress(0, 0, len(known), 0, 0))
    with target.open("a", encoding="utf-8") as out:
        lines = _unanswered(source, known)

        async def work() -> None:
            for number, line in lines:  # workers share the iterator: each takes the next line when it is free
                await batch.answer(number, line, out)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(in_flight):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors  # the first tells why: the rest were cancelled for it
    return batch.progress


class _Batch:
    def __init__(
        self,
        engine: Engine,
        show: Callable[[Progress], object] | None,
        sleep: Callable[[float], Any],
        progress: Progress,
    ) -> None:
        self._engine = engine
        self._show = show
        self._sleep = sleep
        self.progress = progress

    async def answer(self, number: int, line: bytes, out: TextIO) -> None:
        """One line's answer, written whole or not at all."""
        usage = EngineUsage(prompt=0, completion=0)
        record: dict[str, Any] = {"id": f"batch_req_{number}", "custom_id": _id_of(line, number)}
        try:
            wanted = _read(line)
            whole = await self._tried(_request(wanted, number))
            usage = whole.usage or usage
            body = _answer(wanted, number, whole, usage)
            record |= {"response": {"status_code": 200, "request_id": f"{number}", "body": body}, "error": None}
        except _Refused as error:
            told = {"message": str(error), "type": "invalid_request_error", "param": error.param, "code": error.code}
            response = {"status_code": error.status, "request_id": f"{number}", "body": {"error": told}}
            record |= {"response": response, "error": {"code": error.code, "message": str(error)}}
        out.write(msgspec.json.encode(record).decode() + "\n")
        out.flush()
        now = self.progress
        self.progress = now._replace(
            done=now.done + 1,
            failed=now.failed + (record["error"] is not None),
            prompt_tokens=now.prompt_tokens + usage.prompt,
            completion_tokens=now.completion_tokens + usage.completion,
        )
        if self._show is not None:
            self._show(self.progress)

    async def _tried(self, request: GenerateRequest) -> Delta:
        """Patient with an engine that is full or being restarted; what was lost is asked again from the beginning."""
        wait = _FIRST_WAIT
        for attempt in range(_TRIES):
            try:
                return await _whole(self._engine.generate(request))
            except InvalidRequest as error:
                raise _Refused(400, str(error), error.param, error.code) from error
            except Overloaded as error:
                wait = max(wait, error.retry_after)
            except EngineError:
                if attempt == _TRIES - 1:
                    raise
            await self._sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)
        raise EngineFailed(f"The engine was full {_TRIES} times.")


async def _whole(stream: AsyncGenerator[Delta, None]) -> Delta:
    """One delta with everything: parts of a long answer are not kept one by one. Raises EngineFailed without an end."""
    text: list[str] = []
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            text.append(delta.text)
            if delta.finish_reason in ("stop", "length"):
                return msgspec.structs.replace(delta, text="".join(text))
            if delta.finish_reason is not None:
                break
    raise EngineFailed("The engine did not finish an answer.")


def _known(target: Path) -> set[str]:
    """Ids answered by an earlier run; a last line that was cut off is taken out."""
    if not target.exists():
        return set()
    found: set[str] = set()
    whole = 0
    with target.open("rb") as lines:
        for line in lines:
            try:
                found.add(_answered.decode(line).custom_id)
            except msgspec.MsgspecError:
                break
            whole += len(line)
    with target.open("rb+") as file:
        file.truncate(whole)
    return found


def _unanswered(source: Path, known: set[str]) -> Iterator[tuple[int, bytes]]:
    with source.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip() and _id_of(line, number) not in known:
                yield number, line


def _id_of(line: bytes, number: int) -> str:
    try:
        return _answered.decode(line).custom_id
    except msgspec.MsgspecError:
        return f"line-{number}"


def _read(line: bytes) -> BatchRequest:
    try:
        return _line.decode(line)
    except msgspec.MsgspecError as error:
        raise _Refused(400, f"Not a line of a batch: {error}", code="invalid_line") from error


def _request(line: BatchRequest, number: int) -> GenerateRequest:
    unknown = sorted(set(line.body) - set(Body.__struct_fields__))
    if unknown:
        raise _Refused(400, f"{unknown[0]} is not supported in an offline batch.", unknown[0], "unsupported_parameter")
    try:
        body = msgspec.convert(line.body, Body)
    except msgspec.ValidationError as error:
        raise _Refused(400, str(error), code="invalid_request") from error
    most = body.max_completion_tokens or body.max_tokens or _DEFAULT_OUTPUT[line.url]
    sampling = SamplingParams(
        max_tokens=most,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=body.seed,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
    )
    chat = line.url == "/v1/chat/completions"
    return GenerateRequest(
        id=f"batch-{number}",
        sampling=sampling,
        messages=body.messages if chat else None,
        text=body.prompt if not chat and isinstance(body.prompt, str) else None,
        token_ids=body.prompt if not chat and isinstance(body.prompt, list) else None,
        priority=_LOW,
        left=left_open(line.body),
    )


def _answer(line: BatchRequest, number: int, whole: Delta, usage: EngineUsage) -> dict[str, Any]:
    chat = line.url == "/v1/chat/completions"
    said: dict[str, Any] = {"message": {"role": "assistant", "content": whole.text}} if chat else {"text": whole.text}
    return {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-batch-{number}",
        "object": "chat.completion" if chat else "text_completion",
        "model": line.body.get("model", ""),
        "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": whole.finish_reason}],
        "usage": {
            "prompt_tokens": usage.prompt,
            "completion_tokens": usage.completion,
            "total_tokens": usage.prompt + usage.completion,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
        },
    }
