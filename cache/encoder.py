"""The encoder process: `python -m cache.encoder --socket PATH`. The only place where an embedding model runs.

Knows the model, its weights (checked by digest) and how to put waiting texts into one forward pass.
Does not know caches, tenants or HTTP; it keeps no text longer than its answer takes.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from cache import bert, weights, wire
from cache.embedder import MAX_CHARS
from cache.priors import reader_artefact
from cache.reader import Reader

log = logging.getLogger("nearhit.encoder")

# A forward pass takes what waits, up to so many texts and so many padded tokens.
_MAX_TEXTS = 32
_MAX_TOKENS = 4_096
# Questions of a cache look-up are few; longer lists are somebody's embedding job and can wait a little.
_BULK_ABOVE = 4
_MAX_WAITING = 1_024
_AGREEMENT = 0.999
# Readings of two precisions may differ by as much, in log odds.
_READ_ALIKE = 0.25
_PROBES = (
    "How do I reset my password?",
    "What does time to first token mean?",
    "The invoice of 14 March names 1,250.50 EUR, not 1,205.50 EUR.",
    "Explain why a bridge needs expansion joints, and what happens to long spans in hot summers without them.",
)
_READ = [(one, other) for one in _PROBES for other in _PROBES]


class Runtime(Protocol):
    """What computes: our own BERT, or sentence-transformers for every other kind of model."""

    @property
    def dimension(self) -> int: ...

    @property
    def window(self) -> int: ...

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]: ...

    def embed(self, rows: Sequence[list[int]]) -> NDArray[np.float32]: ...


class _SentenceTransformers:
    """Any sentence-transformers folder; takes seconds to import, so only when needed."""

    def __init__(self, folder: Path, precision: torch.dtype) -> None:
        of: Any = import_module("sentence_transformers").SentenceTransformer
        self._model = of(str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": precision}).eval()
        self._tokenizer = self._model.tokenizer.backend_tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.window = int(self._model.max_seq_length or 512)
        self.dimension = int(self._model.get_embedding_dimension() or 0)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [found.ids for found in self._tokenizer.encode_batch(list(texts))]

    @torch.inference_mode()
    def embed(self, rows: Sequence[list[int]]) -> NDArray[np.float32]:
        width = max(len(row) for row in rows)
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        found = self._model({"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)})
        return torch.nn.functional.normalize(found["sentence_embedding"].float(), dim=1).numpy()


class Model:
    """all-MiniLM-L6-v2, or any sentence-transformers folder, on CPU threads of this process.

    `precision`: `bf16` is used where the CPU multiplies it natively and its vectors agree with fp32 to a cosine of
    0.999; else fp32. `name` says what was used, for vectors of two precisions or runtimes are not the same index.
    `reader`: what reads two texts together, for the bundled weights and where `reads`; else None.
    """

    def __init__(self, source: weights.Source, precision: str = "auto", *, reads: bool = True) -> None:
        kind, label = (bert.Bert, "plain") if bert.understands(source.folder) else (_SentenceTransformers, "st")
        self._runtime: Runtime = kind(source.folder, torch.float32)
        self.window, self.dimension = self._runtime.window, self._runtime.dimension
        self.precision = "fp32"
        if precision == "bf16" or (precision == "auto" and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
            half = kind(source.folder, torch.bfloat16)
            agreement = agree(half, self._runtime)
            if agreement >= _AGREEMENT:
                self._runtime, self.precision = half, "bf16"
            else:
                log.warning("bf16 agrees with fp32 only to %.5f: using fp32", agreement)
        self.name = f"{source.name}:{source.digest[:12]}:{label}-{self.precision}"
        # Made for these weights and no others.
        known = source.digest == weights.PINNED["model.safetensors"]
        self.reader = self._reader(source) if reads and known and kind is bert.Bert else None

    def _reader(self, source: weights.Source) -> Reader:
        """In the encoder's precision, where its word is the same in that."""
        exact = Reader(source.folder, reader_artefact(), torch.float32)
        if self.precision == "fp32":
            exact.read(_READ)  # the first reading takes a while longer, and is nobody's then
            return exact
        half = Reader(source.folder, reader_artefact(), torch.bfloat16)
        apart = max(abs(x - y) for x, y in zip(half.read(_READ), exact.read(_READ), strict=True))
        if apart <= _READ_ALIKE:
            return half
        log.warning("bf16 readings are off by up to %.3f: reading in fp32", apart)
        return exact

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, special tokens included, nothing cut but characters beyond MAX_CHARS."""
        return self._runtime.tokenize([text[:MAX_CHARS] for text in texts])

    def embed(self, rows: Sequence[list[int]]) -> NDArray[np.float32]:
        """`(n, dimension)` normalised float32; each text is cut to the window, its end token kept."""
        cut = [row if len(row) <= self.window else [*row[: self.window - 1], row[-1]] for row in rows]
        vectors = np.empty((len(cut), self.dimension), np.float32)
        for chosen in bert.passes([len(row) for row in cut], _MAX_TEXTS, _MAX_TOKENS):
            vectors[chosen] = self._runtime.embed([cut[i] for i in chosen])
        return vectors


def agree(one: Runtime, other: Runtime) -> float:
    """The lowest cosine between their vectors of the same texts."""
    ids = other.tokenize(_PROBES)
    return float((one.embed(ids) * other.embed(ids)).sum(axis=1).min())


def check(source: weights.Source) -> float:
    """How well what serves agrees with sentence-transformers in fp32: the lowest cosine."""
    reference = _SentenceTransformers(source.folder, torch.float32)
    return agree(Model(source), reference)


class _Job(NamedTuple):
    ask: wire.Ask
    answered: asyncio.Future[wire.Answer]


class Server:
    """Answers asks over a Unix socket. Everything that waits when the model is free goes into one pass."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._model: Model | None = None
        self._ready = asyncio.Event()
        self._wake = asyncio.Event()
        self._few: deque[_Job] = deque()
        self._bulk: deque[_Job] = deque()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="encoder")

    async def run(self, source: weights.Source, precision: str) -> None:
        """Listen at once, load, then serve until cancelled."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, path=str(self._path), limit=1 << 20)
        self._path.chmod(0o600)
        async with server:
            loop = asyncio.get_running_loop()
            self._model = model = await loop.run_in_executor(self._thread, Model, source, precision)
            self._ready.set()
            log.info("encoder ready: %s", model.name)
            await self._work(model)

    async def _work(self, model: Model) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            jobs = self._next_jobs()
            if not jobs:
                self._wake.clear()
                continue
            answers = await loop.run_in_executor(self._thread, _answer, model, [job.ask for job in jobs])
            for job, answer in zip(jobs, answers, strict=True):
                if not job.answered.done():
                    job.answered.set_result(answer)

    def _next_jobs(self) -> list[_Job]:
        """All short asks that fit one pass; when there are none, one long ask."""
        jobs: list[_Job] = []
        texts = 0
        while self._few and (not jobs or texts + _size(self._few[0].ask) <= _MAX_TEXTS):
            jobs.append(self._few.popleft())
            texts += _size(jobs[-1].ask)
        if not jobs and self._bulk:
            jobs.append(self._bulk.popleft())
        return jobs

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):  # the process ends; Python 3.11 would tell of it as an error
            await self._converse(reader, writer)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._ready.wait()
            assert self._model is not None
            model = self._model
            reads = model.reader.digest if model.reader else ""
            hello = wire.Hello(name=model.name, dimension=model.dimension, window=model.window, reader=reads)
            writer.write(wire.frame(hello))
            async with asyncio.TaskGroup() as group:
                while True:
                    ask = wire.decode_ask(await wire.read_frame(reader))
                    group.create_task(self._reply(ask, writer))
        except* (OSError, EOFError, ValueError, msgspec.DecodeError):
            pass  # the client left, or does not speak our language: either way this connection ends
        finally:
            writer.close()

    async def _reply(self, ask: wire.Ask, writer: asyncio.StreamWriter) -> None:
        if len(self._few) + len(self._bulk) >= _MAX_WAITING:
            answer = wire.Answer(id=ask.id, error="busy")
        else:
            answer = await self._queue(ask)
        writer.write(wire.frame(answer))
        await writer.drain()

    async def _queue(self, ask: wire.Ask) -> wire.Answer:
        """Long asks go piece by piece, so that a look-up never waits for more than one pass of them."""
        if len(ask.texts) <= _BULK_ABOVE:
            return await self._submit(self._few, ask)
        tokens: list[int] = []
        vectors: list[bytes] = []
        seconds = 0.0
        for start in range(0, len(ask.texts), _MAX_TEXTS):
            piece = wire.Ask(id=ask.id, texts=ask.texts[start : start + _MAX_TEXTS], vectors=ask.vectors)
            answer = await self._submit(self._bulk, piece)
            if answer.error is not None:
                return answer
            tokens += answer.tokens
            seconds += answer.seconds
            vectors.append(answer.vectors)
        return wire.Answer(id=ask.id, tokens=tokens, vectors=b"".join(vectors), seconds=seconds)

    async def _submit(self, queue: deque[_Job], ask: wire.Ask) -> wire.Answer:
        job = _Job(ask, asyncio.get_running_loop().create_future())
        queue.append(job)
        self._wake.set()
        return await job.answered


def _size(ask: wire.Ask) -> int:
    return len(ask.texts) + 2 * len(ask.pairs)


def _answer(model: Model, asks: list[wire.Ask]) -> list[wire.Answer]:
    """One pass for all; runs in the model's thread. What fails fails its own ask, no process and no other."""
    began = time.perf_counter()
    try:
        readings = _read(model, asks)
        ids = [model.tokenize(ask.texts) for ask in asks]
        wanted = [row for ask, rows in zip(asks, ids, strict=True) if ask.vectors for row in rows]
        vectors = model.embed(wanted) if wanted else np.zeros((0, model.dimension), np.float32)
    except (RuntimeError, ValueError, TypeError) as error:
        if len(asks) > 1:
            return [_answer(model, [ask])[0] for ask in asks]
        log.error("a pass failed: %s", type(error).__name__)
        return [wire.Answer(id=asks[0].id, error="failed")]
    counts = [[len(row) for row in rows] for rows in ids]
    # Told apart by letters, since pairs and texts may share a pass.
    letters = [sum(map(len, ask.texts)) + sum(len(a) + len(b) for a, b in ask.pairs) for ask in asks]
    per_letter = (time.perf_counter() - began) / max(1, sum(letters))
    answers: list[wire.Answer] = []
    start = 0
    for ask, tokens, read, size in zip(asks, counts, readings, letters, strict=True):
        taken = vectors[start : start + len(tokens)] if ask.vectors else vectors[:0]
        start += len(taken)
        told = taken.astype("<f4").tobytes()
        answers.append(wire.Answer(id=ask.id, tokens=tokens, vectors=told, readings=read, seconds=per_letter * size))
    return answers


def _read(model: Model, asks: Sequence[wire.Ask]) -> list[list[float]]:
    """The readings of each ask, all in one pass."""
    pairs = [pair for ask in asks for pair in ask.pairs]
    if not pairs:
        return [[] for _ in asks]
    if model.reader is None:
        raise ValueError("no reader for this model")
    found = iter(model.reader.read([(a[:MAX_CHARS], b[:MAX_CHARS]) for a, b in pairs]))
    return [[next(found) for _ in ask.pairs] for ask in asks]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 stopped by a signal, 1 the weights cannot be used or disagree (the message says how), 2 usage."""
    parser = argparse.ArgumentParser(prog="python -m cache.encoder", description="Serve embeddings on a Unix socket.")
    parser.add_argument("--socket", type=Path, help="where to listen")
    parser.add_argument("--check", action="store_true", help="compare with sentence-transformers in fp32, then exit")
    parser.add_argument("--model", default="minilm", help="minilm, or a sentence-transformers folder")
    parser.add_argument("--precision", choices=("auto", "bf16", "fp32"), default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: half of the cores, at most 4")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
    try:
        source = weights.locate(options.model)
    except weights.Unusable as error:
        log.error("%s", error)
        return 1
    if options.check:
        agreement = check(source)
        print(f"lowest cosine to sentence-transformers fp32: {agreement:.6f}")  # noqa: T201 - what was asked for
        return 0 if agreement >= _AGREEMENT else 1
    if options.socket is None:
        parser.error("--socket is required")
    torch.set_num_threads(options.threads or max(1, min(4, (os.cpu_count() or 1) // 2)))
    asyncio.run(_serve(options.socket, source, options.precision))
    return 0


async def _serve(path: Path, source: weights.Source, precision: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await Server(path).run(source, precision)


if __name__ == "__main__":
    sys.exit(main())
