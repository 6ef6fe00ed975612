"""What languages other than OpenAI's have in common where they embed: texts in, vectors out in its shape.

Knows: floats and base64, the one body of an answer. Does not know: any language, HTTP, prices.
"""

import base64
from array import array
from collections.abc import Sequence
from typing import cast

from gateway.call import Body, Chunk
from gateway.errors import InvalidRequest
from gateway.providers import Sending
from gateway.stream import read_usage
from gateway.transport.refusal import in_doubt

_OPENAIS = frozenset({"model", "input", "encoding_format", "dimensions", "user", "stream"})


def texts_of(body: Body) -> list[str]:
    """Raises InvalidRequest for token ids, which are another model's."""
    given = body.get("input")
    texts = [given] if isinstance(given, str) else cast("list[object]", given or [])
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequest("This model embeds texts, not token ids.", param="input", code="unsupported_content")
    return cast("list[str]", texts)


def more_of(body: Body) -> Body:
    """What OpenAI does not define: it is the model's own, but for what says which text is meant."""
    return {name: value for name, value in body.items() if name not in _OPENAIS}


def answer(sending: Sending, vectors: Sequence[object], count: int | None) -> Chunk:
    """`count`: tokens, None where nobody says: the most that it can be is charged then, as an estimate.

    Raises UpstreamFailed for vectors that are none.
    """
    in_base64 = sending.body.get("encoding_format") == "base64"
    data = [_row(index, values, in_base64) for index, values in enumerate(vectors)]
    body: Body = {"object": "list", "data": data, "model": sending.model}
    told: Body = {**body, "usage": {"prompt_tokens": count, "total_tokens": count}}
    usage = read_usage(told)  # a count that is none, as one below zero, would be charged as nothing
    return Chunk(body if usage is None else told, usage, final=True)


def _row(index: int, values: object, in_base64: bool) -> Body:
    try:
        packed = array("f", cast("list[float]", values))
    except (TypeError, OverflowError):
        packed = array("f")
    if not packed:
        raise in_doubt("sent an embedding that is no vector")
    told: object = base64.b64encode(packed.tobytes()).decode() if in_base64 else values
    return {"object": "embedding", "index": index, "embedding": told}
