"""`POST /tokenize` and `/detokenize`: what a model makes of a text or a chat, in vLLM's shape.

Knows: vLLM's fields, and SGLang's word for a text. Does not know: tokenizers. A bundled engine is asked, or the server
that the first place of the route is; nothing is held or recorded, and nothing of it costs anything.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, cast

import msgspec
from litestar import post
from msgspec import Meta, Struct

from gateway import wire
from gateway.auth import Keyring
from gateway.body import decode_object, read_body
from gateway.call import Body, Principal
from gateway.catalog import Catalog, Target
from gateway.errors import InvalidRequest, NotAllowed
from gateway.ids import uuid7
from gateway.providers import Provider, Sending, TellsTokens, TokenPath
from gateway.providers.local import LocalProvider
from gateway.routes.asker import AnyRequest, asker
from gateway.routes.desks import desk
from gateway.settings import Server
from gateway.wire_shapes import Model

_PATIENCE = 3.0
_OF_CHAT = ("messages", "tools", "chat_template", "chat_template_kwargs")


class Tokenize(Struct, kw_only=True):
    """`prompt`, or `messages` and theirs; `add_special_tokens` is true for the one, false for the others."""

    model: Model
    prompt: str | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Detokenize(Struct, kw_only=True):
    """Ids of that model."""

    model: Model
    tokens: Annotated[list[int], Meta(max_length=131_072)]


Shape = TypeVar("Shape", Tokenize, Detokenize)


class Desk:
    """`monotonic`: seconds that never go back."""

    def __init__(
        self,
        catalog: Catalog,
        providers: Mapping[str, Provider],
        keyring: Keyring,
        server: Server,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._catalog = catalog
        self._providers = providers
        self._keyring = keyring
        self._server = server
        self._monotonic = monotonic

    async def tokenize(self, request: AnyRequest) -> Body:
        principal = await asker(self._keyring, request.scope)
        body = await self._body(request)
        asked = _read(body, Tokenize)
        provider, target = self._place(asked.model, principal)
        if (asked.prompt is None) == (asked.messages is None):
            raise InvalidRequest("Either 'prompt' or 'messages' is needed.", param="prompt", code="invalid_value")
        if not isinstance(provider, LocalProvider):
            told = await _there(provider, target, "tokenize", body, Tokenize)
            return {name: told.get(name) for name in ("count", "max_model_len", "tokens", "token_strs")}
        _refuse(asked)
        sending = _sending(asked, body, target)
        ids = await provider.tokens(sending, specials=asked.add_special_tokens)
        pieces = (await provider.spelled(target.model, ids)).pieces if asked.return_token_strs else None
        window = provider.window(target.model)
        return {"count": len(ids), "max_model_len": window, "tokens": ids, "token_strs": pieces}

    async def detokenize(self, request: AnyRequest) -> Body:
        principal = await asker(self._keyring, request.scope)
        body = await self._body(request)
        asked = _read(body, Detokenize)
        provider, target = self._place(asked.model, principal)
        if not isinstance(provider, LocalProvider):
            told = await _there(provider, target, "detokenize", body, Detokenize)
            return {"prompt": told["prompt"] if "prompt" in told else told.get("text")}
        try:
            return {"prompt": (await provider.spelled(target.model, asked.tokens)).text}
        except InvalidRequest as error:
            error.param = "tokens" if error.param == "prompt" else error.param
            raise

    def _place(self, model: str, principal: Principal) -> tuple[LocalProvider | TellsTokens, Target]:
        """The first place of a route. Raises NotFound, NotAllowed, InvalidRequest."""
        target = self._catalog.resolve(model).targets[0]
        if principal.models is not None and model not in principal.models:
            raise NotAllowed(f"This key may not use the model `{model}`.", param="model")
        provider = self._providers[target.provider]
        if isinstance(provider, LocalProvider):
            if provider.window(target.model) is not None:
                return provider, target
        elif isinstance(provider, TellsTokens):
            return provider, target
        raise _unknown()

    async def _body(self, request: AnyRequest) -> Body:
        headers: Any = request.scope["headers"]
        limit, patience = self._server.max_body, self._server.body_timeout
        return decode_object(
            await read_body(request.receive, headers, limit=limit, timeout=patience, monotonic=self._monotonic)
        )


def _read(body: Body, shape: type[Shape]) -> Shape:
    try:
        return msgspec.convert(body, shape)
    except msgspec.ValidationError as error:
        raise wire.explain(str(error)) from None


async def _there(
    provider: TellsTokens, target: Target, path: TokenPath, body: Body, shape: type[Tokenize | Detokenize]
) -> Body:
    """What the server says, of the fields that are known here. Raises GatewayError."""
    known = {name: body[name] for name in shape.__struct_fields__ if body.get(name) is not None}
    told = await provider.told_of_tokens(path, {**known, "model": target.model})
    if told is None:
        raise _unknown()
    return told


def _unknown() -> InvalidRequest:
    message = (
        "Only models that a bundled engine runs, once they are loaded, and those of vLLM's and SGLang's servers have "
        "tokens that are known here."
    )
    return InvalidRequest(message, param="model", code="unsupported_value")


def _refuse(asked: Tokenize) -> None:
    """What would give other tokens than a request to this model reads."""
    for name, usual in (("add_generation_prompt", True), ("continue_final_message", False)):
        if getattr(asked, name) not in (None, usual):
            message = f"'{name}' can only be {str(usual).lower()} here: so a chat is read."
            raise InvalidRequest(message, param=name, code="unsupported_value")


def _sending(asked: Tokenize, body: Body, target: Target) -> Sending:
    if asked.messages is None:
        told: Body = {"model": asked.model, "prompt": asked.prompt}
        wire.check_completion(told)
    else:
        told = {"model": asked.model, **{name: body[name] for name in _OF_CHAT if body.get(name) is not None}}
        wire.check_chat(told)
    return Sending(
        id=uuid7(),
        operation="completion" if asked.messages is None else "chat",
        model=target.model,
        body=cast("Body", {**told, "model": target.model}),
        stream=False,
        tenant="",
        timeout=_PATIENCE,
        idle=_PATIENCE,
    )


def route_handlers() -> list[Any]:
    """With and without `/v1`: vLLM's are beside it."""
    both: Any = {"tags": ["Data plane"], "status_code": 200}

    @post(["/v1/tokenize", "/tokenize"], summary="Tokens of a text or a chat", **both)
    async def tokenize(request: AnyRequest) -> Body:
        return await desk(Desk, request).tokenize(request)

    @post(["/v1/detokenize", "/detokenize"], summary="Text of tokens", **both)
    async def detokenize(request: AnyRequest) -> Body:
        return await desk(Desk, request).detokenize(request)

    return [tokenize, detokenize]
