"""Prompts and answers kept for training: only with consent, never against a client's word, and not in secret."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from gateway.distilling import CONSENT, EXPORT, FOLDER, Distilling, file_of, lines
from tests.live import PROMPT, Live, live, settings

ADMIN = {"authorization": "Bearer sk-test-admin-key-of-some-length"}


async def exported(gateway: Live, project: str) -> tuple[int, list[Any]]:
    async with gateway.client.get(
        gateway.url + "/api/v1/export/distillation", params={"project": project}, headers=ADMIN
    ) as response:
        text = await response.read()
        return response.status, [msgspec.json.decode(line) for line in text.splitlines()]


async def audited(gateway: Live) -> list[tuple[str, str]]:
    async with gateway.services.database.read() as connection:
        found = await connection.exec_driver_sql("SELECT action, target FROM audit ORDER BY id")
        return [(row.action, row.target) for row in found if row.action.startswith("distillation.")]


async def test_nothing_is_kept_without_consent(tmp_path: Path) -> None:
    """Prompts are the most private thing a gateway sees."""
    async with live(settings(tmp_path)) as gateway:
        await gateway.chat()
        await gateway.settled()
        assert (await exported(gateway, "acme/app"))[0] == 400
        assert await audited(gateway) == []
    assert not (tmp_path / FOLDER).exists()


async def test_a_consenting_projects_answers_can_be_exported(tmp_path: Path) -> None:
    """One line per bought answer, streamed or not; no hits, no other project, none that the client forbade."""
    chosen = settings(tmp_path, distillation={"projects": ["acme/app"]})
    async with live(chosen) as gateway:
        told = await gateway.chat()
        await gateway.settled()
        await gateway.chat()
        streamed = [{"role": "user", "content": "Another question"}]
        await gateway.chat(messages=streamed, stream=True)
        await gateway.chat(messages=[{"role": "user", "content": "Secret"}], headers={"cache-control": "no-store"})
        other = await gateway.new_key("acme", "other")
        await gateway.chat(key=other, messages=[{"role": "user", "content": "Of another project"}])
        await gateway.settled()
        await asyncio.sleep(0.7)
        status, kept = await exported(gateway, "acme/app")
        assert status == 200
        assert [line["messages"][:-1] for line in kept] == [PROMPT, streamed]
        assert kept[0]["messages"][-1] == {"role": "assistant", "content": told.text}
        assert kept[0]["completion_tokens"] == told.json["usage"]["completion_tokens"]
        assert await audited(gateway) == [(CONSENT, "settings"), (EXPORT, "acme/app")]
        async with gateway.client.get(
            gateway.url + "/api/v1/export/distillation",
            params={"project": "acme/app"},
            headers={"authorization": f"Bearer {gateway.key}"},
        ) as response:
            assert response.status in (401, 403)
    assert file_of(tmp_path / FOLDER, "acme/app").stat().st_mode & 0o077 == 0
    async with live(settings(tmp_path)) as gateway:
        assert (await audited(gateway))[-1] == (CONSENT, "settings"), "withdrawing it is told too"


def test_a_full_file_takes_no_more(tmp_path: Path) -> None:
    """A disk that fills up with training data would stop the gateway."""
    keeper = Distilling(tmp_path, frozenset({"t/p"}), 100)
    keeper._waiting = [("t/p", b"x" * 60 + b"\n"), ("t/p", b"y" * 60 + b"\n"), ("t/p", b"z" * 30 + b"\n")]
    keeper.flush()
    assert [line[:1] for line in lines(tmp_path, "t/p")] == [b"x", b"z"]
    assert keeper.dropped == 1
