"""Requests for what is stored here (files, batches, responses, conversations): wrong ones, and dry runs."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.empty_database import fresh_postgres
from tests.live import Live, Told, live, settings


async def ask(gateway: Live, method: str, path: str, headers: dict[str, str] | None = None, **given: Any) -> Told:
    sent = {"authorization": f"Bearer {gateway.key}", **(headers or {})}
    async with gateway.client.request(method, gateway.url + path, headers=sent, **given) as answer:
        return Told(answer.status, dict(answer.headers), await answer.read())


def form(**fields: str) -> aiohttp.FormData:
    made = aiohttp.FormData({"purpose": "batch", **fields})
    made.add_field("file", b"{}", filename="in.jsonl")
    return made


@pytest.mark.parametrize("limit", ["0", "10001", "+1", "²", "0000000001999999999999999999999999", "x"])
async def test_a_limit_is_a_number_within_bounds(tmp_path: Path, limit: str) -> None:
    """Digits that Python reads otherwise, or more of them than the database counts, were a 500 or no limit at all."""
    async with live(settings(tmp_path)) as gateway:
        for path in ("/v1/files", "/v1/batches"):
            told = await ask(gateway, "GET", path, params={"limit": limit})
            assert (told.status, told.json["error"]["param"]) == (400, "limit")


@pytest.mark.parametrize("seconds", ["²", "3599", "2592001", "000003600999999999999", "-3600", "3600.5"])
async def test_a_file_expires_within_bounds(tmp_path: Path, seconds: str) -> None:
    """A file was kept for a hundred thousand years, where its digits were many enough."""
    async with live(settings(tmp_path)) as gateway:
        wanted = {"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}
        told = await ask(gateway, "POST", "/v1/files", data=form(**wanted))
        assert (told.status, told.json["error"]["param"]) == (400, "expires_after.seconds")
        assert (await ask(gateway, "GET", "/v1/files")).json["data"] == []


async def test_files_that_come_at_once_share_the_room(tmp_path: Path) -> None:
    """Each found the project as empty as the others did: it could keep many times what it may, and fill the disk."""
    async with live(settings(tmp_path, kept={"project_files": 1 << 20})) as gateway:

        async def upload() -> Told:
            made = aiohttp.FormData({"purpose": "user_data"})
            made.add_field("file", b"x" * 400_000, filename="x")
            return await ask(gateway, "POST", "/v1/files", data=made)

        told = await asyncio.gather(*[upload() for _ in range(6)])
        refused = [one for one in told if one.status == 400]
        assert {one.json["error"]["code"] for one in refused} == {"storage_full"}
        kept = (await ask(gateway, "GET", "/v1/files")).json["data"]
        assert len(kept) == len(told) - len(refused) <= 2
        for one in kept:
            await ask(gateway, "DELETE", f"/v1/files/{one['id']}")
        assert (await upload()).status == 200, "what was refused takes no room"


async def test_what_cannot_be_rehearsed_is_not_done_instead(tmp_path: Path) -> None:
    """A client that sends `x-nearhit-dry-run` with all it asks must not delete its files by that."""
    async with live(settings(tmp_path)) as gateway:
        file = (await ask(gateway, "POST", "/v1/files", data=form())).json["id"]
        talk = (await gateway.post("/v1/conversations", {})).json["id"]
        said = {"items": [{"type": "message", "role": "user", "content": "hi"}]}
        response = (await gateway.post("/v1/responses", {"model": "local/sim", "input": "hi"})).json["id"]
        dry = {"x-nearhit-dry-run": "1"}
        for method, path, given in (
            ("POST", "/v1/files", {"data": form()}),
            ("DELETE", f"/v1/files/{file}", {}),
            ("POST", "/v1/batches/batch_1/cancel", {}),
            ("POST", "/v1/conversations", {"json": {}}),
            ("POST", f"/v1/conversations/{talk}", {"json": {"metadata": {"a": "b"}}}),
            ("POST", f"/v1/conversations/{talk}/items", {"json": said}),
            ("DELETE", f"/v1/conversations/{talk}/items/x", {}),
            ("DELETE", f"/v1/conversations/{talk}", {}),
            ("POST", f"/v1/responses/{response}/cancel", {}),
            ("DELETE", f"/v1/responses/{response}", {}),
        ):
            told = await ask(gateway, method, path, dry, **given)
            assert (told.status, told.json["error"]["param"]) == (400, "x-nearhit-dry-run"), (method, path)
        assert [one["id"] for one in (await ask(gateway, "GET", "/v1/files")).json["data"]] == [file]
        assert (await ask(gateway, "GET", f"/v1/conversations/{talk}")).json["metadata"] == {}
        assert (await ask(gateway, "GET", f"/v1/responses/{response}")).status == 200


@pytest.mark.parametrize("stream", ["1", "True", "yes", ""])
async def test_a_response_is_streamed_or_not(tmp_path: Path, stream: str) -> None:
    """Another spelling of `true` was answered whole, and its client waited for events."""
    async with live(settings(tmp_path)) as gateway:
        name = (await gateway.post("/v1/responses", {"model": "local/sim", "input": "hi"})).json["id"]
        told = await ask(gateway, "GET", f"/v1/responses/{name}", params={"stream": stream})
        assert (told.status, told.json["error"]["param"]) == (400, "stream")
        assert (await ask(gateway, "GET", f"/v1/responses/{name}", params={"stream": "false"})).status == 200


async def test_a_name_with_a_nul_is_no_outage(tmp_path: Path, postgres_url: str) -> None:
    """PostgreSQL's texts hold none: clients were told to try again in a moment, and operators to look at it."""
    url = await fresh_postgres(postgres_url)
    async with live(settings(tmp_path, database=url, secret="s" * 64)) as gateway:
        for path in ("files/%00", "files/file-%00/content", "batches/%00", "responses/resp_%00", "conversations/%00"):
            assert (await ask(gateway, "GET", f"/v1/{path}")).status == 404
        for path in ("files?after=%00", "files?purpose=%00", "batches?after=%00"):
            assert (await ask(gateway, "GET", f"/v1/{path}")).status == 400
        admin = {"authorization": "Bearer sk-test-admin-key-of-some-length"}
        for path in ("requests/%00", "audit?actor=%00"):
            told = await ask(gateway, "GET", f"/api/v1/{path}", admin)
            assert (told.status, told.json["error"]["code"]) == (400, "invalid_value")
