"""Embeddings as the gateway sees them: a protocol, the client of the encoder process, and a fake without a model.

Knows batches of texts, vectors and token counts. Does not know torch: that lives in `python -m cache.encoder`.
"""

import asyncio
import contextlib
import hashlib
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from cache import wire
from cache.background import Background

# No tokeniser gets more: the window is 256 tokens, and a megabyte costs a second of CPU before it is cut.
MAX_CHARS = 8_192
_MAX_PENDING = 256
_REMEMBERED = 2_048
# Longer lists are embedding jobs: they would push out every question and not be asked again.
_MEMORABLE = 16
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0


class EncoderDown(Exception):
    """No embedding now. `reason` is a word for headers and metrics: encoder-loading, encoder-down, encoder-busy …"""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Encoded(NamedTuple):
    """`vectors`: `(n, dimension)` float32, normalised. `tokens[i]` before cutting: above the window, text was lost.

    `seconds`: what the encoder computed for this, 0 where all was known.
    """

    vectors: NDArray[np.float32]
    tokens: list[int]
    seconds: float = 0.0


class Read(NamedTuple):
    """`odds[i]`: log odds that one answer does for both texts of a pair. `seconds`: what was computed for this."""

    odds: list[float]
    seconds: float = 0.0


class Encoder(Protocol):
    """Texts to vectors. Every async method may raise EncoderDown; none truncates silently (`tokens` tells)."""

    @property
    def name(self) -> str:
        """Model, weights and precision: vectors of two names are never compared."""
        ...

    @property
    def dimension(self) -> int: ...

    @property
    def window(self) -> int:
        """Tokens the model reads at most, its own special ones included."""
        ...

    @property
    def reader(self) -> str:
        """Digest of what reads two texts together; empty: it cannot."""
        ...

    async def start(self) -> None: ...

    async def encode(self, texts: Sequence[str]) -> Encoded: ...

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]: ...

    async def count_tokens(self, texts: Sequence[str]) -> list[int]: ...

    async def read(self, pairs: Sequence[tuple[str, str]]) -> Read:
        """Log odds for each (kept text, question) that one answer does for both. EncoderDown where `reader` is ""."""
        ...

    def status(self) -> str | None:
        """None when ready, else what it waits for."""
        ...

    async def close(self) -> None: ...


class EncoderClient:
    """The encoder process, over its Unix socket. Connects by itself, again and again, with back-off; never blocks.

    `trusted`: digest of the reader whose word counts, the one that the prior was made with; None: any.
    """

    def __init__(self, socket: Path, *, monotonic: Callable[[], float], trusted: str | None = None) -> None:
        self._socket = socket
        self._trusted = trusted
        self._monotonic = monotonic
        self._background = Background()
        self._hello: wire.Hello | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._pending: dict[int, asyncio.Future[wire.Answer]] = {}
        self._remembered: OrderedDict[str, tuple[NDArray[np.float32], int]] = OrderedDict()
        self._next = 0
        self._state = "not started"
        self._started = False
        self._lost_at: float | None = None

    @property
    def name(self) -> str:
        return self._hello.name if self._hello else ""

    @property
    def dimension(self) -> int:
        return self._hello.dimension if self._hello else 384

    @property
    def window(self) -> int:
        return self._hello.window if self._hello else 256

    @property
    def reader(self) -> str:
        """Empty also where a process of another version is still there, whose word was not measured."""
        found = self._hello.reader if self._hello else ""
        return found if self._trusted in {None, found} else ""

    async def start(self) -> None:
        """Begin connecting; returns at once. A second call does nothing."""
        if not self._started:
            self._started = True
            self._state = "starting"
            self._background.spawn(self._stay_connected(), "encoder-client")

    async def close(self) -> None:
        await self._background.close()
        self._lose("closed")

    def status(self) -> str | None:
        """None when ready. While away, for how long: an encoder that keeps dying must not look like one that loads."""
        if self._writer is not None and self._hello is not None:
            return None
        if self._lost_at is not None:
            return f"{self._state} for {self._monotonic() - self._lost_at:.0f} s"
        return self._state

    async def encode(self, texts: Sequence[str]) -> Encoded:
        """Vectors and token counts. Texts are cut at MAX_CHARS characters, which `tokens` then shows as too many."""
        cut = [text[:MAX_CHARS] for text in texts]
        # Taken before the wait: meanwhile others may push it out.
        known = {text: self._recall(text) for text in cut if text in self._remembered}
        missing = list(dict.fromkeys(text for text in cut if text not in known))
        seconds = 0.0
        if missing:
            fresh, seconds = await self._fetch(missing)
            known |= fresh
        found = [known[text] for text in cut]
        vectors = np.stack([vector for vector, _ in found]) if found else np.zeros((0, self.dimension), np.float32)
        # A word of a thousand letters is one unknown token: characters that were cut must count all the same.
        least = [self.window + 1 if len(text) > MAX_CHARS else 0 for text in texts]
        counts = [max(tokens, few) for (_, tokens), few in zip(found, least, strict=True)]
        return Encoded(vectors, counts, seconds)

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return (await self.encode(texts)).vectors

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Exact up to MAX_CHARS characters of each text; a longer one counts as at least that many."""
        if not texts:
            return []
        return (await self._ask([text[:MAX_CHARS] for text in texts], vectors=False)).tokens

    async def read(self, pairs: Sequence[tuple[str, str]]) -> Read:
        cut = [(kept[:MAX_CHARS], asked[:MAX_CHARS]) for kept, asked in pairs]
        if not self.reader:
            raise EncoderDown("encoder-reads-nothing")
        answer = await self._ask([], vectors=False, pairs=cut)
        if len(answer.readings) != len(cut) or not all(map(math.isfinite, answer.readings)):
            raise EncoderDown("encoder-failed")
        return Read(answer.readings, answer.seconds)

    async def _fetch(self, texts: list[str]) -> tuple[dict[str, tuple[NDArray[np.float32], int]], float]:
        answer = await self._ask(texts, vectors=True)
        vectors = np.frombuffer(answer.vectors, dtype="<f4").reshape(len(texts), self.dimension)
        fresh = {text: (vectors[i].copy(), answer.tokens[i]) for i, text in enumerate(texts)}
        if len(fresh) <= _MEMORABLE:
            self._remembered.update(fresh)
        while len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        return fresh, answer.seconds

    def _recall(self, text: str) -> tuple[NDArray[np.float32], int]:
        self._remembered.move_to_end(text)
        return self._remembered[text]

    async def _ask(self, texts: list[str], *, vectors: bool, pairs: Sequence[tuple[str, str]] = ()) -> wire.Answer:
        if self._writer is None or self._hello is None:
            raise EncoderDown("encoder-down" if self._lost_at is not None else "encoder-loading")
        if len(self._pending) >= _MAX_PENDING:
            raise EncoderDown("encoder-busy")
        self._next += 1
        ask = wire.Ask(id=self._next, texts=texts, vectors=vectors, pairs=list(pairs))
        future: asyncio.Future[wire.Answer] = asyncio.get_running_loop().create_future()
        self._pending[ask.id] = future
        try:
            self._writer.write(wire.frame(ask))
            answer = await future
        finally:
            # A caller that gave up leaves an answer nobody waits for; it is dropped when it comes.
            self._pending.pop(ask.id, None)
        if answer.error is not None or len(answer.tokens) != len(texts):
            raise EncoderDown("encoder-failed")
        return answer

    async def _stay_connected(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            # Not there yet, gone, or not speaking our language: in each case the connection ends and is tried again.
            with contextlib.suppress(OSError, EOFError, ValueError, msgspec.DecodeError):
                await self._converse()
            if self._hello is not None and self._writer is not None:
                pause = _FIRST_PAUSE
            self._lose("disconnected" if self._hello else "loading")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _converse(self) -> None:
        """One connection, until it ends."""
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=1 << 20)
        try:
            self._state = "loading"
            hello = wire.decode_hello(await wire.read_frame(reader))
            if self._hello is not None and hello.name != self._hello.name:
                self._remembered.clear()
            self._hello, self._writer, self._lost_at = hello, writer, None
            while True:
                answer = wire.decode_answer(await wire.read_frame(reader))
                future = self._pending.get(answer.id)
                if future is not None and not future.done():
                    future.set_result(answer)
        finally:
            writer.close()

    def _lose(self, state: str) -> None:
        if self._writer is not None:
            self._lost_at = self._monotonic()
        self._writer = None
        self._state = state
        for future in self._pending.values():
            if not future.done():
                future.set_exception(EncoderDown("encoder-down"))
        self._pending.clear()


_WORD = re.compile(r"\w+")
# Log odds of what is taken for certain.
_ALIKE = 9.0


class HashEncoder:
    """Deterministic embeddings of word overlap, without a model: for tests and for trying the cache out.

    Each word points in a direction drawn from its hash; a text is the normalised sum. Equal words in any order give
    cosine 1, disjoint texts about 0. It knows nothing of meaning. As `reader` it takes any two texts for alike.
    """

    reader = "hash"

    def __init__(self, dimension: int = 384, window: int = 256) -> None:
        self.name = f"hash-{dimension}"
        self.dimension = dimension
        self.window = window
        self._words: dict[str, NDArray[np.float32]] = {}

    async def start(self) -> None:
        """Nothing to load."""

    async def encode(self, texts: Sequence[str]) -> Encoded:
        vectors = [self._text(text) for text in texts]
        stacked = np.stack(vectors) if vectors else np.zeros((0, self.dimension), np.float32)
        return Encoded(stacked, await self.count_tokens(texts))

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return (await self.encode(texts)).vectors

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(_WORD.findall(text)) + 2 for text in texts]

    async def read(self, pairs: Sequence[tuple[str, str]]) -> Read:
        return Read([_ALIKE for _ in pairs])

    def status(self) -> str | None:
        return None

    async def close(self) -> None:
        """Nothing to let go."""

    def _text(self, text: str) -> NDArray[np.float32]:
        total = np.zeros(self.dimension, np.float32)
        for word in _WORD.findall(text.casefold()):
            total += self._word(word)
        length = float(np.linalg.norm(total))
        return total / length if length > 0.0 else self._word("")

    def _word(self, word: str) -> NDArray[np.float32]:
        if word not in self._words:
            seed = int.from_bytes(hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=8).digest(), "big")
            drawn = np.random.default_rng(seed).standard_normal(self.dimension).astype(np.float32)
            if len(self._words) >= 50_000:
                self._words.clear()
            self._words[word] = drawn / np.float32(np.linalg.norm(drawn))
        return self._words[word]
