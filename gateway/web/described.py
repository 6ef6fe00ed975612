"""The data plane in OpenAPI: what its bare ASGI routes and its forms take and answer, beside what handlers say.

Knows: addresses, the shapes requests are checked with, that every refusal has one shape. Does not know: routes, HTML.
"""

from functools import cache
from typing import Annotated, Literal, cast

import msgspec
from msgspec import Meta, Struct

from gateway.batches.shapes import Wanted as Batch
from gateway.dialects.conversations import ConversationChange, NewConversation, NewItems
from gateway.dialects.messages_shapes import Messages
from gateway.dialects.passed import Image, Moderation, Speech
from gateway.dialects.responses_shapes import Responses
from gateway.routes.tokens import Detokenize, Tokenize
from gateway.wire_shapes import Chat, Completion, Embedding

Json = dict[str, object]
_JSON, _EVENTS, _BYTES = "application/json", "text/event-stream", "application/octet-stream"


class ErrorDetail(Struct):
    """What is wrong and where; `code` is for programs."""

    message: str | None
    type: str | None
    param: str | None
    code: str | None


class Error(Struct):
    """Every refusal."""

    error: ErrorDetail


class AnthropicDetail(Struct):
    """The same for Anthropic's clients."""

    type: str
    message: str


class AnthropicError(Struct):
    """Every refusal of `/v1/messages`."""

    type: Literal["error"]
    error: AnthropicDetail
    request_id: str


class FileForm(Struct):
    """A file and what it is for."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    purpose: Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]


class SoundForm(Struct):
    """A recording and the model that is to read it."""

    file: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    model: str


class PictureForm(Struct):
    """A picture and the model that is to paint others like it."""

    image: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    model: str


class EditForm(Struct):
    """Pictures, what is to become of them, and the model that is to paint it."""

    image: Annotated[str, Meta(extra_json_schema={"format": "binary"})]
    model: str
    prompt: str
    mask: Annotated[str, Meta(extra_json_schema={"format": "binary"})] | None = None


class Route(Struct, frozen=True):
    """One operation. `answers`: media types. `form`: the body is a form."""

    verb: str
    path: str
    title: str
    words: str
    body: type[Struct] | None = None
    answers: tuple[str, ...] = (_JSON,)
    form: bool = False


ROUTES: tuple[Route, ...] = (
    Route(
        "post", "/v1/chat/completions", "Chat completion", "OpenAI's chat completions, streamed or not.", Chat,
        (_JSON, _EVENTS),
    ),
    Route(
        "post", "/v1/responses", "Response", "OpenAI's Responses: kept, continued, in the background, streamed or not.",
        Responses, (_JSON, _EVENTS),
    ),
    Route(
        "get", "/v1/responses/{response_id}", "A kept response",
        "Whole; with `stream=true` the events of one made with `background` and `stream`, after `starting_after`.",
        answers=(_JSON, _EVENTS),
    ),
    Route("post", "/v1/responses/compact", "Shorten a conversation", "As items that stand for all of it.", Responses),
    Route("post", "/v1/responses/input_tokens", "Tokens of a response", "What a response would read.", Responses),
    Route("post", "/v1/conversations", "Make a conversation", "Items in their order, for responses.", NewConversation),
    Route(
        "post", "/v1/conversations/{conversation_id}", "Describe a conversation", "Other metadata.", ConversationChange
    ),
    Route("post", "/v1/conversations/{conversation_id}/items", "Add items", "At its end, all at once.", NewItems),
    Route("post", "/v1/messages", "Message", "Anthropic's Messages, with any model.", Messages, (_JSON, _EVENTS)),
    Route("post", "/v1/messages/count_tokens", "Tokens of a message", "What a message would read.", Messages),
    Route(
        "post", "/v1/completions", "Text completion", "OpenAI's older text completions.", Completion, (_JSON, _EVENTS)
    ),
    Route("post", "/v1/embeddings", "Embeddings", "OpenAI's embeddings.", Embedding),
    Route("post", "/v1/tokenize", "Tokens of a text or a chat", "vLLM's; of models that engines here run.", Tokenize),
    Route("post", "/v1/detokenize", "Text of tokens", "vLLM's; of models that engines here run.", Detokenize),
    Route("post", "/v1/moderations", "Moderation", "Passed on to a provider that has it.", Moderation),
    Route("post", "/v1/images/generations", "Images", "Passed on to a provider that has them.", Image),
    Route(
        "post", "/v1/images/edits", "Edited images", "Passed on to a provider that has them.", EditForm, form=True
    ),
    Route(
        "post", "/v1/images/variations", "Variations of an image", "Passed on to a provider that has them.",
        PictureForm, form=True,
    ),
    Route("post", "/v1/audio/speech", "Speech", "Passed on to a provider that has it.", Speech, (_BYTES, _JSON)),
    Route(
        "post", "/v1/audio/transcriptions", "Transcription", "Passed on to a provider that has it.", SoundForm,
        (_JSON, "text/plain"), form=True,
    ),
    Route(
        "post", "/v1/audio/translations", "Translation", "Passed on to a provider that has it.", SoundForm,
        (_JSON, "text/plain"), form=True,
    ),
    Route("post", "/v1/files", "Upload a file", "A file, for a batch or a model.", FileForm, form=True),
    Route("get", "/v1/files/{file_id}/content", "A file's content", "The bytes of a file.", answers=(_BYTES,)),
    Route("post", "/v1/batches", "Make a batch", "Runs a file of requests at low priority within a day.", Batch),
    Route("get", "/v1/models", "Models", "The names clients may ask for."),
    Route("get", "/v1/models/{name}", "One model", "One of those names; near names are listed when it is unknown."),
    Route("get", "/", "Greeting", "Somebody is there: Anthropic's clients look before they ask."),
    Route("get", "/api/hello", "Greeting, by its other name", "The same, where the newest of them look."),
    Route("get", "/health/live", "Alive", "200 while the process runs."),
    Route("get", "/health/ready", "Ready", "200 when everything serves; else 503 and what is still loading."),
    Route("get", "/health", "Ready, by its other name", "The same, where scripts wait for vLLM and llama.cpp."),
    Route("get", "/health/upstreams", "Upstreams", "How every upstream does; never gates readiness."),
    Route("get", "/metrics", "Metrics", "Prometheus exposition.", answers=("text/plain",)),
)  # fmt: skip
_EXPORTS = "/api/v1/export/"
_FILES = ("text/csv", "application/jsonl", "application/vnd.apache.parquet", _JSON)
_READY = ("/health/ready", "/health")
_OPEN = ("/", "/api/hello", "/health/live", *_READY, "/health/upstreams", "/metrics")


def together(schema: Json, more: Json) -> Json:
    """Two descriptions as one; where both name something it is the same thing."""
    joined: Json = {**schema, "paths": {**_part(schema, "paths"), **_part(more, "paths")}}
    ours, theirs = _part(schema, "components"), _part(more, "components")
    joined["components"] = {name: {**_part(ours, name), **_part(theirs, name)} for name in {**ours, **theirs}}
    return joined


def _part(of: Json, name: str) -> Json:
    return cast("Json", of.get(name) or {})


def described(schema: Json) -> Json:
    """The document whole: the data plane added, and for every operation how it refuses and what key it takes."""
    told, components = _data_plane()
    paths = cast("dict[str, Json]", schema.get("paths", {}))
    merged: dict[str, Json] = {path: dict(item) for path, item in told.items()}
    for path, item in paths.items():
        # With and without /v1 is one operation; the description does not describe itself.
        if f"/v1{path}" not in paths and f"/v1{path}" not in told and not path.startswith("/docs"):
            own = merged.setdefault(path, {})
            for verb, operation in item.items():
                own[verb] = _joined(cast("Json", operation), cast("Json | None", own.get(verb)))
    found = cast("dict[str, Json]", schema.get("components") or {})
    schemas = {**found.get("schemas", {}), **components}
    for path, item in merged.items():
        for operation in item.values():
            if isinstance(operation, dict):
                _refusing(path, cast("Json", operation))
    keys: Json = {"key": {"type": "http", "scheme": "bearer"}}
    return {**schema, "paths": merged, "components": {**found, "schemas": schemas, "securitySchemes": keys}}


def _joined(own: Json, ours: Json | None) -> Json:
    """A handler's own words with what only this module knows: its body and its answer."""
    return {**own} if ours is None else {**own, **ours, "parameters": own.get("parameters", [])}


def _refusing(path: str, operation: Json) -> None:
    """Every refusal looks alike; only readiness says by its status what is missing."""
    shape = "AnthropicError" if path.startswith("/v1/messages") else "Error"
    content = {_JSON: {"schema": {"$ref": f"#/components/schemas/{shape}"}}}
    told = cast("dict[str, Json]", operation.get("responses") or {})
    answers: Json = {code: cast("Json", _any_of(answer)) for code, answer in told.items() if code != "400"}
    if path.startswith(_EXPORTS):
        answers["200"] = {"description": "A file.", "content": {kind: {} for kind in _FILES}}
    elif _may_be_csv(operation):
        read = cast("Json", answers["200"])
        answers["200"] = {**read, "content": {**_part(read, "content"), "text/csv": {}}}
    if path in _READY:
        answers["503"] = {"description": "What is still loading.", "content": {_JSON: {"schema": {"type": "object"}}}}
    operation["responses"] = {**answers, "default": {"description": "Refused, and why.", "content": content}}
    if path not in _OPEN:
        operation["security"] = [{"key": []}]


def _may_be_csv(operation: Json) -> bool:
    """Whether `format=csv` makes a sheet of the answer."""
    forms = [one for one in cast("list[Json]", operation.get("parameters") or []) if one["name"] == "format"]
    return any("csv" in str(one["schema"]) for one in forms)


def _any_of(value: object) -> object:
    """A handler that may answer several shapes says `oneOf`; but an answer may fit more than one of them."""
    if isinstance(value, list):
        return [_any_of(item) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        found = cast("Json", value)
        return {"anyOf" if name == "oneOf" else name: _any_of(item) for name, item in found.items()}
    return value


@cache
def _data_plane() -> tuple[dict[str, Json], Json]:
    bodies = sorted({route.body for route in ROUTES if route.body is not None}, key=lambda shape: shape.__qualname__)
    shapes = [*bodies, Error, AnthropicError]
    made, components = msgspec.json.schema_components(shapes, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(shapes, made, strict=True))
    paths: dict[str, Json] = {}
    for route in ROUTES:
        operation: Json = {"summary": route.title, "description": route.words, "tags": ["Data plane"]}
        content = {kind: {"schema": {"type": "object"} if kind == _JSON else {}} for kind in route.answers}
        operation["responses"] = {"200": {"description": "As OpenAI or Anthropic answers it.", "content": content}}
        if route.body is not None:
            kind = "multipart/form-data" if route.form else _JSON
            operation["requestBody"] = {"required": True, "content": {kind: {"schema": schema_of[route.body]}}}
        names = [piece[1:-1] for piece in route.path.split("/") if piece.startswith("{")]
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
        paths.setdefault(route.path, {})[route.verb] = operation
    return paths, cast("Json", components)
