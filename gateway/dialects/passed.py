"""Moderations, images and audio: checked, charged and passed on to a provider that has them, and its answer as it came.

Knows: what must stand in such a request. Does not know: how providers are asked, money.
"""

from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct

from gateway import wire
from gateway.call import Body, Operation
from gateway.dialects import Asked
from gateway.errors import GatewayError, InvalidRequest
from gateway.wire_shapes import Label, Model

PAYLOAD, MEDIA_TYPE = "payload", "media_type"  # of an answer that is passed: its bytes, and what they are
FILES = "files"  # of a request that is a form: [(field, file name, media type, bytes)]
_JSON = "application/json"
_DEFAULT_MODERATION = "omni-moderation-latest"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, object]).decode
Json = dict[str, Any]


class Moderation(Struct, gc=False, kw_only=True):
    """POST /v1/moderations."""

    model: Model = _DEFAULT_MODERATION
    input: Annotated[str, Meta(min_length=1)] | Annotated[list[str | Json], Meta(min_length=1, max_length=2_048)]


class Image(Struct, gc=False, kw_only=True):
    """POST /v1/images/generations."""

    model: Model
    prompt: Annotated[str, Meta(min_length=1, max_length=32_000)]
    n: Annotated[int, Meta(ge=1, le=10)] | None = None
    stream: Literal[False] | None = None
    user: Label = None


class Speech(Struct, gc=False, kw_only=True):
    """POST /v1/audio/speech."""

    model: Model
    input: Annotated[str, Meta(min_length=1, max_length=4_096)]
    voice: Annotated[str, Meta(min_length=1, max_length=128)] | Json
    speed: Annotated[float, Meta(ge=0.25, le=4)] | None = None
    stream_format: Literal["audio"] | None = None


class Sound(Struct, gc=False, kw_only=True):
    """POST /v1/audio/transcriptions and /v1/audio/translations; a form, so every field is text."""

    model: Model
    files: list[Any]
    stream: Literal["false"] | None = None


class Picture(Struct, gc=False, kw_only=True):
    """POST /v1/images/variations; a form."""

    model: Model
    files: list[Any]
    n: Literal["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"] | None = None
    user: Label = None


class Edit(Picture, gc=False, kw_only=True):
    """POST /v1/images/edits; a form."""

    prompt: Annotated[str, Meta(min_length=1, max_length=32_000)]
    stream: Literal["false"] | None = None


_SHAPES: dict[str, type[Struct]] = {
    "moderation": Moderation,
    "image": Image,
    "image_edit": Edit,
    "image_variation": Picture,
    "speech": Speech,
    "transcription": Sound,
    "translation": Sound,
}


class Passed:
    """Obeys gateway.dialects.Dialect."""

    repeats = False

    def __init__(self, operation: Operation) -> None:
        self.name: str = operation
        self.operation: Operation = operation

    def read(self, body: Body) -> Asked:
        if self.operation == "moderation" and body.get("model") is None:
            body = {**body, "model": _DEFAULT_MODERATION}
        try:
            asked = msgspec.convert(body, _SHAPES[self.operation])
        except msgspec.ValidationError as error:
            raise wire.explain(str(error)) from None
        model = cast("str", body["model"])
        if not model.isprintable():
            raise InvalidRequest("'model' holds characters that cannot be printed.", param="model")
        if isinstance(asked, Sound | Picture):
            _check_files(asked)
        return Asked(body=body, stream=False, include_usage=False, voice=PassedVoice(model))

    def refusal(self, error: GatewayError, request_id: str) -> tuple[int, bytes]:  # noqa: ARG002 - stands in a header
        return error.http_status, error.body()

    def lines(self, request_id: str) -> str:  # noqa: ARG002 - OpenAI's name for it is on every answer
        return ""


def _check_files(asked: Sound | Picture) -> None:
    wanted = "file" if isinstance(asked, Sound) else "image"
    if not any(name.removesuffix("[]") == wanted for name, *_ in asked.files):
        raise InvalidRequest(
            f"Missing required parameter: '{wanted}'.", param=wanted, code="missing_required_parameter"
        )


class PassedVoice:
    """Obeys gateway.dialects.Voice. `media_type`: of the answer, once it has been told."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.media_type = _JSON

    def expect(self, usage: object) -> None:
        """Usage is told in the answer itself."""

    def whole(self, body: Body) -> bytes:
        """The provider's bytes; where they name a model, it is the one that was asked for."""
        payload = cast("bytes", body[PAYLOAD])
        self.media_type = str(body[MEDIA_TYPE])
        if self.media_type.partition(";")[0].strip().lower() != _JSON:
            return payload
        told = _decode(payload)
        return _encode({**told, "model": self._model}) if "model" in told else payload

    def events(self, data: Body) -> bytes:
        raise NotImplementedError("what is passed is never streamed")

    def end(self) -> bytes:
        return b""

    def failed(self, error: GatewayError) -> bytes:
        return error.body()
