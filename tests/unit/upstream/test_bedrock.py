"""Bedrock's language at its edges: signatures, frames, fields it cannot honour, refusals, endings, usage."""

import asyncio
import calendar
import zlib
from contextlib import aclosing
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from gateway.call import Body, Chunk
from gateway.errors import InvalidRequest, Overloaded, UpstreamFailed, UpstreamRefused, in_doubt
from gateway.providers import Partial, Sending
from gateway.providers.bedrock import BedrockProvider, build
from gateway.settings import ProviderSettings
from gateway.stream import StreamGarbage
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.upstream.bedrock_answers import usage_of
from gateway.upstream.bedrock_embeddings import embedded
from gateway.upstream.bedrock_requests import translated
from gateway.upstream.event_frames import FrameParser
from gateway.upstream.sigv4 import Signer
from policies.money import Usage
from tests.languages.bedrock import frame
from tests.unit.upstream.raw_upstream import Answer, RawUpstream, fixed, raw_upstream, response

TITAN = "amazon.titan-embed-text-v2:0"
KEY_ID, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
NOON = calendar.timegm((2026, 11, 21, 12, 0, 0))
ARN = "arn:aws:bedrock:eu-central-1:1:inference-profile/eu.x-v1:0"
USER: Body = {"role": "user", "content": "hello"}
START = frame("messageStart", {"role": "assistant"})
TEXT = frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "hi"}})
STOP = frame("messageStop", {"stopReason": "end_turn"})
END = frame("metadata", {"usage": {"inputTokens": 2, "outputTokens": 3, "totalTokens": 5}})
WHOLE = (START, TEXT, STOP, END)
BUSY = frame("throttlingException", {"message": "Too many requests"}, "exception")
BROKEN = frame("modelStreamErrorException", {"message": "lost it"}, "exception")


def sending(model: str = "amazon.nova-lite-v1:0", *, stream: bool = True, **body: Any) -> Sending:
    full: Body = {"messages": [USER], "max_tokens": 9, **body, "model": model}
    waits: dict[str, Any] = {"timeout": 5.0, "idle": 5.0}
    return Sending(id="a-1", operation="chat", model=model, body=full, stream=stream, tenant="t", **waits)


def provider(url: str, transport: DirectTransport, key: str) -> BedrockProvider:
    settings = ProviderSettings(
        kind="bedrock",
        base_url=url,
        api_key=SecretStr(key),
        region="eu-central-1",  # pyright: ignore[reportCallIssue] - a setting of this kind
    )
    return build("up", settings, transport=transport, tasks=Tasks(), now=lambda: NOON)


def stream_of(*frames: bytes) -> bytes:
    raw = b"".join(frames)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + (b"%x\r\n%b\r\n" % (len(raw), raw) if raw else b"") + b"0\r\n\r\n"


async def ask(
    answer: Answer, what: Sending, key: str = "bedrock-key-1"
) -> tuple[list[Chunk], Exception | None, RawUpstream]:
    seen: list[Chunk] = []
    transport = DirectTransport()
    async with raw_upstream(answer) as up:
        to = provider(f"http://127.0.0.1:{up.port}", transport, key)
        try:
            async with aclosing(to.send(what)) as chunks:
                async for chunk in chunks:
                    seen.append(chunk)  # noqa: PERF401 - kept also when an error follows
        except (UpstreamFailed, Overloaded, InvalidRequest, Partial) as error:
            return seen, error, up
        finally:
            await transport.close()
    return seen, None, up


@pytest.mark.parametrize(
    ("token", "signature"),
    [
        ("", "ec3a3bef51fa818c4eba1ccae90ceac7031632a2f3969c77b5379b9daa69cabf"),
        ("TOKEN/+=", "6a38bd7fa99e9423dcc67c6bd32ad2ea0ca82bd7531d9664738caa5bc12b0696"),
    ],
)
def test_signatures_are_those_that_botocore_makes(token: str, signature: str) -> None:
    """A colon in a model's name is where hand-made signers fail: the path is encoded once more for signing."""
    host = "https://bedrock-runtime.eu-central-1.amazonaws.com"
    url = f"{host}/model/anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream"
    signer = Signer(KEY_ID, SECRET, token, "eu-central-1", "bedrock")
    made = signer.sign("POST", url, {"Content-Type": "application/json"}, b'{"a":"b"}', NOON)
    assert made["Authorization"].endswith(f"Signature={signature}")
    assert made.get("X-Amz-Security-Token", "") == token
    assert SECRET not in repr(signer)


def test_the_signature_of_the_published_example() -> None:
    """`get-vanilla` of AWS's own test suite: the whole algorithm in one number."""
    at = calendar.timegm((2015, 8, 30, 12, 36, 0))
    signer = Signer("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "", "us-east-1", "service")
    made = signer.sign("GET", "https://example.amazonaws.com/", {}, b"", at)
    assert made["Authorization"].endswith("5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31")


@pytest.mark.parametrize(
    ("method", "path", "headers", "content", "signature"),
    [
        (
            "GET",
            "/test.txt",
            {"Range": "bytes=0-9"},
            b"",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        ("GET", "/?lifecycle", {}, b"", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        (
            "PUT",
            "/test%24file.text",
            {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            b"Welcome to Amazon S3.",
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
    ],
)
def test_s3_is_signed_as_its_examples_are(
    method: str, path: str, headers: dict[str, str], content: bytes, signature: str
) -> None:
    """It alone wants a path as it stands in the address, and the hash of the content in a header."""
    at = calendar.timegm((2013, 5, 24, 0, 0, 0))
    signer = Signer(KEY_ID, SECRET, "", "us-east-1", "s3")
    made = signer.sign(method, f"https://examplebucket.s3.amazonaws.com{path}", headers, content, at)
    assert made["Authorization"].endswith(f"Signature={signature}")


async def test_an_access_key_signs_and_is_never_sent() -> None:
    """The secret of a key pair must not leave the process; the address must be the one that was signed."""
    _, error, up = await ask(fixed(stream_of(*WHOLE)), sending(ARN), f"{KEY_ID}:{SECRET}:TOKEN")
    assert error is None
    heard = up.heard[0]
    assert heard.line == (
        "POST /model/arn%3Aaws%3Abedrock%3Aeu-central-1%3A1%3Ainference-profile%2Feu.x-v1%3A0/converse-stream HTTP/1.1"
    )
    assert heard.headers["authorization"].startswith(f"AWS4-HMAC-SHA256 Credential={KEY_ID}/20261121/eu-central-1/")
    assert heard.headers["x-amz-date"] == "20261121T120000Z"
    assert heard.headers["x-amz-security-token"] == "TOKEN"
    assert SECRET not in str(heard)
    url = f"http://127.0.0.1:{up.port}{heard.line.split()[1]}"
    signer = Signer(KEY_ID, SECRET, "TOKEN", "eu-central-1", "bedrock")
    again = signer.sign("POST", url, {"Content-Type": "application/json"}, heard.body, NOON)
    assert heard.headers["authorization"] == again["Authorization"]


async def test_an_api_key_is_a_bearers_token() -> None:
    """Bedrock's own API keys need no signature."""
    _, error, up = await ask(fixed(stream_of(*WHOLE)), sending(), "ABSKQmVkcm9ja0FQSUtleS1x")
    assert error is None
    assert up.heard[0].headers["authorization"] == "Bearer ABSKQmVkcm9ja0FQSUtleS1x"
    assert "x-amz-date" not in up.heard[0].headers


def test_settings_that_cannot_work_are_refused() -> None:
    """A signature needs a region, and an address can be made of nothing else."""
    for extra in ({}, {"base_url": "https://vpce.example.com", "api_key": SecretStr(f"{KEY_ID}:{SECRET}")}):
        given: Any = {"api_key": SecretStr("token"), **extra}
        with pytest.raises(ValueError, match=r"providers\.up"):
            build("up", ProviderSettings(kind="bedrock", **given), transport=DirectTransport(), tasks=Tasks())
    told = ProviderSettings(
        kind="bedrock",
        base_url="https://bedrock-runtime.eu-west-1.amazonaws.com",
        api_key=SecretStr(f"{KEY_ID}:{SECRET}"),
    )
    assert SECRET not in repr(build("up", told, transport=DirectTransport(), tasks=Tasks()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("temperature", 1.5),
        ("seed", 1),
        ("frequency_penalty", 1),
        ("logprobs", True),
        ("response_format", {"type": "json_object"}),
        ("reasoning_effort", "ultra"),
        ("service_tier", "scale"),
        ("web_search_options", {}),
        ("tools", [{"type": "web_search"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f-1"}}]}]),
        ("messages", [{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "3"}}]}]),
    ],
)
def test_a_defined_field_it_cannot_honour_is_named(field: str, value: Any) -> None:
    """Dropping what the client asked for in silence gives it another answer than it wanted."""
    with pytest.raises(InvalidRequest) as refusal:
        translated(sending(**{field: value}))
    assert (refusal.value.param or "").startswith(field)


def test_effort_and_schema_stand_side_by_side() -> None:
    """Both are parts of one field, and neither may push the other out."""
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
    made: Any = translated(sending(reasoning_effort="minimal", response_format=schema))
    assert made["outputConfig"]["effort"] == "low"
    assert made["outputConfig"]["textFormat"]["type"] == "json_schema"
    assert "outputConfig" not in translated(sending(reasoning_effort="none"))


async def test_a_text_with_citations_is_not_lost() -> None:
    """Converse wraps what it can prove in a block of its own; it is the answer all the same."""
    content = [{"citationsContent": {"content": [{"text": "It is y."}], "citations": []}}, {"text": " So."}]
    whole = {"output": {"message": {"content": content}}, "stopReason": "end_turn", "usage": {}}
    chunks, error, _ = await ask(fixed(response("200 OK", msgspec.json.encode(whole))), sending(stream=False))
    assert error is None
    told: Any = chunks[0].data
    assert told["choices"][0]["message"]["content"] == "It is y. So."


def test_no_tools_are_sent_where_none_may_be_called() -> None:
    """Converse has no `none`: leaving the tools out says it, unless the conversation already holds a call."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert "toolConfig" not in translated(sending(tools=tools, tool_choice="none"))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    earlier = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": ""}]
    made: Any = translated(sending(tools=tools, messages=earlier))
    assert made["messages"][2]["content"] == [{"toolResult": {"toolUseId": "c", "content": [{"json": {}}]}}]
    with pytest.raises(InvalidRequest) as refusal:
        translated(sending(tools=tools, tool_choice="none", messages=earlier))
    assert refusal.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("status", "kind", "message", "code"),
    [
        (400, "ValidationException", "Input is too long for requested model.", "context_length_exceeded"),
        (403, "ExpiredTokenException", "The security token is expired", "invalid_api_key"),
        (404, "ResourceNotFoundException", "no such model", "model_not_found"),
        (429, "ThrottlingException", "Too many tokens", "rate_limit_exceeded"),
    ],
)
async def test_refusals_keep_their_words_and_get_openais_codes(status: int, kind: str, message: str, code: str) -> None:
    """AWS tells the kind of an error in a header."""
    for field in ("message", "Message"):
        raw = response(f"{status} No", msgspec.json.encode({field: message}), f"x-amzn-errortype: {kind}:http://x")
        _, error, _ = await ask(fixed(raw), sending())
        assert isinstance(error, UpstreamRefused)
        assert error.http_status == status
        told = f"up: {message}" if status == 429 else message
        assert error.detail() == {"message": told, "type": kind, "param": None, "code": code}


async def test_throttled_before_the_first_word_may_be_tried_elsewhere() -> None:
    """Exceptions come as frames of a stream that began with 200."""
    _, error, _ = await ask(fixed(response("503 Busy", b'{"message":"busy"}')), sending())
    assert isinstance(error, Overloaded)
    seen, error, _ = await ask(fixed(stream_of(START, BUSY)), sending())
    assert (seen, type(error)) == ([], Overloaded)
    _, error, _ = await ask(fixed(stream_of(BROKEN)), sending())
    assert isinstance(error, UpstreamFailed)
    assert error.doubtful
    for late in (BUSY, BROKEN):
        seen, error, _ = await ask(fixed(stream_of(START, TEXT, late)), sending())
        assert isinstance(error, Partial)
        assert len(seen) == 2


@pytest.mark.parametrize("keep", range(len(WHOLE)))
async def test_a_stream_that_lacks_its_end_is_never_whole(keep: int) -> None:
    """Without the usage there is no exact money, so the answer ends with it."""
    seen, error, _ = await ask(fixed(stream_of(*WHOLE[:keep])), sending())
    assert isinstance(error, Partial if seen else UpstreamFailed)


@pytest.mark.parametrize("raw", [b"null", b"{}", b'{"output":{}}'])
async def test_a_body_that_is_no_answer_is_a_failure(raw: bytes) -> None:
    """A 200 that holds nothing must not become an empty answer somebody caches."""
    _, error, _ = await ask(fixed(response("200 OK", raw)), sending(stream=False))
    assert type(error) is UpstreamFailed


def test_every_bit_of_a_frame_is_checked() -> None:
    """A flipped bit in a length or a payload would otherwise become text, or a wait without end."""
    for place in range(len(TEXT)):
        broken = bytearray(TEXT)
        broken[place] ^= 0x10
        with pytest.raises(StreamGarbage):
            FrameParser().feed(bytes(broken) + END)


def test_what_came_before_a_broken_frame_is_given_out() -> None:
    """Tokens that arrived are paid for; the failure is told with the next packet."""
    parser = FrameParser()
    assert len(parser.feed(START + TEXT + b"\x00" * 16)) == 2
    with pytest.raises(StreamGarbage):
        parser.feed(b"")


def test_a_frame_beyond_every_bound_is_refused_at_its_head() -> None:
    """Four gigabytes are announced in four bytes; they must not be waited for."""
    head = (0xFFFFFFF0).to_bytes(4, "big") + bytes(4)
    with pytest.raises(StreamGarbage):
        FrameParser().feed(head + zlib.crc32(head).to_bytes(4, "big"))


def test_usage_counts_every_token_once() -> None:
    """What is read from and written to the cache stands beside the input here, and is told by its time to live."""
    told: Body = {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 100, "cacheWriteInputTokens": 30}
    usage: Any = usage_of(
        {**told, "cacheDetails": [{"ttl": "1h", "inputTokens": 20}, {"ttl": "5m", "inputTokens": 10}]}
    )
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (140, 5, 145)
    assert usage["cache_creation"] == {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}
    assert usage_of({"inputTokens": 10}) is None


async def test_models_are_those_configured() -> None:
    """The list is kept at another host, for which this credential is not meant."""
    settings = ProviderSettings(
        kind="bedrock",
        api_key=SecretStr("token"),
        region="eu-central-1",  # pyright: ignore[reportCallIssue] - a setting of this kind
        models=["amazon.nova-lite-v1:0"],  # pyright: ignore[reportCallIssue] - the same
    )
    made = build("up", settings, transport=DirectTransport(), tasks=Tasks())
    assert await made.models() == ["amazon.nova-lite-v1:0"]


class Titan:
    """Fails from the `fails`th text on; `most`: how many were asked at once."""

    def __init__(self, fails: int | None = None) -> None:
        self.fails = fails
        self.asked = 0
        self.running = self.most = 0

    async def __call__(self, body: Body) -> tuple[Body, dict[str, str]]:
        self.asked += 1
        number = self.asked
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        if self.fails is not None and number >= self.fails:
            raise UpstreamRefused(429, {"message": "slow down"})
        return {"embedding": [float(str(body["inputText"]))], "inputTextTokenCount": 3}, {}


def texts(count: int, **more: Any) -> Sending:
    body: Body = {"input": [str(number) for number in range(count)], **more}
    return msgspec.structs.replace(sending(model=TITAN, stream=False), operation="embedding", body=body)


async def test_a_text_at_a_time_but_several_at_once() -> None:
    """Two thousand one after another would take minutes, and all at once would use up a limit in a second."""
    titan = Titan()
    told: Any = (await embedded(texts(50), titan)).data
    assert [row["embedding"] for row in told["data"]] == [[float(number)] for number in range(50)]
    assert (told["usage"]["prompt_tokens"], titan.most) == (150, 8)


async def test_texts_that_were_embedded_before_a_failure_are_owed() -> None:
    """Another place would be paid for them again; a first failure costs nothing and another may be asked."""
    with pytest.raises(UpstreamRefused):
        await embedded(texts(5), Titan(fails=1))
    with pytest.raises(UpstreamFailed) as failed:
        await embedded(texts(50), Titan(fails=20))
    assert in_doubt(failed.value)


@pytest.mark.parametrize("vector", [None, [], ["x"], [None], {"a": 1}])
async def test_a_vector_that_is_none_is_a_failure(vector: object) -> None:
    """Kept and compared it would be near to everything, or break the search."""

    async def ask(_: Body) -> tuple[Body, dict[str, str]]:
        return {"embedding": vector, "inputTextTokenCount": 1}, {}

    with pytest.raises(UpstreamFailed):
        await embedded(texts(1), ask)


@pytest.mark.parametrize(
    ("told", "headers", "count"),
    [
        ({}, {"x-amzn-bedrock-input-token-count": "7"}, 7),
        ({}, {}, None),
        ({}, {"x-amzn-bedrock-input-token-count": "x"}, None),
        ({}, {"x-amzn-bedrock-input-token-count": "9" * 5_000}, None),  # more digits than Python reads
    ],
)
async def test_cohere_counts_in_a_header(told: Body, headers: dict[str, str], count: int | None) -> None:
    """Without it nobody knows: the most that it can be is charged as an estimate, never nothing."""

    async def ask(body: Body) -> tuple[Body, dict[str, str]]:
        assert body == {"input_type": "search_document", "texts": ["0"], "embedding_types": ["float", "int8"]}
        return {"embeddings": {"float": [[0.5]], "int8": [[1]]}, **told}, headers

    what = texts(1, embedding_types=["float", "int8"])
    chunk = await embedded(msgspec.structs.replace(what, model="cohere.embed-english-v3"), ask)
    assert chunk.usage == (None if count is None else Usage(prompt=count))


@pytest.mark.parametrize("count", [-1, 1 << 62, "7", None, 1.5])
async def test_a_count_that_can_be_none_is_not_charged(count: object) -> None:
    """One below zero, added to the others', would take money off the bill; an absurd one would empty every budget."""

    async def ask(_: Body) -> tuple[Body, dict[str, str]]:
        return {"embedding": [0.5], "inputTextTokenCount": count}, {}

    chunk = await embedded(texts(2), ask)
    assert chunk.usage is None
    assert "usage" not in chunk.data


@pytest.mark.parametrize("model", [TITAN, "cohere.embed-v4:0"])
async def test_a_field_of_the_models_own_is_no_other_text(model: str) -> None:
    """What is embedded is `input`, by which the answer is kept and found: not what stands beside it in other words."""
    asked: list[Body] = []

    async def ask(body: Body) -> tuple[Body, dict[str, str]]:
        asked.append(body)
        return {"embedding": [0.5], "embeddings": [[0.5]], "inputTextTokenCount": 1}, {}

    await embedded(msgspec.structs.replace(texts(1, inputText="other", texts=["other"]), model=model), ask)
    assert asked[0]["inputText" if model == TITAN else "texts"] == ("0" if model == TITAN else ["0"])


@pytest.mark.parametrize("model", ["amazon.titan-embed-text-v1", "us.cohere.embed-multilingual-v3"])
async def test_vectors_of_one_size_cannot_be_shortened(model: str) -> None:
    """Left out in silence, a client would store vectors that do not fit its index."""
    with pytest.raises(InvalidRequest) as refusal:
        await embedded(msgspec.structs.replace(texts(1, dimensions=256), model=model), Titan())
    assert refusal.value.param == "dimensions"
