"""Error responses of upstreams of every make, and credentials that stay at home."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from gateway.errors import UpstreamFailed, UpstreamRefused
from gateway.failovers import is_failing
from gateway.transport.credential import Credential, WrongHost
from gateway.transport.refusal import refused, retry_after

DATE = "Wed, 21 Oct 2026 07:28:00 GMT"
NOWHERE = "up has nothing at the address that it was asked at. Its base_url may be wrong: most end in /v1."


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": DATE}, 30.0),
        ({"retry-after": DATE, "date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({"retry-after": DATE}, None),
        ({"retry-after": "soon", "date": DATE}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e9"}, 86_400.0),
        ({"retry-after-ms": "x", "retry-after": "2"}, 2.0),
        ({}, None),
    ],
)
def test_retry_after_in_all_its_forms(headers: dict[str, str], expected: float | None) -> None:
    """The wait an upstream asks for steers retries; nonsense must neither crash nor stall them."""
    assert retry_after(headers) == expected


@pytest.mark.parametrize(
    ("status", "raw", "code"),
    [
        (
            404,
            b'{"error":{"message":"The model `x` does not exist. Valid aliases: demo.","code":404}}',
            "model_not_found",
        ),
        (404, b'{"message":"Model not found","type":"Not Found","code":404}', "model_not_found"),
        (
            404,
            b'{"detail":"Got request for model \\"x\\". Could not find base model with ID \\"x\\"."}',
            "model_not_found",
        ),
        (404, b'{"detail":"Not Found"}', None),
        (400, b'{"error":{"message":"temperature must be in [0, 2], got 9.0.","code":400}}', None),
        (400, b'{"error":{"message":"The model `x` does not exist.","code":"bad_model"}}', "bad_model"),
    ],
)
def test_a_status_is_no_code(status: int, raw: bytes, code: str | None) -> None:
    """vLLM and Dynamo repeat the status as a number where OpenAI has a word or null, on which clients branch."""
    assert refused("up", status, {}, raw).detail()["code"] == code


def test_what_a_server_does_not_have_is_no_failure_of_it() -> None:
    """llama.cpp says so of embeddings it was not started for: five who asked would have shut it to chats."""
    raw = b'{"error":{"code":501,"message":"This server does not support embeddings.","type":"not_supported_error"}}'
    error = refused("up", 501, {}, raw)
    assert isinstance(error, UpstreamRefused)
    assert (error.http_status, error.detail()["code"]) == (400, "unsupported_operation")
    assert (error.unwanted, is_failing(error)) == (True, False)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b'{"error":{"message":"m","type":null,"code":429}}', "m"),
        (b'{"error":"plain text"}', "plain text"),
        (b'{"object":"error","message":"vllm","code":400}', "vllm"),
        (b'{"detail":"fastapi"}', "fastapi"),
        (b"<html>", NOWHERE),
        (b"", NOWHERE),
        (b"null", NOWHERE),
        (b'{"error":{"message":{"nested":1}}}', "up refused this request with status 404."),
    ],
)
def test_every_makes_error_becomes_openais(raw: bytes, message: str) -> None:
    """Clients read four keys, whatever server stands behind."""
    error: Any = refused("up", 404, {}, raw)
    assert isinstance(error, UpstreamRefused)
    assert error.detail()["message"] == message
    assert error.detail()["type"] is not None
    assert set(error.detail()) == {"message", "type", "param", "code"}


@given(st.integers(300, 599), st.binary(max_size=80))
def test_any_error_response_is_told(status: int, raw: bytes) -> None:
    """No status and no body may raise anything but the one error."""
    error = refused("up", status, {}, raw)
    assert isinstance(error, UpstreamFailed)
    assert isinstance(error, UpstreamRefused) is (400 <= status < 500 or status == 501)
    assert error.body()


@given(
    st.sampled_from(["https", "http"]),
    st.sampled_from(["a.example", "b.example", "a.example.evil"]),
    st.integers(1, 65535),
)
def test_a_credential_is_given_to_its_own_host_only(scheme: str, host: str, port: int) -> None:
    """Scheme, host and port together; a sub-domain or another port is somebody else."""
    credential = Credential(SecretStr("sk-x"), "https://a.example/v1")
    url = f"{scheme}://{host}:{port}/v1/chat/completions"
    if (scheme, host, port) == ("https", "a.example", 443):
        assert credential.headers_for(url) == {"Authorization": "Bearer sk-x"}
    else:
        with pytest.raises(WrongHost):
            credential.headers_for(url)


@pytest.mark.parametrize(
    ("raw", "astray"),
    [
        (b'{"detail":"Not Found"}', True),
        (b"404 page not found", True),
        (b"<html>nothing here</html>", True),
        (b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}', True),
        (b'{"error":{"message":"Invalid URL (POST /chat/completions)","type":"invalid_request_error"}}', False),
    ],
)
def test_an_address_without_anything_is_not_the_clients_mistake(raw: bytes, astray: bool) -> None:
    """With a `base_url` that lacks /v1 clients read "Not Found", as if of their model, and no other place was asked."""
    error = refused("up", 404, {}, raw)
    assert error.unwanted is astray
    assert (str(error) == NOWHERE) is astray


@pytest.mark.parametrize("code", ["model_not_found", "DeploymentNotFound"])
def test_a_model_that_a_place_does_not_have_another_may(code: str) -> None:
    """Clients ask for a name; that it leads to a model which was taken away there is nothing that they can mend."""
    error = refused("up", 404, {}, msgspec.json.encode({"error": {"message": "no", "code": code}}))
    assert error.unwanted
    assert error.detail()["code"] == code
