"""What services say of their batches, at its edges: refused, failed, lost on the way, in lines cut anywhere."""

from asyncio import StreamWriter
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from gateway.errors import UpstreamFailed, UpstreamRefused, in_doubt
from gateway.providers import Sending
from gateway.providers.anthropic import build as anthropic
from gateway.providers.openai import build as openai
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.upstream.batching import Batching, Row, batching_of
from tests.unit.upstream.raw_upstream import Heard, RawUpstream, fixed, raw_upstream, response

encode = msgspec.json.encode


@pytest.fixture
async def transport() -> AsyncGenerator[DirectTransport]:
    made = DirectTransport()
    yield made
    await made.close()


def service(up: RawUpstream, transport: DirectTransport, build: Any = openai) -> Batching:
    settings = ProviderSettings(kind="any", base_url=up.url, api_key="sk-secret")  # type: ignore[arg-type]
    found = batching_of(build("up", settings, transport=transport, tasks=Tasks()))
    assert found is not None
    return found


def row(name: str) -> Row:
    body: dict[str, object] = {"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 5}
    return Row(
        name, Sending(id=name, operation="chat", model="m", body=body, stream=False, tenant="", timeout=9.0, idle=9.0)
    )


def told(body: object, status: str = "200 OK") -> Any:
    return fixed(response(status, encode(body)))


async def test_why_a_batch_was_not_run_is_told(transport: DirectTransport) -> None:
    """The rows of a batch that was refused whole must say why, not only that they were not run."""
    errors = {"object": "list", "data": [{"code": "x", "message": "Enqueued token limit reached."}]}
    async with raw_upstream(told({"id": "b", "status": "failed", "errors": errors})) as up:
        assert await service(up, transport).look("b") == "Enqueued token limit reached."
    for status, why in (("validating", None), ("cancelling", None), ("completed", ""), ("expired", "")):
        async with raw_upstream(told({"id": "b", "status": status})) as up:
            assert await service(up, transport).look("b") == why


async def test_a_batch_is_found_by_our_name(transport: DirectTransport) -> None:
    """And another's, or one without a name, is not taken for ours."""
    rows = [{"id": "b1", "metadata": None}, {"id": "b2", "metadata": {"nearhit": "mine"}}]
    async with raw_upstream(told({"data": rows})) as up:
        assert await service(up, transport).find("mine", 0.0) == "b2"
        assert await service(up, transport).find("yours", 0.0) is None
    async with raw_upstream(told({})) as up:
        with pytest.raises(LookupError):
            await service(up, transport, anthropic).find("mine", 0.0)


async def test_an_old_batch_is_found_behind_many_newer_ones(transport: DirectTransport) -> None:
    """Others may make hundreds meanwhile; what is older than ours can be is not looked through."""

    def page(names: range, made: int) -> dict[str, object]:
        rows = [{"id": f"b{n}", "created_at": made - n, "metadata": {"nearhit": f"n{n}"}} for n in names]
        return {"data": rows, "has_more": True}

    asked: list[str] = []

    async def pages(writer: StreamWriter, heard: Heard) -> None:
        asked.append(heard.line.split(" ")[1].partition("?")[2])
        writer.write(response("200 OK", encode(page(range(100 * len(asked) - 100, 100 * len(asked)), 1_000_000))))

    async with raw_upstream(pages) as up:
        assert await service(up, transport).find("n250", 999_000.0) == "b250"
        assert asked == ["limit=100", "limit=100&after=b99", "limit=100&after=b199"]
        asked.clear()
        assert await service(up, transport).find("nobody's", 1_003_200.0) is None
        assert len(asked) == 5, "an hour is left to clocks that differ"


async def test_a_file_that_is_lost_is_nothing_to_doubt(transport: DirectTransport) -> None:
    """Only what names it can cost money: without this every hiccup would be looked for, or charged."""
    async with raw_upstream(fixed(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", close=True)) as up:
        with pytest.raises(UpstreamFailed) as lost:
            await service(up, transport).hand_in("n", "chat", [row("1")])
        assert not lost.value.doubtful
        with pytest.raises(UpstreamFailed) as doubtful:
            await service(up, transport, anthropic).hand_in("n", "chat", [row("1")])
        assert doubtful.value.doubtful


async def test_a_proxys_failure_may_stand_before_a_batch_that_was_made(transport: DirectTransport) -> None:
    """Its rows would be run and billed twice: it is looked for first. What was refused was not made."""
    for status, doubtful in (("504 Gateway Timeout", True), ("400 Bad Request", False)):
        replies = [told({"id": "file-1"}), told({"error": {"message": "no"}}, status), told({"deleted": True})]

        async def next_one(writer: StreamWriter, heard: Heard, replies: list[Any] = replies) -> None:
            await replies.pop(0)(writer, heard)

        async with raw_upstream(next_one) as up:
            with pytest.raises(UpstreamFailed) as failed:
                await service(up, transport).hand_in("n", "chat", [row("1")])
            assert in_doubt(failed.value) is doubtful
            assert [heard.line.split(" ")[0] for heard in up.heard] == ["POST", "POST"] + ["DELETE"] * (not doubtful)


async def test_a_refusal_has_its_words_and_no_secret(transport: DirectTransport) -> None:
    """It becomes the answer of every row."""
    error = {"error": {"message": "Bad key sk-secret.", "type": "x", "code": "invalid_api_key"}}
    async with raw_upstream(told(error, "401 Unauthorized")) as up:
        with pytest.raises(UpstreamRefused) as refusal:
            await service(up, transport).hand_in("n", "chat", [row("1")])
    assert refusal.value.http_status == 401
    assert "Bad key" in refusal.value.message
    assert "sk-secret" not in refusal.value.message


async def test_rows_come_back_as_they_would_have_been_told_alone(transport: DirectTransport) -> None:
    """Anthropic's errors have to be errors of their status; what was never run has a reason instead of an answer."""
    results = [
        {"custom_id": "1", "result": {"type": "succeeded", "message": {"id": "m"}}},
        {
            "custom_id": "2",
            "result": {"type": "errored", "error": {"type": "error", "error": {"type": "invalid_request_error"}}},
        },
        {"custom_id": "3", "result": {"type": "errored", "error": {"type": "rate_limit_error"}}},
        {"custom_id": "4", "result": {"type": "expired"}},
    ]
    content = b"\n".join(encode(one) for one in results)  # without an end to the last line
    async with raw_upstream(fixed(response("200 OK", content))) as up:
        found = [one async for one in service(up, transport, anthropic).collect("b")]
    assert [(one.name, one.status, one.code) for one in found] == [
        ("1", 200, ""),
        ("2", 400, ""),
        ("3", 429, ""),
        ("4", 0, "batch_expired"),
    ]
    assert msgspec.json.decode(found[1].raw)["error"]["type"] == "invalid_request_error"


async def test_half_a_result_is_none(transport: DirectTransport) -> None:
    """It is fetched again; rows that were read before stay."""
    raw = b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n" + encode({"custom_id": "1", "result": {}}) + b"\n{"
    async with raw_upstream(fixed(raw, close=True)) as up:
        rows = service(up, transport, anthropic).collect("b")
        assert (await anext(rows)).name == "1"
        with pytest.raises(UpstreamFailed):
            await anext(rows)


@pytest.mark.parametrize(
    ("told_response", "status"),
    [
        ({"status_code": 200, "body": {"id": "c"}}, 200),
        ({"status_code": "200", "body": {"id": "c"}}, 200),
        ({"status_code": "429", "body": {"error": {}}}, 429),
        ({"body": {"id": "c"}}, 200),
        ({"status_code": -1, "body": {"id": "c"}}, 200),
        ({"status_code": None, "body": None}, 0),
        (None, 0),
    ],
)
async def test_an_answer_without_a_proper_status_is_charged(
    transport: DirectTransport, told_response: object, status: int
) -> None:
    """It was run and is billed: told as a row that was never run it would cost nobody anything."""
    one = encode({"custom_id": "1", "response": told_response, "error": None})

    async def each(writer: StreamWriter, heard: Heard) -> None:
        file = "/content" in heard.line
        await fixed(response("200 OK", one if file else encode({"output_file_id": "f"})))(writer, heard)

    async with raw_upstream(each) as up:
        (found,) = [row async for row in service(up, transport).collect("b")]
    assert found.status == status


async def test_a_state_that_is_no_word_is_none(transport: DirectTransport) -> None:
    """A batch must not be given up, with all that is charged for it, over one odd answer to a look."""
    async with raw_upstream(told({"id": "b", "status": ["completed"]})) as up:
        assert await service(up, transport).look("b") is None
