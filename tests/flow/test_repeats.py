"""Requests that come again byte for byte: read once, judged anew each time."""

from pathlib import Path

from tests.live import Live, live, settings

ADMIN = {"authorization": "Bearer sk-test-admin-key-of-some-length"}


async def _warm(gateway: Live) -> None:
    """Miss, hit, and a hit by a request that was remembered."""
    marks = [(await gateway.chat()).headers["x-nearhit-cache"] for _ in range(4)]
    assert marks == ["miss", "hit-exact", "hit-exact", "hit-exact"]


async def test_a_repeat_is_a_hit_with_an_id_of_its_own(tmp_path: Path) -> None:
    """Ids name requests in logs and bills: two of them must never be the same."""
    async with live(settings(tmp_path)) as gateway:
        await _warm(gateway)
        told = [await gateway.chat() for _ in range(2)]
        assert len({answer.headers["x-request-id"] for answer in told} | {a.json["id"] for a in told}) == 4
        assert told[0].text == told[1].text
        assert told[0].json["usage"] == told[1].json["usage"]


async def test_a_remembered_request_still_needs_a_good_key_and_a_kept_answer(tmp_path: Path) -> None:
    """Only reading is saved: a revoked key is refused, a purged answer is made anew, directives are obeyed."""
    async with live(settings(tmp_path)) as gateway:
        await _warm(gateway)
        assert (await gateway.chat(headers={"cache-control": "no-cache"})).headers["x-nearhit-cache"] == "refresh"
        other = await gateway.new_key("umbrella")
        assert (await gateway.chat(key=other)).headers["x-nearhit-cache"] == "miss"
        async with gateway.client.delete(f"{gateway.url}/api/v1/cache?team=acme", headers=ADMIN) as purged:
            assert purged.status == 200
        assert (await gateway.chat()).headers["x-nearhit-cache"] == "miss"
        await _warm_again(gateway)
        key_id = gateway.key.split("-")[2]
        async with gateway.client.delete(f"{gateway.url}/api/v1/keys/{key_id}", headers=ADMIN) as revoked:
            assert revoked.status < 300
        assert (await gateway.chat()).status == 401


async def _warm_again(gateway: Live) -> None:
    for _ in range(3):
        assert (await gateway.chat()).headers["x-nearhit-cache"] == "hit-exact"


async def test_a_repeat_is_replayed_as_events_too(tmp_path: Path) -> None:
    """The same memory serves streams, which read the kept body in another way."""
    async with live(settings(tmp_path)) as gateway:
        whole = await gateway.chat()
        streams = [await gateway.chat(stream=True) for _ in range(3)]
        for told in streams:
            assert told.headers["x-nearhit-cache"] == "hit-exact"
            assert told.events[-1] == "[DONE]"
            pieces = [event["choices"][0]["delta"].get("content") or "" for event in told.events[:-1]]
            assert "".join(pieces) == whole.text
