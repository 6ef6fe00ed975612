"""What is refused further in is told by the name that stands in the client's own request."""

from typing import Any

import msgspec
import pytest

from gateway.call import Need
from gateway.dialects import messages_answer, responses_answer
from gateway.dialects.messages import Messages
from gateway.dialects.responses import Responses
from gateway.errors import InvalidRequest, UpstreamRefused


@pytest.mark.parametrize(
    ("inner", "responses", "messages"),
    [
        ("verbosity", "text.verbosity", "verbosity"),
        ("max_completion_tokens", "max_output_tokens", "max_tokens"),
        ("messages[3].content[0].image_url", "input", "messages"),
        ("response_format.json_schema.schema", "text.format", "output_config.format"),
        ("user", "user", "metadata.user_id"),
        ("tools[0].function", "tools", "tools"),
    ],
)
def test_a_refusal_names_the_clients_field(inner: str, responses: str, messages: str) -> None:
    """A client cannot mend a field that it never sent."""
    error = InvalidRequest(f"'{inner}' cannot be had.", param=inner)
    for told, expected in (
        (responses_answer.refusal(error), responses),
        (messages_answer.refusal(error, "r"), messages),
    ):
        detail: Any = msgspec.json.decode(told[1])["error"]
        assert (detail["param"], detail["message"]) == (expected, f"'{expected}' cannot be had.")


@pytest.mark.parametrize("dialect", [Messages(), Responses()])
def test_what_is_wrong_in_the_request_itself_is_named_to_the_place(dialect: Messages | Responses) -> None:
    """A translation numbers messages and tools anew, so only what was found before it knows where things stand."""
    body: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    body |= {"input": "x", "tools": [{"name": "f"}, 5]}
    with pytest.raises(InvalidRequest) as caught:
        dialect.read(body)
    assert (caught.value.param or "").startswith("tools[")
    _, told = dialect.refusal(caught.value, "r")
    assert msgspec.json.decode(told)["error"]["param"] == caught.value.param
    need = Need(param="tools[1].type", message="'tools[1].type' is nobody's.").refusal()
    _, told = dialect.refusal(need, "r")
    assert msgspec.json.decode(told)["error"]["param"] == "tools[1].type"


def test_an_upstreams_own_words_without_a_field_stay() -> None:
    """There is nothing to rename in what names nothing."""
    error = UpstreamRefused(400, {"message": None, "type": "ValidationException"})
    detail: Any = msgspec.json.decode(responses_answer.refusal(error)[1])["error"]
    assert detail == {"message": None, "type": "ValidationException", "param": None, "code": None}
