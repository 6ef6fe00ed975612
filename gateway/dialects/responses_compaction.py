"""A conversation made shorter: what a model is asked for that, the item which comes of it, and the way back.

Knows: OpenAI's `compaction` items and the Responses `compact` object. Does not know: other items, HTTP.
The content of an item is opaque to clients and no secret from them: it is their own conversation, told by a model.
Nothing is kept here, so every worker and every installation can read what any other has made.
Source: Open Responses (2026-04-24), OpenAI's published specification, and what Codex sends.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import cast

from gateway.call import Body
from gateway.errors import InvalidRequest, UpstreamFailed

TRIGGER: Body = {"type": "compaction_trigger"}
_CUT = ("length", "content_filter")
_MARK = "nearhit-1:"
_ASK = (
    "Stop here: this conversation is about to be cut. Write the note from which it will be continued by somebody who "
    "sees nothing else of it. Tell what was asked for, what was decided and why, what was done and found so far with "
    "the exact names, paths, numbers and commands, what is still to be done, and what was asked not to be done. Call "
    "no tool and write nothing but the note."
)
_TOLD = "What came before this was shortened to the following note.\n\n"


def asking() -> Body:
    """The turn with which a model is asked for the note."""
    return {"role": "user", "content": _ASK}


def is_ours(content: str) -> bool:
    return content.startswith(_MARK)


def told_again(content: str, path: str) -> Body:
    """The turn that stands for everything before it. Raises InvalidRequest for an item that was not made here."""
    try:
        if not is_ours(content):
            raise ValueError(content[:20])
        note = b64decode(content.removeprefix(_MARK), validate=True).decode()
    except (ValueError, binascii.Error):
        param = f"{path}.encrypted_content"
        message = f"'{param}' was not made by nearhit, so what it stands for cannot be read here."
        raise InvalidRequest(message, param=param, code="invalid_value") from None
    # A user's turn: a note repeats what tools and pages have said, which must not gain the weight of instructions.
    return {"role": "user", "content": _TOLD + note}


def since(items: Sequence[Body]) -> Sequence[Body]:
    """What still counts of a conversation: all from its last note on."""
    notes = [index for index, item in enumerate(items) if item.get("type") == "compaction"]
    return items[notes[-1] :] if notes else items


def item(name: str, note: str) -> Body:
    """What stands for the conversation from now on."""
    sealed = _MARK + b64encode(note.encode()).decode("ascii") if note else ""
    return {"id": name, "type": "compaction", "encrypted_content": sealed}


def check(note: str, finish: str) -> None:
    """Raises UpstreamFailed for a note that would lose the conversation."""
    if finish in _CUT:
        raise UpstreamFailed("The model's note was cut off, so nothing was shortened.", code="compaction_failed")
    if not note.strip():
        raise UpstreamFailed("The model wrote no note, so nothing was shortened.", code="compaction_failed")


def compacted(response: Body, conversation: list[Body]) -> Body:
    """The object of `/responses/compact`: what users have said, word for word, and the item for all the rest."""
    said = [one for one in conversation if one.get("type") == "message" and one.get("role") == "user"]
    kept = [_message(one, f"msg_{response['id']}_{number}") for number, one in enumerate(said)]
    head = {"id": response["id"], "object": "response.compaction", "created_at": response["created_at"]}
    return {**head, "output": [*kept, *cast("list[Body]", response["output"])], "usage": response["usage"]}


def _message(said: Body, name: str) -> Body:
    content = said["content"]
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"id": name, "type": "message", "status": "completed", "role": "user", "content": parts}
