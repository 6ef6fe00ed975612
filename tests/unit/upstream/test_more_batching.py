"""What Together, xAI and Fireworks say of their batches, at its edges: lists, counts, files that lie elsewhere."""

from asyncio import StreamWriter
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidRequest, UpstreamFailed, UpstreamRefused, in_doubt
from gateway.providers import load
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.upstream.batching import Batching, Returned, batching_of
from tests.unit.upstream.raw_upstream import Heard, RawUpstream, fixed, raw_upstream, response
from tests.unit.upstream.test_batching import row, told

encode = msgspec.json.encode
GOOD = encode({"custom_id": "1", "response": {"id": "c", "choices": []}})


@pytest.fixture
async def transport() -> AsyncGenerator[DirectTransport]:
    made = DirectTransport()
    yield made
    await made.close()


def service(up: RawUpstream, transport: DirectTransport, kind: str) -> Batching:
    own: Any = {"account": "acme"} if kind == "fireworks" else {}
    settings = ProviderSettings(kind=kind, base_url=up.url, api_key="sk-secret", **own)  # type: ignore[arg-type]
    found = batching_of(load(kind).build("up", settings, transport=transport, tasks=Tasks()))
    assert found is not None
    return found


def answering(*replies: Any) -> Any:
    """One after another."""
    left = list(replies)

    async def next_one(writer: StreamWriter, heard: Heard) -> None:
        await left.pop(0)(writer, heard)

    return next_one


def elsewhere(location: str) -> Any:
    return fixed(response("302 Found", b"", f"location: {location}"))


async def test_together_finds_a_batch_by_its_file(transport: DirectTransport) -> None:
    """It keeps no names of batches: without a file of ours nothing was handed in, and another's is not taken for it."""
    files = {"data": [{"id": "f1", "filename": "theirs.jsonl"}, {"id": "f2", "filename": "mine.jsonl"}]}
    batches = [{"id": "b1", "input_file_id": "f1"}, {"id": "b2", "input_file_id": "f2"}]
    async with raw_upstream(answering(told(files), told(batches), told(files), told(files), told(batches[:1]))) as up:
        found = service(up, transport, "together")
        assert await found.find("mine", 0.0) == "b2"
        assert await found.find("nobody's", 0.0) is None
        assert await found.find("mine", 0.0) is None, "uploaded, and no more"


async def test_what_is_no_list_is_not_taken_for_an_empty_one(transport: DirectTransport) -> None:
    """Nothing found means that it is handed in once more: it would be run, and billed, twice."""
    files, batch = {"data": [{"id": "f", "filename": "mine.jsonl"}]}, {"id": "b", "input_file_id": "f"}
    async with raw_upstream(answering(told(files), told({"data": [batch]}))) as up:
        assert await service(up, transport, "together").find("mine", 0.0) == "b", "as others tell theirs"
    for pages in ([{}], [{"data": None}], [files, {}], [files, "none"], [files, {"batches": [batch]}]):
        async with raw_upstream(answering(*map(told, pages))) as up:
            with pytest.raises(UpstreamFailed, match="no list"):
                await service(up, transport, "together").find("mine", 0.0)


async def test_together_tells_its_batches_bare_or_wrapped(transport: DirectTransport) -> None:
    """What is created comes under `job`, what is asked for does not; a batch that failed says why."""
    for body in ({"id": "b", "status": "FAILED", "error": "no such model"}, {"id": "b", "status": "COMPLETED"}):
        for one in (body, {"job": body}):
            async with raw_upstream(told(one)) as up:
                assert await service(up, transport, "together").look("b") == body.get("error", "")
    async with raw_upstream(told({"id": "b", "status": "VALIDATING"})) as up:
        assert await service(up, transport, "together").look("b") is None


async def test_a_file_that_lies_elsewhere_is_fetched_without_the_key(transport: DirectTransport) -> None:
    """A storage service is nobody who may have it, and refuses two credentials at once."""
    error = encode({"custom_id": "2", "error": {"message": "no", "code": "invalid_model"}})
    job = told({"id": "b", "status": "COMPLETED", "output_file_id": "f1", "error_file_id": "f2"})

    async def beside(writer: StreamWriter, heard: Heard) -> None:
        await elsewhere(f"http://{heard.headers['host']}/kept?sig=1")(writer, heard)

    good, bad = (fixed(response("200 OK", one)) for one in (GOOD, error))
    async with raw_upstream(answering(job, beside, good, bad)) as up:
        rows = [one async for one in service(up, transport, "together").collect("b")]
    assert rows == [
        Returned("1", 200, encode({"id": "c", "choices": []})),
        Returned("2", 400, encode({"error": {"message": "no", "code": "invalid_model"}})),
    ]
    asked = {heard.line.split()[1]: "authorization" in heard.headers for heard in up.heard}
    assert asked["/kept?sig=1"] is False
    assert [keyed for path, keyed in asked.items() if path != "/kept?sig=1"] == [True, True, True]


@pytest.mark.parametrize("to", ["http://example.com/x", "ftp://example.com/x", "", "//example.com/x"])
async def test_a_file_is_not_fetched_from_anywhere(transport: DirectTransport, to: str) -> None:
    """What people asked and were told would cross the network for all to read."""
    job = told({"id": "b", "status": "COMPLETED", "output_file_id": "f1"})
    async with raw_upstream(answering(job, elsewhere(to))) as up:
        with pytest.raises(UpstreamFailed, match="cannot be fetched"):
            [one async for one in service(up, transport, "together").collect("b")]


@pytest.mark.parametrize(
    ("counts", "more", "why"),
    [
        ({}, {}, None),
        ({"num_requests": 0, "num_pending": 0}, {}, None),
        ({"num_requests": 2, "num_pending": 1}, {}, None),
        ({"num_requests": 2, "num_pending": 1}, {"cancel_time": "2026-11-22"}, None),
        ({"num_requests": 2, "num_pending": 0, "num_success": 2}, {}, ""),
        ({"num_requests": 0, "num_pending": 0}, {"cancel_time": "2026-11-22"}, ""),
        ({"num_requests": 0, "num_pending": 0}, {"cancel_by_xai_message": "bad line 3"}, "bad line 3"),
    ],
)
async def test_xai_tells_the_end_in_counts(
    transport: DirectTransport, counts: dict[str, int], more: dict[str, str], why: str | None
) -> None:
    """All are zero before its file is read: taken for the end, every row would be told as not run, and billed."""
    async with raw_upstream(told({"batch_id": "b", "state": counts, **more})) as up:
        assert await service(up, transport, "xai").look("b") == why


async def test_xai_tells_answers_by_the_page(transport: DirectTransport) -> None:
    """To the last one, each once; what was called off was never run, what failed has a status of its own."""

    def result(name: str, **told_of_it: Any) -> dict[str, Any]:
        return {"batch_request_id": name, "batch_result": told_of_it}

    first = [result("1", response={"chat_get_completion": {"id": "c"}}), result("2", error={"code": 3, "message": "x"})]
    last = [result("3", error={"code": 1, "message": "cancelled"}), {"batch_request_id": "4", "error_message": "y"}]
    pages = answering(told({"results": first, "pagination_token": "a/b"}), told({"results": last}))
    async with raw_upstream(pages) as up:
        rows = [one async for one in service(up, transport, "xai").collect("b")]
        assert up.heard[1].line.split()[1].endswith("/results?limit=100&pagination_token=a%2Fb")
    assert [(one.name, one.status, one.code) for one in rows] == [
        ("1", 200, ""),
        ("2", 400, ""),
        ("3", 0, "cancelled"),
        ("4", 500, ""),
    ]
    async with raw_upstream(told({"results": first, "pagination_token": "same"})) as up:
        with pytest.raises(UpstreamFailed, match="twice"):
            [one async for one in service(up, transport, "xai").collect("b")]
    circle = answering(*(told({"results": [], "pagination_token": token}) for token in "aba"))
    async with raw_upstream(circle) as up:
        with pytest.raises(UpstreamFailed, match="twice"):
            [one async for one in service(up, transport, "xai").collect("b")]


async def test_a_job_of_ours_that_is_there_already_is_ours(transport: DirectTransport) -> None:
    """Fireworks takes our ids: a second try must find the first, and leave no second dataset behind."""
    made, ready = told({"name": "accounts/acme/datasets/nearhit-x"}), told({"state": "READY"})
    script = answering(made, told({}), ready, told({"error": {"message": "exists"}}, "409 Conflict"), told({}))
    async with raw_upstream(script) as up:
        assert await service(up, transport, "fireworks").hand_in("n", "chat", [row("1")]) == "nearhit-n"
        lines = [heard.line.split()[:2] for heard in up.heard]
        sent = msgspec.json.decode(up.heard[3].body)
    assert [method for method, _ in lines] == ["POST", "POST", "GET", "POST", "DELETE"]
    assert lines[3][1].endswith("/v1/accounts/acme/batchInferenceJobs?batchInferenceJobId=nearhit-n")
    assert lines[4][1].endswith("/v1/accounts/acme/datasets/nearhit-x")
    assert (sent["model"], sent["inputDatasetId"]) == ("m", "accounts/acme/datasets/nearhit-x")
    assert b'"model"' not in up.heard[1].body, "it stands once, beside the lines"


async def test_a_fireworks_job_is_found_or_not(transport: DirectTransport) -> None:
    """A 404 is an answer; what else it says is none."""
    async with raw_upstream(told({"state": "JOB_STATE_RUNNING"})) as up:
        assert await service(up, transport, "fireworks").find("n", 0.0) == "nearhit-n"
    async with raw_upstream(told({"code": 5, "message": "resource not found"}, "404 Not Found")) as up:
        assert await service(up, transport, "fireworks").find("n", 0.0) is None
    async with raw_upstream(told({"error": {"message": "no"}}, "403 Forbidden")) as up:
        with pytest.raises(UpstreamRefused):
            await service(up, transport, "fireworks").find("n", 0.0)


async def test_a_fireworks_job_that_failed_has_words_and_no_answers(transport: DirectTransport) -> None:
    """Its output is never made: asking for it would be refused until the batch's day is over."""
    job = {"state": "JOB_STATE_FAILED", "outputDatasetId": "accounts/acme/datasets/o"}
    async with raw_upstream(told({**job, "status": {"code": "INVALID_ARGUMENT", "message": "invalid role"}})) as up:
        found = service(up, transport, "fireworks")
        assert await found.look("nearhit-n") == "invalid role"
        assert [one async for one in found.collect("nearhit-n")] == []
        with pytest.raises(InvalidRequest):
            await found.call_off("nearhit-n")


async def test_a_dataset_that_is_lost_is_nothing_to_doubt(transport: DirectTransport) -> None:
    """Only a job that names it can cost money."""
    async with raw_upstream(fixed(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{", close=True)) as up:
        with pytest.raises(UpstreamFailed) as lost:
            await service(up, transport, "fireworks").hand_in("n", "chat", [row("1")])
    assert not in_doubt(lost.value)


@pytest.mark.parametrize("kind", ["together", "xai", "fireworks"])
async def test_a_batch_of_anything_but_chats_is_refused(transport: DirectTransport, kind: str) -> None:
    """Nothing is uploaded for it."""
    async with raw_upstream(told({})) as up:
        with pytest.raises(InvalidRequest, match="chats only"):
            await service(up, transport, kind).hand_in("n", "embedding", [row("1")])
        assert up.heard == []
