"""Offline batch: a file of requests in OpenAI's batch format in, a file of answers out, and goes on where it stopped.

Knows: lines of both files, how many requests may be in flight. Does not know: processes, terminals, models.

A line is `{"custom_id", "method", "url", "body"}`, an answer `{"id", "custom_id", "response": {"status_code", "body"},
"error"}`. Answers are appended as they end, in any order. Started again on the same files, what is answered is skipped.
Memory: the requests in flight and the ids of the file. A file that holds anything but answers is not written to.
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
)
from engine.openai_body import Url, Whole, Wrong, answer, gather, request

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 30.0  # seconds before a request that was turned away is tried again
_TRIES = 8
_LOW = -10  # priority: whoever waits for an answer goes first


class BatchRequest(Struct, kw_only=True):
    """One line of the file."""

    custom_id: str
    url: Url
    body: dict[str, Any]
    method: Literal["POST"] = "POST"


class _Named(Struct):
    custom_id: str


class _Failure(Struct):
    code: str | None = None


class _Answered(Struct):
    id: str
    custom_id: str
    response: msgspec.Raw
    error: _Failure | None = None


class Progress(NamedTuple):
    """How far it is. `failed`: lines whose answer is an error; `skipped`: answered by an earlier run."""

    done: int
    failed: int
    skipped: int
    prompt_tokens: int
    completion_tokens: int


_line = msgspec.json.Decoder(BatchRequest)
_named = msgspec.json.Decoder(_Named)
_answered = msgspec.json.Decoder(_Answered)
_ID = "batch_req_"
_BEGIN = f'{{"id":"{_ID}'.encode()  # of every line that is written here
_NAMELESS = "invalid_line"  # error code of lines that only their number tells apart
_MARK = b"\xef\xbb\xbf"  # what some editors put before UTF-8


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

    Raises EngineFailed when the engine stays away: run it again then; FileExistsError when `target` holds anything but
    answers. `show` is called after each line.
    """
    known = answered(source, target)
    batch = _Batch(engine, show, sleep, Progress(0, 0, len(known), 0, 0))
    with target.open("a", encoding="utf-8") as out:
        lines = _unanswered(source, known)

        async def work() -> None:
            for line in lines:  # workers share the iterator: each takes the next line when it is free
                await batch.answer(line, out)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(in_flight):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors  # the first tells why: the rest were cancelled for it
    return batch.progress


class _Line(NamedTuple):
    """`name`: its custom_id, None where it has none. `again`: an earlier line has that name."""

    number: int
    text: bytes
    name: str | None
    again: bool


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

    async def answer(self, line: _Line, out: TextIO) -> None:
        """One line's answer, written whole or not at all."""
        usage, number = EngineUsage(prompt=0, completion=0), line.number
        record: dict[str, Any] = {"id": f"{_ID}{number}", "custom_id": line.name or f"line-{number}"}
        try:
            wanted = _read(line)
            whole = await self._tried(_request(wanted, number))
            usage = whole.last.usage or usage
            body = answer(wanted.url, wanted.body.get("model", ""), number, whole, usage)
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

    async def _tried(self, request: GenerateRequest) -> Whole:
        """Patient with an engine that is full or being restarted; what was lost is asked again from the beginning.

        One that is full is there, and is waited for however long it takes. What the engine breaks off every time is
        this line's fault, not the file's.
        """
        wait, failures = _FIRST_WAIT, 0
        while True:
            try:
                return await _whole(self._engine.generate(request))
            except InvalidRequest as error:
                raise _Refused(400, str(error), error.param, error.code) from error
            except Overloaded as error:
                wait = max(wait, error.retry_after)
            except EngineError as error:
                failures += 1
                if failures == _TRIES and isinstance(error, _Unfinished):
                    raise _Refused(500, str(error), code="engine_error") from error
                if failures == _TRIES:
                    raise
            await self._sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)


class _Unfinished(EngineFailed):
    """The engine is there and did not bring this answer to its end."""


async def _whole(stream: AsyncGenerator[Delta, None]) -> Whole:
    """Raises EngineFailed without an end."""
    parts: list[Delta] = []
    async with aclosing(stream) as deltas:
        async for delta in deltas:
            if delta.finish_reason in ("stop", "length", "tool_calls"):
                return gather(parts, delta)
            if delta.finish_reason is not None:
                break
            parts.append(delta)
    raise _Unfinished("The engine did not finish an answer.")


def answered(source: Path, target: Path) -> set[str | int]:
    """What of `source` an earlier run has answered: names, and numbers of lines that have none of their own.

    A last line that was cut off is taken out of `target`. Raises FileExistsError for a file that is somebody else's:
    whatever is no answer in it would be lost.
    """
    found: set[str | int] = set()
    if not target.exists():
        return found
    if target.samefile(source):
        raise FileExistsError(f"{target} holds the requests; its answers need another file.")
    whole = 0
    with target.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n") and (line.startswith(_BEGIN[: len(line)]) or not line.strip(b"\0")):
                break
            found.add(_key(line, f"{target}, line {number}: this is no answer of a batch. Give another file for them."))
            whole += len(line)
    with target.open("rb+") as file:
        file.truncate(whole)
    return found


def _key(line: bytes, problem: str) -> str | int:
    """By which the request of an answer is known again. Raises FileExistsError(problem)."""
    try:
        told = _answered.decode(line)
    except msgspec.MsgspecError as error:
        raise FileExistsError(problem) from error
    number = told.id.removeprefix(_ID)
    nameless = told.error is not None and told.error.code == _NAMELESS
    return int(number) if nameless and number.isdecimal() else told.custom_id


def _unanswered(source: Path, known: set[str | int]) -> Iterator[_Line]:
    seen: set[str] = set()
    with source.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            text = line.removeprefix(_MARK) if number == 1 else line
            if not text.strip():
                continue
            name = _name_of(text)
            again = name in seen
            if name is not None:
                seen.add(name)
            if (number if name is None or again else name) not in known:
                yield _Line(number, text, name, again)


def _name_of(line: bytes) -> str | None:
    try:
        return _named.decode(line).custom_id or None
    except msgspec.MsgspecError:
        return None


def _read(line: _Line) -> BatchRequest:
    if line.again:  # answers come in any order: nobody could tell whose they are
        raise _Refused(400, f"The custom_id {line.name!r:.100} is that of an earlier line.", "custom_id", _NAMELESS)
    try:
        found = _line.decode(line.text)
    except msgspec.MsgspecError as error:
        code = _NAMELESS if line.name is None else "invalid_request"
        raise _Refused(400, f"Not a line of a batch: {error}", code=code) from error
    if line.name is None:
        raise _Refused(400, "Not a line of a batch: its custom_id is empty.", "custom_id", _NAMELESS)
    return found


def _request(line: BatchRequest, number: int) -> GenerateRequest:
    try:
        return request(line.url, line.body, f"batch-{number}", _LOW)
    except Wrong as error:
        raise _Refused(400, str(error), error.param, error.code) from error
