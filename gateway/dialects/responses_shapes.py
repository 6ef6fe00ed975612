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
    namespace: str | None = None


class FunctionOutput(Item, tag="function_call_output", gc=False):
    """What came of it."""

    call_id: CallId
    output: str | list[AnyPart]


class CustomOutput(Item, tag="custom_tool_call_output", gc=False):
    """The same for a call with free text."""

    call_id: CallId
    output: str | list[AnyPart]


class ExecAction(Struct, gc=False):
    """One command of a local shell: a program and its arguments."""

    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: int | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellCall(Item, tag="local_shell_call", gc=False):
    """The same of OpenAI's own tools; some clients name a call by its item's id alone."""

    action: ExecAction
    call_id: CallId | None = None
    id: str | None = None


class LocalShellOutput(Item, tag="local_shell_call_output", gc=False):
    """What came of it. `id` is the call's too, by the specification; others write `call_id`."""

    output: str
    call_id: CallId | None = None
    id: str | None = None


class ShellAction(Struct, gc=False):
    """Lines for a shell."""

    commands: list[str]
    timeout_ms: int | None = None
    max_output_length: int | None = None


class ShellCall(Item, tag="shell_call", gc=False):
    """What the model asked a shell to do."""

    call_id: CallId
    action: ShellAction


class ShellPrinted(Struct, gc=False):
    """What commands have printed and how they ended."""

    stdout: str
    stderr: str
    outcome: Json


class ShellOutput(Item, tag="shell_call_output", gc=False):
    """What came of it."""

    call_id: CallId
    output: list[ShellPrinted]


class PatchOperation(Struct, gc=False):
    """What is done to one file."""

    type: Literal["create_file", "update_file", "delete_file"]
    path: str
    diff: str | None = None


class PatchCall(Item, tag="apply_patch_call", gc=False):
    """What the model asked to have done to a file."""

    call_id: CallId
    operation: PatchOperation


class PatchOutput(Item, tag="apply_patch_call_output", gc=False):
    """What came of it."""

    call_id: CallId
    status: Literal["completed", "failed"]
    output: str | None = None


class Reasoning(Item, tag="reasoning", gc=False):
    """What the model thought; nobody but its maker can use it."""


class Compaction(Item, tag="compaction", gc=False):
    """A note that stands for everything before it (`responses_compaction`)."""

    encrypted_content: str


class CompactionTrigger(Item, tag="compaction_trigger", gc=False):
    """As the last item: the answer wanted is such a note."""


class Skill(Struct, gc=False):
    """Where on the client's machine it is written how something is done; in a container these fields are others."""

    name: str | None = None
    description: str | None = None
    path: str | None = None


class Environment(Struct, gc=False, omit_defaults=True):
    """Where a shell runs: `local` at the client, else in a container of the provider's. A computer's is a word."""

    type: str
    skills: list[Skill] | None = None


class Tool(Struct, gc=False):
    """`function` and `custom` are the client's own, `namespace` holds `tools` of its own.

    Others are OpenAI's, run by the client (`responses_client_tools`) or by a service.
    """

    type: Annotated[str, Meta(max_length=128)]
    name: ToolName | None = None
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None
    format: Json | None = None
    tools: list["Tool"] | None = None
    environment: Environment | str | None = None
    execution: str | None = None


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


class SearchCall(Item, tag="tool_search_call", gc=False):
    """What the model asked the client to look for among its tools."""

    call_id: CallId
    arguments: Any = None


class SearchOutput(Item, tag="tool_search_output", gc=False):
    """The tools that were found: they can be called from then on."""

    call_id: CallId
    tools: list[Tool]


class MoreTools(Item, tag="additional_tools", gc=False):
    """Tools that come in the middle of a conversation."""

    tools: list[Tool]


class Update(Item, tag="configuration_update", gc=False):
    """How much to think and what form to answer in, from then on."""

    reasoning: Thinking | None = None
    text: Text | None = None


AnyItem = (
    Message
    | FunctionCall
    | CustomCall
    | FunctionOutput
    | CustomOutput
    | LocalShellCall
    | LocalShellOutput
    | ShellCall
    | ShellOutput
    | PatchCall
    | PatchOutput
    | SearchCall
    | SearchOutput
    | MoreTools
    | Update
    | Reasoning
    | Compaction
    | CompactionTrigger
)


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
    prompt_cache_retention: Label = None
    prompt_cache_options: Json | None = None
    moderation: Json | None = None
    service_tier: Annotated[str, Meta(max_length=64)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
