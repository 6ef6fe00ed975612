"""Embeddings of Amazon Bedrock's models in OpenAI's shape: Titan's one text at a time, Cohere's many.

Knows: what either is asked by InvokeModel, and where it tells its vectors and tokens. Does not know: HTTP, signatures,
prices.
Source: AWS's user guide of Bedrock: Titan Embeddings, Cohere Embed v3 and v4; the header of InvokeModel's answers.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from gateway.call import Body, Chunk
from gateway.errors import GatewayError, InvalidRequest
from gateway.providers import Sending
from gateway.transport.refusal import in_doubt
from gateway.upstream.fields import whole_number
from gateway.upstream.vectors import answer, more_of, texts_of

# Names may begin with a region (`eu.`) or be the end of an ARN.
_TITAN = re.compile(r"(?:^|[./])titan-embed-text")
_TITAN_1 = re.compile(r"titan-embed-text-v1|titan-embed-g1-text")
_COHERE = re.compile(r"(?:^|[./])cohere\.embed")
_COHERE_3 = re.compile(r"cohere\.embed-[a-z]+-v3")
_COUNTED = "x-amzn-bedrock-input-token-count"
_MOST_DIGITS = 12
_AT_ONCE = 96  # texts in one of Cohere's requests
_TOGETHER = 8  # of Titan's requests under way
Ask = Callable[[Body], Awaitable[tuple[Body, Mapping[str, str]]]]  # the model: its answer, and the headers of it


async def embedded(sending: Sending, ask: Ask) -> Chunk:
    """The one body of an embeddings call. Raises GatewayError.

    What OpenAI does not define is passed on with every text (`normalize`, `input_type`, `truncate`).
    """
    asking = _titan if _TITAN.search(sending.model) else _cohere if _COHERE.search(sending.model) else None
    if asking is None:
        raise InvalidRequest(
            f"{sending.model:.200} makes no embeddings: of Bedrock's models titan-embed-text and cohere.embed do.",
            param="model",
            code="unsupported_operation",
        )
    vectors, counts = await asking(sending, texts_of(sending.body), ask)
    known = [count for count in counts if count is not None]
    return answer(sending, vectors, sum(known) if len(known) == len(counts) else None)


async def _titan(sending: Sending, texts: list[str], ask: Ask) -> tuple[list[object], list[int | None]]:
    more = more_of(sending.body)
    if sending.body.get("dimensions") is not None:
        if _TITAN_1.search(sending.model):
            raise _one_size(sending.model)
        more["dimensions"] = sending.body["dimensions"]
    places, done = asyncio.Semaphore(_TOGETHER), 0

    async def one(text: str) -> tuple[object, int | None]:
        nonlocal done
        async with places:
            told, headers = await ask({**more, "inputText": text})
            done += 1
        return told.get("embedding"), _count(told.get("inputTextTokenCount"), headers)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(text)) for text in texts]
    except* GatewayError as errors:
        failed: GatewayError | ExceptionGroup[GatewayError] = errors
        while isinstance(failed, ExceptionGroup):
            failed = failed.exceptions[0]
        if done:  # the others have been paid for
            raise in_doubt(f"only {done} of {len(texts)} texts were embedded: {failed.message}") from failed
        raise failed from None
    rows = [task.result() for task in tasks]
    return [vector for vector, _ in rows], [count for _, count in rows]


async def _cohere(sending: Sending, texts: list[str], ask: Ask) -> tuple[list[object], list[int | None]]:
    more: Body = {"input_type": "search_document", **more_of(sending.body)}
    if sending.body.get("dimensions") is not None:
        if _COHERE_3.search(sending.model):
            raise _one_size(sending.model)
        more["output_dimension"] = sending.body["dimensions"]
    vectors: list[object] = []
    counts: list[int | None] = []
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        try:
            told, headers = await ask({**more, "texts": some})
        except GatewayError as error:
            if start:  # the texts before have been paid for
                raise in_doubt(f"only {start} of {len(texts)} texts were embedded: {error.message}") from error
            raise
        found = told.get("embeddings")
        # By type where the client asked for one.
        rows = cast("Body", found).get("float") if isinstance(found, dict) else found
        if not isinstance(rows, list) or len(cast("list[object]", rows)) != len(some):
            raise in_doubt(f"sent no embeddings of floats for {len(some)} texts")
        vectors += cast("list[object]", rows)
        counts.append(_count(None, headers))
    return vectors, counts


def _count(told: object, headers: Mapping[str, str]) -> int | None:
    """Tokens by the answer, else by its header; None for what can be no count."""
    given = headers.get(_COUNTED, "")
    if (count := whole_number(told)) is None and given.isdecimal() and len(given) <= _MOST_DIGITS:
        count = int(given)
    return None if count is None or count < 0 else count


def _one_size(model: str) -> InvalidRequest:
    message = f"{model:.200} makes vectors of one size only."
    return InvalidRequest(message, param="dimensions", code="unsupported_parameter")
