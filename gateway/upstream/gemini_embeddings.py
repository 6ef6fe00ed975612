"""Embeddings of Google's in OpenAI's shape: a hundred texts at a time, counted by a question of its own.

Knows: batchEmbedContents, countTokens (embeddings tell no usage). Does not know: HTTP, prices.
Source: Google's Gemini API reference (v1beta): embeddings, tokens; the shapes of its Python client, google-genai 3.4.0.
"""

from collections.abc import Awaitable, Callable

from gateway.call import Body, Chunk
from gateway.errors import GatewayError
from gateway.providers import Sending
from gateway.transport.refusal import in_doubt
from gateway.upstream.fields import objects, whole_number
from gateway.upstream.vectors import answer, more_of, texts_of

_AT_ONCE = 100
Ask = Callable[[str, Body], Awaitable[Body]]  # a method of the model, and what it is asked


async def embedded(sending: Sending, model: str, ask: Ask) -> Chunk:
    """The one body of an embeddings call. `model`: as addresses name it. Raises GatewayError.

    What OpenAI does not define is passed on with every text (`taskType`, `title`).
    """
    texts = texts_of(sending.body)
    more = more_of(sending.body)
    if sending.body.get("dimensions") is not None:
        more["outputDimensionality"] = sending.body["dimensions"]
    rows: list[Body] = []
    for start in range(0, len(texts), _AT_ONCE):
        asked = [{**more, "model": model, "content": _content(text)} for text in texts[start : start + _AT_ONCE]]
        try:
            told = objects((await ask("batchEmbedContents", {"requests": asked})).get("embeddings"))
        except GatewayError as error:
            if start:  # the texts before have been paid for
                raise in_doubt(f"only {start} of {len(texts)} texts were embedded: {error.message}") from error
            raise
        if len(told) != len(asked):
            raise in_doubt(f"sent {len(told)} embeddings for {len(asked)} texts")
        rows += told
    return answer(sending, [row.get("values") for row in rows], await _counted(texts, ask))


async def _counted(texts: list[str], ask: Ask) -> int | None:
    """None where nobody says."""
    try:
        told = await ask("countTokens", {"contents": [_content(text) for text in texts]})
    except GatewayError:
        return None
    return whole_number(told.get("totalTokens"))


def _content(text: str) -> Body:
    return {"parts": [{"text": text}]}
