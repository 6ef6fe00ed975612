"""The fields of Anthropic's Messages requests that the gateway looks at, with their types and ranges.

Only shapes: a field that is not listed passes whatever it holds; `messages_request` says what they become.
Source: Anthropic's API reference (anthropic-version 2023-06-01) and the requests of its own clients.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.wire_shapes import MOST_TOKENS

Json = dict[str, Any]
ToolName = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_-]{1,128}\Z")]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]


class Block(Struct, tag_field="type", gc=False):
    """One piece of a message."""


class TextBlock(Block, tag="text", gc=False):
    """Plain text."""

    text: str


class Source(Struct, tag_field="type", gc=False):
    """Where the bytes of an image or a document are."""


class Base64(Source, tag="base64", gc=False):
    """In the request."""

    media_type: Annotated[str, Meta(max_length=128)]
    data: str


class Url(Source, tag="url", gc=False):
    """Elsewhere; the gateway never fetches it."""

    url: str


class PlainText(Source, tag="text", gc=False):
    """A document that is a text."""

    data: str


class Pieces(Source, tag="content", gc=False):
    """A document in pieces."""

    content: str | list[TextBlock]


class ImageBlock(Block, tag="image", gc=False):
    """An image."""

    source: Base64 | Url


class DocumentBlock(Block, tag="document", gc=False):
    """A PDF or a text."""

    source: Base64 | PlainText | Pieces
    title: str | None = None


class SearchResultBlock(Block, tag="search_result", gc=False):
    """Something found, with where it was found."""

    source: str
    title: str
    content: list[TextBlock]


ResultBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(Block, tag="tool_result", gc=False):
    """What came of a call."""

    tool_use_id: CallId
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None


class ToolUseBlock(Block, tag="tool_use", gc=False):
    """What an assistant asked to have done."""

    id: CallId
    name: ToolName
    input: Json


class ThinkingBlock(Block, tag="thinking", gc=False):
    """What an assistant thought; nobody but its maker can use it."""


class RedactedBlock(Block, tag="redacted_thinking", gc=False):
    """The same, unreadable."""


UserBlock = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolResultBlock
AssistantBlock = TextBlock | ToolUseBlock | ThinkingBlock | RedactedBlock


class Turn(Struct, tag_field="role", gc=False):
    """One turn of the conversation."""


class UserTurn(Turn, tag="user", gc=False):
    """What the user said, showed, or did on the assistant's behalf."""

    content: str | list[UserBlock]


class AssistantTurn(Turn, tag="assistant", gc=False):
    """An earlier answer, or the beginning of the one asked for."""

    content: str | list[AssistantBlock]


class SystemTurn(Turn, tag="system", gc=False):
    """Instructions in the middle of a conversation."""

    content: str | list[TextBlock]


class Tool(Struct, gc=False):
    """`type` None and `custom` are the client's own; others are done by Anthropic or known to its models only."""

    type: Annotated[str, Meta(max_length=128)] | None = None
    name: ToolName | None = None
    description: str | None = None
    input_schema: Json | None = None
    strict: bool | None = None


class ToolChoice(Struct, gc=False):
    """`name` goes with `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


class Format(Struct, gc=False):
    """The schema an answer must follow."""

    type: Literal["json_schema"]
    schema: Json


class OutputConfig(Struct, gc=False):
    """How to answer."""

    format: Format | None = None


class Thinking(Struct, gc=False):
    """Whether to think aloud."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]


class Metadata(Struct, gc=False):
    """Who asks."""

    user_id: Annotated[str, Meta(max_length=1_024)] | None = None


class Messages(Struct, gc=False, kw_only=True):
    """POST /v1/messages; `max_tokens` may be missing only where tokens are counted."""

    model: Annotated[str, Meta(min_length=1, max_length=512)]
    messages: Annotated[list[UserTurn | AssistantTurn | SystemTurn], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | UnsetType = UNSET
    system: str | list[TextBlock] | None = None
    stop_sequences: list[Annotated[str, Meta(min_length=1, max_length=1_024)]] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    metadata: Metadata | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = None
    service_tier: Annotated[str, Meta(max_length=64)] | None = None
