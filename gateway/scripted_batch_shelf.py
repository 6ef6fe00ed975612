"""What batches at the scripted upstream are made of: files and batches in memory, run after a while, each row billed.

Knows: bounds, states, one line in the bill for each request that was run. Does not know: any service's protocol
(`gateway.scripted_batches`, `gateway.scripted_batch_services`), what is said (`gateway.scripted_answers`).
"""

import asyncio
import time
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from gateway.call import Body, Operation
from gateway.scripted_answers import Lines, Request, Script, count, misfortune, script, texts, vector
from gateway.scripted_calls import Books, usage_body
from policies.money import Usage

_MOST = 1_000  # files and batches
ENDPOINTS: dict[str, Operation] = {
    "/v1/chat/completions": "chat",
    "/chat/completions": "chat",
    "/v1/completions": "completion",
    "/v1/embeddings": "embedding",
}
Speaks = Literal["openai", "mistral", "anthropic", "together", "xai", "fireworks"]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
_request = msgspec.json.Decoder(Request).decode


class Asked(Struct, frozen=True):
    """A request as it arrived."""

    method: str
    path: str
    query: str
    body: bytes


class Row(Struct):
    """One request of a batch, in either way of writing it."""

    custom_id: str
    body: msgspec.Raw = msgspec.Raw(b"{}")
    params: msgspec.Raw = msgspec.Raw(b"{}")


class Wanted(Struct):
    """Any protocol's request for a batch."""

    endpoint: str = "/v1/chat/completions"
    input_file_id: str = ""
    input_files: list[str] = []
    model: str = ""
    name: str = ""
    metadata: dict[str, str] = {}
    requests: list[Row] = []


class Batch(Struct, kw_only=True):
    """`told`: what was answered, once it was run: name, status and body of each row."""

    id: str
    speaks: Speaks
    wanted: Wanted
    rows: list[Row]
    state: Literal["running", "over", "cancelled"] = "running"
    told: list[tuple[str, int, Body]] = []
    timer: asyncio.TimerHandle | None = None
    made: float = msgspec.field(default_factory=time.time)


rows_of = msgspec.json.Decoder(Row).decode


class Shelf:
    """All of one server. A batch is run `batch_ms` after it was begun."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Batch] = {}
        self.made = 0
        self._uploaded = 0

    @property
    def is_full(self) -> bool:
        return len(self.files) >= _MOST or len(self.batches) >= _MOST

    def keep(self, content: bytes) -> str:
        self._uploaded += 1
        name = f"file-{self.books.boot}-{self._uploaded}"
        self.files[name] = content
        return name

    def begin(self, speaks: Speaks, wanted: Wanted, rows: list[Row], name: str = "") -> Batch:
        """`name`: its id, where the client chooses it."""
        self.made += 1
        name = name or f"batch_{self.books.boot}_{self.made}"
        batch = self.batches[name] = Batch(id=name, speaks=speaks, wanted=wanted, rows=rows)
        later = asyncio.get_running_loop().call_later
        batch.timer = later(self.books.options.batch_ms / 1_000, self._run, batch)
        return batch

    def cancel(self, batch: Batch) -> None:
        if batch.state == "running":
            batch.state = "cancelled"
            if batch.timer is not None:
                batch.timer.cancel()

    def hurry(self) -> None:
        """Run at once what waits for its time."""
        for batch in self.batches.values():
            if batch.state == "running" and batch.timer is not None:
                batch.timer.cancel()
                self._run(batch)

    def close(self) -> None:
        """What has not been run never is."""
        for batch in self.batches.values():
            if batch.timer is not None:
                batch.timer.cancel()

    def of(self, speaks: Speaks) -> list[Batch]:
        """Newest first."""
        return [batch for batch in reversed(self.batches.values()) if batch.speaks == speaks]

    # -- its requests --------------------------------------------------------------------------------------------

    def _run(self, batch: Batch) -> None:
        batch.state = "over"
        for row in batch.rows:
            if batch.speaks == "anthropic":
                status, body = self._one(row.params, "chat", _message)
            else:
                raw = row.body
                if batch.wanted.model:  # it stands once, beside the lines
                    raw = msgspec.Raw(_encode({**_decode(raw), "model": batch.wanted.model}))
                status, body = self._one(raw, ENDPOINTS[batch.wanted.endpoint], _body)
            batch.told.append((row.custom_id, status, body))

    def _one(
        self, raw: msgspec.Raw, operation: Operation, told: Callable[[str, Request, Script], Body]
    ) -> tuple[int, Body]:
        """One request, run and billed."""
        options, number = self.books.options, self.books.begin()
        line: dict[str, object] = {"id": f"batched-{self.books.boot}-{number}", "attempt": "", "batch": True}
        try:
            request = _request(raw)
        except msgspec.MsgspecError as error:
            self.books.end(line, "refused", Usage())
            return 400, {"error": {"message": str(error)[:200], "type": "invalid_request_error"}}
        line |= {"model": request.model, "stream": False}
        fate, _ = misfortune(options.seed, number, options.fail_rate, 0.0)
        if fate != "none":
            self.books.end(line, "error", Usage())
            return 500, {"error": {"message": "scripted failure", "type": "server_error"}}
        if operation == "embedding":
            usage, body = _vectors(request)
        else:
            drawn = script(request, operation, options.tokens, Lines(options.say, options.finish))
            usage, body = drawn.usage(), told(str(line["id"]), request, drawn)
        self.books.end(line, "complete", usage)
        return 200, body


def _body(name: str, request: Request, drawn: Script) -> Body:
    chat = bool(request.messages)
    choices: list[Body] = []
    for index, (tokens, finish) in enumerate(drawn.answers):
        text = "".join(tokens)
        said: Body = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choices.append({"index": index, **said, "logprobs": None, "finish_reason": finish})
    kind = "chat.completion" if chat else "text_completion"
    head: Body = {"id": name, "object": kind, "created": int(time.time()), "model": request.model}
    return {**head, "choices": choices, "usage": usage_body(drawn.usage())}


def _message(name: str, request: Request, drawn: Script) -> Body:
    tokens, finish = drawn.answers[0]
    usage = drawn.usage()
    return {
        "id": name,
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [{"type": "text", "text": "".join(tokens)}],
        "stop_reason": "max_tokens" if finish == "length" else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": usage.prompt, "output_tokens": usage.completion},
    }


def _vectors(request: Request) -> tuple[Usage, Body]:
    inputs = texts(request.input)
    rows = [
        {"object": "embedding", "index": index, "embedding": vector(text, request.dimensions)}
        for index, text in enumerate(inputs)
    ]
    usage = Usage(prompt=sum(count(text) for text in inputs))
    told = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
    return usage, {"object": "list", "data": rows, "model": request.model, "usage": told}
