"""The fields of OpenAI's requests that the gateway looks at, with their types and ranges.

Only shapes: a field that is not listed passes whatever it holds, an explicit null passes wherever a field is optional.
What one field demands of another is `gateway.wire`'s. Source: OpenAI's published specification (openai-openapi v2.3.0).
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

SEED = 2**63
Name = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_-]{1,64}\Z")]
Model = Annotated[str, Meta(min_length=1, max_length=512)]
Temperature = Annotated[float, Meta(ge=0, le=2)] | None
TopP = Annotated[float, Meta(ge=0, le=1)] | None
Penalty = Annotated[float, Meta(ge=-2, le=2)] | None
Choices = Annotated[int, Meta(ge=1, le=128)] | None
MOST_TOKENS = 2**31 - 1  # of an answer; what is beyond no budget could hold
Limit = Annotated[int, Meta(ge=1, le=MOST_TOKENS)] | None
Seed = Annotated[int, Meta(ge=-SEED, le=SEED - 1)] | None
StopText = Annotated[str, Meta(min_length=1, max_length=1_024)]
Stop = StopText | Annotated[list[StopText], Meta(max_length=4)] | None
LogitBias = Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=1_024)] | None
Metadata = Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)] | None
Label = Annotated[str, Meta(max_length=1_024)] | None
Json = dict[str, Any]


class Part(Struct, tag_field="type", gc=False):
    """One piece of a message's content."""


class TextPart(Part, tag="text", gc=False):
    """Plain text."""

    text: str


class ImageUrl(Struct, gc=False):
    """Where an image is, or the image as a data URL; the gateway never fetches it."""

    url: str
    detail: str | None = None


class ImagePart(Part, tag="image_url", gc=False):
    """An image."""

    image_url: ImageUrl


class AudioPart(Part, tag="input_audio", gc=False):
    """Recorded speech, base64 with its format."""

    input_audio: Json


class FilePart(Part, tag="file", gc=False):
    """A file by id or by content."""

    file: Json


class VideoPart(Part, tag="video_url", gc=False):
    """Not OpenAI's; compatible servers take it."""

    video_url: Json


class RefusalPart(Part, tag="refusal", gc=False):
    """What an assistant said instead of an answer."""

    refusal: str


class ThinkingPart(Part, tag="thinking", gc=False):
    """Not OpenAI's; some upstreams answer with it, and a client sends back what it was given."""


UserPart = TextPart | ImagePart | AudioPart | FilePart | VideoPart
UserContent = str | Annotated[list[UserPart], Meta(min_length=1)]
TextContent = str | Annotated[list[TextPart], Meta(min_length=1)]
AssistantContent = str | Annotated[list[TextPart | RefusalPart | ThinkingPart], Meta(min_length=1)] | None


class FunctionCall(Struct, gc=False):
    """`arguments` is JSON in a string, as the model wrote it."""

    name: str
    arguments: str


class CustomCall(Struct, gc=False):
    """A call with free text instead of JSON."""

    name: str
    input: str


class ToolCall(Struct, gc=False):
    """What an assistant asked to have done; `type` says which of the two is set."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: FunctionCall | None = None
    custom: CustomCall | None = None


class Message(Struct, tag_field="role", gc=False):
    """One turn of the conversation."""


class SystemMessage(Message, tag="system", gc=False):
    """Instructions."""

    content: TextContent
    name: str | None = None


class DeveloperMessage(Message, tag="developer", gc=False):
    """Instructions, by their newer name."""

    content: TextContent
    name: str | None = None


class UserMessage(Message, tag="user", gc=False):
    """What the user said or showed."""

    content: UserContent
    name: str | None = None


class AssistantMessage(Message, tag="assistant", gc=False):
    """An earlier answer. No content only with tool calls, a refusal or audio: `gateway.wire` checks that."""

    content: AssistantContent = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None
    audio: Json | None = None


class ToolMessage(Message, tag="tool", gc=False):
    """The result of one tool call."""

    content: TextContent
    tool_call_id: str


class FunctionMessage(Message, tag="function", gc=False):
    """The result of a call in the older way."""

    content: str | None
    name: str


AnyMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage


class Function(Struct, gc=False):
    """A tool with JSON parameters."""

    name: Name
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class CustomTool(Struct, gc=False):
    """A tool that takes free text."""

    name: Name
    description: str | None = None
    format: Json | None = None


class Tool(Struct, gc=False):
    """A type other than these two belongs to some upstream (a built-in search, say) and passes."""

    type: str
    function: Function | None = None
    custom: CustomTool | None = None


class JsonSchema(Struct, gc=False):
    """The schema an answer must follow."""

    name: Name
    description: str | None = None
    schema: Json | None = None
    strict: bool | None = None


class ResponseFormat(Struct, gc=False):
    """`json_schema` is required beside the type of that name. `schema`: beside `json_object`, as others than OpenAI."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: Json | None = None


class StreamOptions(Struct, gc=False):
    """Only allowed on a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class Generation(Struct, gc=False, kw_only=True):
    """What chat and completions have in common."""

    model: Model
    temperature: Temperature = None
    top_p: TopP = None
    n: Choices = None
    seed: Seed = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty = None
    frequency_penalty: Penalty = None
    logit_bias: LogitBias = None
    user: Label = None
    chat_template: Any = None


class Chat(Generation, gc=False, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[AnyMessage], Meta(min_length=1)]
    max_tokens: Limit = None
    max_completion_tokens: Limit = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Function], Meta(min_length=1)] | None = None
    function_call: str | Json | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    modalities: list[str] | None = None
    audio: Json | None = None
    prediction: Json | None = None
    web_search_options: Json | None = None
    store: bool | None = None
    metadata: Metadata = None
    safety_identifier: Label = None
    prompt_cache_key: Label = None


class Completion(Generation, gc=False, kw_only=True):
    """POST /v1/completions."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1, max_length=2_048)]
    max_tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    suffix: str | None = None
    prompt_embeds: Any = None


class Embedding(Struct, gc=False, kw_only=True):
    """POST /v1/embeddings."""

    model: Model
    input: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    dimensions: Annotated[int, Meta(ge=1, le=65_536)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: Label = None
