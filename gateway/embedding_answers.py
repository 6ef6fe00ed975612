"""Embeddings of the bundled encoder in OpenAI's shape.

Knows: texts and token ids, texts longer than the encoder's window, float and base64, shortened vectors. Does not know:
models, batching, where vectors come from.

Token ids are those of the encoder's own tokenizer and are decoded with it: ids of another tokenizer (cl100k, say) name
other words there, so clients are better off sending texts. A text longer than the window is embedded in parts and the
parts are averaged by their length (the method of OpenAI's cookbook, "Embedding texts that are longer than the model's
maximum context length"), so nothing is cut silently.
"""

import asyncio
import base64
from typing import TYPE_CHECKING, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.embedder import MAX_CHARS, Encoder
from cache.weights import Unusable, locate
from gateway.call import Body, Chunk
from gateway.errors import InvalidRequest
from gateway.providers import Sending
from policies.money import Usage

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# About as much as OpenAI's own embedding models read.
LONGEST_TEXT = 32_768
# Every part has its own begin and end mark.
_MARKS = 2


class TokenIds:
    """Token ids back to texts, with the tokenizer of the encoder's model. Read from disk when first needed."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._tokenizer: Tokenizer | None = None
        self._loading = asyncio.Lock()

    async def texts(self, ids: list[list[int]]) -> list[str]:
        """Raises InvalidRequest for ids that are not in the vocabulary, or when there is no tokenizer to ask."""
        async with self._loading:
            if self._tokenizer is None:
                self._tokenizer = await asyncio.to_thread(_load, self._model)
        size = self._tokenizer.get_vocab_size()
        for at, row in enumerate(ids):
            if any(not 0 <= token < size for token in row):
                message = f"input[{at}] has token ids outside this model's vocabulary of {size}; send text instead."
                raise InvalidRequest(message, param=f"input[{at}]")
        return self._tokenizer.decode_batch(ids)


def _load(model: str) -> "Tokenizer":
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(locate(model).folder / "tokenizer.json"))
    except (Unusable, OSError) as error:
        raise InvalidRequest("This embedding model takes texts, not token ids.", param="input") from error


class _Part(Struct):
    """Some of one input's text."""

    source: int
    text: str


async def embed(encoder: Encoder, ids: TokenIds, sending: Sending) -> Chunk:
    """The one body of an embeddings call. Raises InvalidRequest, cache.embedder.EncoderDown."""
    texts = await _texts(ids, sending.body.get("input"))
    vectors, tokens = await _encoded(encoder, texts)
    vectors = _shortened(vectors, sending.body.get("dimensions"))
    in_base64 = sending.body.get("encoding_format") == "base64"
    rows: list[Body] = [
        {"object": "embedding", "index": index, "embedding": _base64(row) if in_base64 else row.tolist()}
        for index, row in enumerate(vectors)
    ]
    usage = Usage(prompt=tokens)
    told: Body = {"prompt_tokens": tokens, "total_tokens": tokens}
    return Chunk({"object": "list", "data": rows, "model": sending.model, "usage": told}, usage, None, final=True)


async def _texts(ids: TokenIds, given: object) -> list[str]:
    if isinstance(given, str):
        texts = [given]
    else:
        items = cast("list[object]", given) if isinstance(given, list) else []
        if not items:
            raise InvalidRequest("input must not be empty.", param="input")
        if isinstance(items[0], str):
            texts = cast("list[str]", items)
        else:
            rows = [items] if isinstance(items[0], int) else items
            texts = await ids.texts(cast("list[list[int]]", rows))
    for at, text in enumerate(texts):
        if len(text) > LONGEST_TEXT:
            message = f"input[{at}] has {len(text)} characters; at most {LONGEST_TEXT} can be embedded as one text."
            raise InvalidRequest(message, param=f"input[{at}]", code="context_length_exceeded")
    return texts


async def _encoded(encoder: Encoder, texts: list[str]) -> tuple[NDArray[np.float32], int]:
    """A unit vector per text, and the tokens of all texts together."""
    parts = [
        _Part(source, text[start : start + MAX_CHARS])
        for source, text in enumerate(texts)
        for start in range(0, max(1, len(text)), MAX_CHARS)
    ]
    sums = np.zeros((len(texts), encoder.dimension), np.float32)
    total = 0
    while parts:
        vectors, counts, _ = await encoder.encode([part.text for part in parts])
        longer: list[_Part] = []
        for part, vector, count in zip(parts, vectors, counts, strict=True):
            if count > encoder.window and len(part.text) > 1:
                longer += _split(part, -(-count // max(1, encoder.window - _MARKS)))
                continue
            total += count
            sums[part.source] += vector * np.float32(count)
        parts = longer
    return _unit(sums), total


def _split(part: _Part, pieces: int) -> list[_Part]:
    """Into at least two pieces of about equal length, at blanks where there are any near."""
    step = -(-len(part.text) // max(2, pieces))
    found: list[_Part] = []
    start = 0
    while start < len(part.text):
        end = start + step
        blank = part.text.rfind(" ", start + step // 2, end)
        if end < len(part.text) and blank > start:
            end = blank
        found.append(_Part(part.source, part.text[start:end]))
        start = end
    return found


def _shortened(vectors: NDArray[np.float32], dimensions: object) -> NDArray[np.float32]:
    """The first `dimensions` numbers of each row, made unit vectors again."""
    if not isinstance(dimensions, int):
        return vectors
    width = vectors.shape[1]
    if not 1 <= dimensions <= width:
        raise InvalidRequest(f"dimensions must be between 1 and {width} for this model.", param="dimensions")
    return _unit(vectors[:, :dimensions])


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    # A row of zeros has no direction; it stays as it is.
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def _base64(row: NDArray[np.float32]) -> str:
    return base64.b64encode(row.astype("<f4").tobytes()).decode()
