"""POST /v1/responses and /v1/responses/input_tokens, and what becomes of requests for a response of before.

What is said there is `gateway.dialects`'s. Responses are not kept, so there is none to get, delete or cancel.
"""

from typing import Any

from litestar import Request, delete, get, post
from litestar.datastructures import State
from litestar.params import FromPath

from gateway.auth import Keyring
from gateway.dialects.responses import Responses
from gateway.errors import NotFound
from gateway.prompt_tokens import Counter
from gateway.routes.messages import Counting
from gateway.routes.openai import Edge, Endpoint, Endpoints

_Asked = Request[Any, Any, State]


def endpoints(edge: Edge, counter: Counter) -> Endpoints:
    """By path, without `/v1`."""
    shape: dict[str, object] = {"object": "response.input_tokens"}
    return {
        "/responses": Endpoint(edge, Responses()),
        "/responses/input_tokens": Counting(edge, Responses(), counter, shape),
    }


def route_handlers(keyring: Keyring) -> list[Any]:
    """With and without `/v1`: a refusal that says why, instead of one that doubts the path."""

    async def refuse(request: _Asked, response: str) -> None:
        await keyring.identify(request.scope["headers"])
        raise NotFound(
            f"Response '{response[:100]}' was not found: responses are not kept here.", code="response_not_found"
        )

    @get(["/v1/responses/{response:str}", "/responses/{response:str}"])
    async def get_response(request: _Asked, response: FromPath[str]) -> None:
        await refuse(request, response)

    @get(["/v1/responses/{response:str}/input_items", "/responses/{response:str}/input_items"])
    async def get_items(request: _Asked, response: FromPath[str]) -> None:
        await refuse(request, response)

    @delete(["/v1/responses/{response:str}", "/responses/{response:str}"])
    async def delete_response(request: _Asked, response: FromPath[str]) -> None:
        await refuse(request, response)

    @post(["/v1/responses/{response:str}/cancel", "/responses/{response:str}/cancel"])
    async def cancel_response(request: _Asked, response: FromPath[str]) -> None:
        await refuse(request, response)

    return [get_response, get_items, delete_response, cancel_response]
