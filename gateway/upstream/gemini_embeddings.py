"""Embeddings of Google's in OpenAI's shape: a hundred texts at a time, counted by a question of its own.

Knows: batchEmbedContents, countTokens (embeddings tell no usage), float and base64. Does not know: HTTP, prices.
Source: Google's Gemini API reference (v1beta): embeddings, tokens; the shapes of its Python client, google-genai 3.4.0.
"""

import base64
from array import array
from collections.abc import Awaitable, Callable
from typing import cast

from gateway.call import Body, Chunk
from gateway.errors import GatewayError, InvalidRequest
from gateway.providers import Sending
from gateway.transport.refusal import in_doubt
from gateway.upstream.fields import objects, whole_number
from policies.money import Usage

_AT_ONCE = 100
_OPENAIS = frozenset({"model", "input", "encoding_format", "dimensions", "user"})
Ask = Callable[[str, Body], Awaitable[Body]]  # a method of the model, and what it is asked


def texts_of(body: Body) -> list[str]:
    """Raises InvalidRequest for token ids, which are another model's."""
    given = body.get("input")
    texts = [given] if isinstance(given, str) else cast("list[object]", given or [])
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("This model embeds texts, not token ids.", param="input", code="unsupported_content")
    return cast("list[str]", texts)


async def embedded(sending: Sending, model: str, ask: Ask) -> Chunk:
    """The one body of an embeddings call. `model`: as addresses name it. Raises GatewayError.

    What OpenAI does not define is passed on with every text (`taskType`, `title`).
    """
    texts = texts_of(sending.body)
    more: Body = {name: value for name, value in sending.body.items() if name not in _OPENAIS}
    if sending.body.get("dimensions") is not None:
        more["outputDimensionality"] = sending.body["dimensions"]
    rows: list[Body] = []
    for start in range(0, len(texts), _AT_ONCE):
        asked = [{"model": model, "content": _content(text), **more} for text in texts[start : start + _AT_ONCE]]
        try:
            told = objects((await ask("batchEmbedContents", {"requests": asked})).get("embeddings"))
        except GatewayError as error:
            if start:  # the texts before have been paid for
                raise in_doubt(f"only {start} of {len(texts)} texts were embedded: {error.message}") from error
            raise
        if len(told) != len(asked):
            raise in_doubt(f"sent {len(told)} embeddings for {len(asked)} texts")
        rows += told
    in_base64 = sending.body.get("encoding_format") == "base64"
    data = [_row(index, row.get("values"), in_base64) for index, row in enumerate(rows)]
    body: Body = {"object": "list", "data": data, "model": sending.model}
    count = await _counted(texts, ask)
    if count is None:
        return Chunk(body, final=True)
    return Chunk({**body, "usage": {"prompt_tokens": count, "total_tokens": count}}, Usage(prompt=count), final=True)


async def _counted(texts: list[str], ask: Ask) -> int | None:
    """None where nobody says: the most that it can be is charged then, as an estimate."""
    try:
        told = await ask("countTokens", {"contents": [_content(text) for text in texts]})
    except GatewayError:
        return None
    return whole_number(told.get("totalTokens"))


def _content(text: str) -> Body:
    return {"parts": [{"text": text}]}


def _row(index: int, values: object, in_base64: bool) -> Body:
    numbers = cast("list[float]", values) if isinstance(values, list) else []
    told: object = base64.b64encode(array("f", numbers).tobytes()).decode() if in_base64 else numbers
    return {"object": "embedding", "index": index, "embedding": told}
