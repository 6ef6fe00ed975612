"""OpenAI's Responses: the dialect's two directions put together. Knows nothing but where they stand."""

from collections.abc import Sequence
from typing import cast

from gateway.call import Body, Operation
from gateway.dialects import Asked
from gateway.dialects.named import as_asked
from gateway.dialects.responses_answer import CompactedVoice, NoteVoice, ResponsesVoice, refusal
from gateway.dialects.responses_compaction import TRIGGER
from gateway.dialects.responses_request import Inner, items_of, translate
from gateway.errors import GatewayError


class Responses:
    """Obeys gateway.dialects.Dialect."""

    name = "responses"
    operation: Operation = "chat"
    repeats = False

    def read(self, body: Body, earlier: Sequence[Body] | None = None) -> Asked:
        """`earlier`: the items of the responses that this one continues; None where no state is kept."""
        inner = as_asked(lambda: translate(body, earlier))
        return _asked(inner, NoteVoice(inner) if inner.compacts else ResponsesVoice(inner))

    def refusal(self, error: GatewayError, request_id: str) -> tuple[int, bytes]:  # noqa: ARG002 - stands in a header
        return refusal(error)

    def lines(self, request_id: str) -> str:  # noqa: ARG002 - OpenAI's name for it is on every answer
        return ""


class Compacting(Responses):
    """`/responses/compact`: a conversation comes back shorter."""

    name = "compaction"

    def read(self, body: Body, earlier: Sequence[Body] | None = None) -> Asked:
        """As `Responses.read`; nothing of it is streamed or kept.

        This operation has no limit of its length, and one that is sent all the same would cut the note off.
        """
        given = body.get("input")
        if given is None or isinstance(given, str | list):
            given = [*items_of(cast("object", given)), TRIGGER]
        made = {"input": given, "store": False, "stream": False, "background": False, "max_output_tokens": None}
        made["conversation"] = None  # it is read, and stays as it is
        inner = as_asked(lambda: translate({**body, **made}, earlier))
        return _asked(inner, CompactedVoice(inner, [*(earlier or ()), *inner.items]))


def _asked(inner: Inner, voice: ResponsesVoice) -> Asked:
    return Asked(
        body=inner.body,
        stream=inner.body.get("stream") is True,
        include_usage=True,
        voice=voice,
        ignored=inner.ignored,
        need=inner.need,
    )
