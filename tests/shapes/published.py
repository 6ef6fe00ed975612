"""The operations nearhit serves, described by the types of the installed `openai` and `anthropic` packages.

Both are generated from the services' own specifications, so a newer package is a newer description; nothing is copied
here. Knows: which of their types belongs to which path, and the few things those types leave out. Does not know: what
nearhit thinks of any field.
"""

from typing import Any, Literal, NamedTuple, get_type_hints

import anthropic.pagination as claude_pages
import anthropic.types as claude
import openai.types as ai
import openai.types.admin.organization as organization
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.shared import ErrorResponse
from openai.pagination import SyncCursorPage, SyncPage
from openai.types import (
    audio,
    batch_create_params,
    batch_list_params,
    chat,
    completion_create_params,
    embedding_create_params,
    file_create_params,
    file_list_params,
    image_create_variation_params,
    image_edit_params,
    image_generate_params,
    moderation_create_params,
    responses,
)
from openai.types.audio import speech_create_params, transcription_create_params, translation_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.file_purpose import FilePurpose
from openai.types.responses import (
    input_item_list_params,
    input_token_count_params,
    response_compact_params,
    response_create_params,
)
from openai.types.shared import ErrorObject
from pydantic import BaseModel, TypeAdapter, create_model
from pydantic.json_schema import JsonSchemaMode

Json = dict[str, Any]
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FLAT_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
CLAUDE_TOOL = {"name": "f", "input_schema": {"type": "object"}}


class Refused(BaseModel):
    """Every refusal of OpenAI's."""

    error: ErrorObject


class TextPiece(ai.CompletionChoice):
    """A piece of a streamed text: OpenAI's service says null until the last, which its types leave out."""

    finish_reason: Literal["stop", "length", "content_filter"] | None  # pyright: ignore[reportIncompatibleVariableOverride] - wider on purpose


class TextEvent(ai.Completion):
    """An event of a streamed text."""

    choices: list[TextPiece]  # pyright: ignore[reportIncompatibleVariableOverride] - the same


class Vector(ai.Embedding):
    """The clients ask for vectors in base64, and decode them before their types say `list`."""

    embedding: list[float] | str  # pyright: ignore[reportIncompatibleVariableOverride] - the same


class Vectors(ai.CreateEmbeddingResponse):
    """An answer with such vectors."""

    data: list[Vector]  # pyright: ignore[reportIncompatibleVariableOverride] - the same


class Stored(ai.FileObject):
    """A file may be uploaded for `evals`, says the same package of the request."""

    purpose: FilePurpose | Literal["assistants_output", "batch_output", "fine-tune-results"]  # pyright: ignore[reportIncompatibleVariableOverride] - the same


class Ping(BaseModel):
    """Anthropic's documentation has it between any two events; its client drops it before its types see it."""

    type: Literal["ping"]


class Compacted(responses.CompactedResponse):
    """OpenAI describes it as "all user messages, followed by a single compaction item"; typed is the last."""

    output: list[responses.ResponseInputMessageItem | responses.ResponseOutputItem]  # pyright: ignore[reportIncompatibleVariableOverride] - the same


class Operation(NamedTuple):
    """One operation as it is published.

    `takes`: of the body, or of the query where there is none. `tells`: of the answer, None for bytes. `base`: a body
    that is whole. `beside`: what a field is only allowed together with. `ids`: the path's parameter. `claude`: by
    Anthropic, on a path that is OpenAI's too.
    """

    verb: str
    path: str
    tells: Any
    takes: Any = None
    base: Json | None = None
    events: Any = None
    beside: dict[str, Json] | None = None
    ids: str = ""
    form: bool = False
    claude: bool = False

    @property
    def name(self) -> str:
        return f"{self.verb.upper()} {self.path}{' (Anthropic)' if self.claude else ''}"

    @property
    def refuses(self) -> Any:
        return ErrorResponse if self.claude or self.path.startswith("/v1/messages") else Refused

    @property
    def headers(self) -> dict[str, str]:
        return {"anthropic-version": "2023-06-01"} if self.claude else {}


FILES = ("file", "image", "markup", "mask")


def _form(fields: Any) -> Any:
    """A form without its files, which no JSON schema can tell."""
    hints = get_type_hints(fields).items()
    given: dict[str, Any] = {name: (hint, None) for name, hint in hints if name not in FILES}
    return create_model(fields.__name__, **given)


_TOOLS: dict[str, Json] = {name: {"tools": [TOOL]} for name in ("tool_choice", "parallel_tool_calls")}
_FLAT: dict[str, Json] = {name: {"tools": [FLAT_TOOL]} for name in ("tool_choice", "parallel_tool_calls")}
_STREAMED: dict[str, Json] = {"stream_options": {"stream": True}}
_FILE = {"file": b"a,b\n"}
_PICTURE = {"image": b"\x89PNG"}
_USAGE = {"start_time": 1_700_000_000}

OPERATIONS = (
    Operation(
        "post", "/v1/chat/completions", chat.ChatCompletion, chat_create_params.CompletionCreateParamsBase,
        {"model": "", "messages": HI}, chat.ChatCompletionChunk,
        _TOOLS | _STREAMED | {
            "top_logprobs": {"logprobs": True},
            "function_call": {"functions": [TOOL["function"]]},
            "audio": {"modalities": ["text", "audio"]},
        },
    ),
    Operation(
        "post", "/v1/completions", ai.Completion, completion_create_params.CompletionCreateParamsBase,
        {"model": "", "prompt": "hi"}, TextEvent, _STREAMED,
    ),
    Operation(
        "post", "/v1/embeddings", Vectors, embedding_create_params.EmbeddingCreateParams,
        {"model": "", "input": "hi"},
    ),
    Operation(
        "post", "/v1/responses", responses.Response, response_create_params.ResponseCreateParamsBase,
        {"model": "", "input": "hi"}, responses.ResponseStreamEvent,
        _FLAT | _STREAMED | {"top_logprobs": {"include": ["message.output_text.logprobs"]}},
    ),
    Operation(
        "post", "/v1/responses/compact", Compacted, response_compact_params.ResponseCompactParams,
        {"model": "", "input": "hi"},
    ),
    Operation(
        "post", "/v1/responses/input_tokens", responses.InputTokenCountResponse,
        input_token_count_params.InputTokenCountParams, {"model": "", "input": "hi"}, beside=_FLAT,
    ),
    Operation("get", "/v1/responses/{id}", responses.Response, ids="response"),
    Operation(
        "get", "/v1/responses/{id}/input_items", SyncCursorPage[responses.ResponseItem],
        input_item_list_params.InputItemListParams, ids="response",
    ),
    Operation("post", "/v1/responses/{id}/cancel", responses.Response, ids="running"),
    Operation("delete", "/v1/responses/{id}", None, ids="doomed_response"),
    Operation(
        "post", "/v1/moderations", ai.ModerationCreateResponse, moderation_create_params.ModerationCreateParams,
        {"model": "", "input": "hi"},
    ),
    Operation(
        "post", "/v1/images/generations", ai.ImagesResponse, image_generate_params.ImageGenerateParamsBase,
        {"model": "", "prompt": "hi"},
    ),
    Operation(
        "post", "/v1/images/edits", ai.ImagesResponse, _form(image_edit_params.ImageEditParamsBase),
        {"model": "", "prompt": "hi", **_PICTURE}, form=True,
    ),
    Operation(
        "post", "/v1/images/variations", ai.ImagesResponse,
        _form(image_create_variation_params.ImageCreateVariationParams), {"model": "", **_PICTURE}, form=True,
    ),
    Operation(
        "post", "/v1/audio/speech", None, speech_create_params.SpeechCreateParams,
        {"model": "", "input": "hi", "voice": "alloy"},
    ),
    Operation(
        "post", "/v1/audio/transcriptions", audio.Transcription,
        _form(transcription_create_params.TranscriptionCreateParamsBase), {"model": "", **_FILE}, form=True,
    ),
    Operation(
        "post", "/v1/audio/translations", audio.Translation,
        _form(translation_create_params.TranslationCreateParams), {"model": "", **_FILE}, form=True,
    ),
    Operation(
        "post", "/v1/files", Stored, _form(file_create_params.FileCreateParams), {"purpose": "batch", **_FILE},
        form=True,
    ),
    Operation("get", "/v1/files", SyncCursorPage[Stored], file_list_params.FileListParams),
    Operation("get", "/v1/files/{id}", Stored, ids="file"),
    Operation("get", "/v1/files/{id}/content", None, ids="file"),
    Operation("delete", "/v1/files/{id}", ai.FileDeleted, ids="doomed_file"),
    Operation(
        "post", "/v1/batches", ai.Batch, batch_create_params.BatchCreateParams,
        {"input_file_id": "", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    ),
    Operation("get", "/v1/batches", SyncCursorPage[ai.Batch], batch_list_params.BatchListParams),
    Operation("get", "/v1/batches/{id}", ai.Batch, ids="batch"),
    Operation("post", "/v1/batches/{id}/cancel", ai.Batch, ids="batch"),
    Operation("get", "/v1/models", SyncPage[ai.Model]),
    Operation("get", "/v1/models/{id}", ai.Model, ids="model"),
    Operation("get", "/v1/models", claude_pages.SyncPage[claude.ModelInfo], claude=True),
    Operation("get", "/v1/models/{id}", claude.ModelInfo, ids="model", claude=True),
    Operation(
        "post", "/v1/messages", claude.Message, message_create_params.MessageCreateParamsBase,
        {"model": "", "max_tokens": 8, "messages": HI}, Ping | claude.RawMessageStreamEvent,
        {"tool_choice": {"tools": [CLAUDE_TOOL]}},
    ),
    Operation(
        "post", "/v1/messages/count_tokens", claude.MessageTokensCount,
        message_count_tokens_params.MessageCountTokensParams, {"model": "", "messages": HI},
        beside={"tool_choice": {"tools": [CLAUDE_TOOL]}},
    ),
    *(
        Operation("get", f"/v1/organization/{path}", tells, takes, _USAGE)
        for path, tells, takes in (
            ("costs", organization.UsageCostsResponse, organization.UsageCostsParams),
            ("usage/completions", organization.UsageCompletionsResponse, organization.UsageCompletionsParams),
            ("usage/embeddings", organization.UsageEmbeddingsResponse, organization.UsageEmbeddingsParams),
            ("usage/images", organization.UsageImagesResponse, organization.UsageImagesParams),
        )
    ),
)  # fmt: skip


class Names(NamedTuple):
    """What exists behind the address that is asked: models by path, ids by what they stand for."""

    models: dict[str, list[str]]
    ids: dict[str, list[str]]


class Published:
    """The description as OpenAPI, one operation and one of its documented fields at a time. `components`: its shapes.

    A request with all documented fields at once is refused for the first odd one, so each is drawn alone, beside a
    body that is whole.
    """

    def __init__(self, operations: tuple[Operation, ...] = OPERATIONS) -> None:
        wanted = [(one.name, TypeAdapter[Any](one.takes)) for one in operations if one.takes is not None]
        schemas: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]]
        schemas = [(name, "validation", adapter) for name, adapter in wanted]
        found, defined = TypeAdapter.json_schemas(schemas, ref_template="#/components/schemas/{model}")
        self.components: dict[str, Json] = defined.get("$defs", {})
        self._found: dict[str, Json] = {name: schema for (name, _), schema in found.items()}

    def fields(self, operation: Operation) -> dict[str, Json]:
        """The documented fields of a body or query, with their schemas."""
        return {} if operation.takes is None else self._whole(operation)["properties"]

    def needed(self, operation: Operation) -> set[str]:
        """Those that may not be left out."""
        return set(self._whole(operation).get("required", []))

    def _whole(self, operation: Operation) -> Json:
        schema = self._found[operation.name]
        return self.components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    def document(self, operation: Operation, field: str | None, names: Names, *, free: bool = False) -> Json:
        """OpenAPI with this one operation. `field`: what is drawn, None for only what is needed.

        `free`: it is drawn from all JSON instead of its documented type.
        """
        described: Json = {"operationId": "asked", "responses": _answers(operation)}
        drawn = {} if field is None else {field: {} if free else self.fields(operation)[field]}
        body = self._body(operation, drawn, names)
        if operation.verb == "get":
            described["parameters"] = [_parameter(name, schema, "query") for name, schema in body.items()]
        elif operation.base is not None:
            whole = {"type": "object", "properties": body, "required": [*body], "additionalProperties": False}
            kind = "multipart/form-data" if operation.form else "application/json"
            described["requestBody"] = {"required": True, "content": {kind: {"schema": whole}}}
        if operation.ids:
            known = {"type": "string", "enum": names.ids[operation.ids]}
            described.setdefault("parameters", []).append(_parameter("id", known, "path"))
        return {
            "openapi": "3.1.0",
            "info": {"title": "as published", "version": "1"},
            "paths": {operation.path: {operation.verb: described}},
            "components": {"schemas": self.components},
        }

    def _body(self, operation: Operation, drawn: Json, names: Names) -> Json:
        base = {**(operation.base or {})}
        for name in drawn:
            base |= (operation.beside or {}).get(name, {})
        body: Json = {name: {"const": value} for name, value in base.items()}
        if "model" in base:
            body["model"] = {"enum": names.models[operation.path]}
        if "input_file_id" in base:
            body["input_file_id"] = {"enum": names.ids["file"]}
        body |= {name: {"type": "string", "format": "binary"} for name in FILES if name in base}
        if operation.events is not None and "stream" not in base:
            body["stream"] = {"type": "boolean"}
        return body | drawn


def _answers(operation: Operation) -> Json:
    """Which statuses and media types there are; their shapes are those of `told`."""
    content: Json = {}
    if operation.tells is not None:
        content["application/json"] = {}
    if operation.events is not None:
        content["text/event-stream"] = {}
    answered = {"description": "answered", "content": content} if content else {"description": "answered"}
    return {"200": answered, "4XX": {"description": "refused", "content": {"application/json": {}}}}


def _parameter(name: str, schema: Json, where: str) -> Json:
    listed = where == "query" and "items" in str(schema)  # lists are sent as `name[]`, as the clients send them
    return {"name": f"{name}[]" if listed else name, "in": where, "required": True, "schema": schema}
