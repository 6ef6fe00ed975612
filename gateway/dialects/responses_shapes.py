"""The fields of OpenAI's Responses requests that the gateway looks at, with their types and ranges.

Only shapes: a field that is not listed passes whatever it holds; `responses_request` says what they become.
Source: OpenAI's published specification (openai-openapi v2.3.0) and the requests of its own clients.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.wire_shapes import MOST_TOKENS, Label, Metadata, Model, Temperature, TopP

Json = dict[str, Any]
ToolName = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_-]{1,128}\Z")]
CallId = Annotated[str, Meta(min_length=1, max_length=256)]


class Part(Struct, tag_field="type", gc=False):
    """One piece of a message's content."""


class InputText(Part, tag="input_text", gc=False):
    """What was said to the model."""

    text: str


class OutputText(Part, tag="output_text", gc=False):
    """What the model said."""

    text: str


class Refusal(Part, tag="refusal", gc=False):
    """What the model said instead of an answer."""

    refusal: str


class InputImage(Part, tag="input_image", gc=False):
    """Where an image is, or the image as a data URL; the gateway never fetches it."""

    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class InputFile(Part, tag="input_file", gc=False):
    """A file by its content; by id or address it cannot be read here."""

    file_data: str | None = None
    filename: str | None = None
    file_id: str | None = None
    file_url: str | None = None


AnyPart = InputText | OutputText | Refusal | InputImage | InputFile


class Item(Struct, tag_field="type", gc=False):
    """One turn, call or result."""


class Message(Item, tag="message", gc=False):
    """What somebody said."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[AnyPart]


class FunctionCall(Item, tag="function_call", gc=False):
    """What the model asked to have done; `arguments` is JSON in a string."""

    call_id: CallId
    name: ToolName
    arguments: str
    namespace: str | None = None


class CustomCall(Item, tag="custom_tool_call", gc=False):
    """The same with free text."""

    call_id: CallId
    name: ToolName
    input: str


class FunctionOutput(Item, tag="function_call_output", gc=False):
    """What came of it."""

    call_id: CallId
    output: str | list[AnyPart]


class CustomOutput(Item, tag="custom_tool_call_output", gc=False):
    """The same for a call with free text."""

    call_id: CallId
    output: str | list[AnyPart]


class Reasoning(Item, tag="reasoning", gc=False):
    """What the model thought; nobody but its maker can use it."""


class Compaction(Item, tag="compaction", gc=False):
    """A note that stands for everything before it (`responses_compaction`)."""

    encrypted_content: str


class CompactionTrigger(Item, tag="compaction_trigger", gc=False):
    """As the last item: the answer wanted is such a note."""


AnyItem = (
    Message | FunctionCall | CustomCall | FunctionOutput | CustomOutput | Reasoning | Compaction | CompactionTrigger
)


class Tool(Struct, gc=False):
    """`function` and `custom` are the client's own, `namespace` holds `tools` of its own; others are services."""

    type: Annotated[str, Meta(max_length=128)]
    name: ToolName | None = None
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None
    format: Json | None = None
    tools: list["Tool"] | None = None


class Format(Struct, gc=False):
    """The form of the answer; name and schema go with `json_schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_-]{1,64}\Z")] | None = None
    description: str | None = None
    schema: Json | None = None
    strict: bool | None = None


class Text(Struct, gc=False):
    """How the text is to be."""

    format: Format | None = None
    verbosity: str | None = None


class Thinking(Struct, gc=False):
    """How much to think."""

    effort: str | None = None
    summary: str | None = None


class Responses(Struct, gc=False, kw_only=True):
    """POST /v1/responses."""

    model: Model
    input: str | Annotated[list[AnyItem], Meta(min_length=1)]
    instructions: str | None = None
    tools: list[Tool] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | None = None
    temperature: Temperature = None
    top_p: TopP = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | Json | None = None
    prompt: Json | None = None
    reasoning: Thinking | None = None
    include: list[str] | None = None
    metadata: Metadata = None
    user: Label = None
    safety_identifier: Label = None
    prompt_cache_key: Label = None
    service_tier: Annotated[str, Meta(max_length=64)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
