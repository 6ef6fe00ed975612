"""What a gateway does when something under it fails: the rows of the failure table that need a real process."""

import os
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
import redis

from gateway.ledger.journal import Journal, JournalFailed
from gateway.ledger.records import Opened
from tests.e2e.process import Process, nearhit, new_key, scripted, serving_lightly
from tests.services import redis_server
from tests.unit.ledger.test_journal import dispatch, settle

ADMIN = {"authorization": "Bearer sk-e2e-admin-key-long-enough"}
_MIB = 1 << 20


@contextmanager
def small_disk(at: Path, size: int) -> Generator[Path]:
    """A file system of its own with `size` bytes. Skips the test where it cannot be mounted."""
    at.mkdir(parents=True)
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a small tmpfs needs root and mount")
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)], check=False)
    if made.returncode != 0:
        pytest.skip("a small tmpfs cannot be mounted here")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes what is left of it; removed, there is room again."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as out:
        for piece in (_MIB, 4_096):
            while True:
                try:
                    out.write(bytes(piece))
                except OSError:
                    break
    return filler


async def test_a_disk_that_is_full_stops_beginnings_and_keeps_ends(tmp_path: Path) -> None:
    """ENOSPC of a real file system is met when a segment is made, never in the middle of a record or as a signal."""
    with small_disk(tmp_path / "disk", _MIB) as disk:
        journal = Journal(disk / "journal", Opened("boot", "host", 0.0), segment_bytes=64 << 10)
        journal.open()
        filler = fill(disk)
        with pytest.raises(JournalFailed, match="no room"):
            write_on(journal)
        assert journal.append(settle())
        waiting = journal.synced()
        assert waiting is not None
        await waiting
        filler.unlink()
        assert journal.dispatch(dispatch("later")) is not None
        journal.close(remove=False)


def write_on(journal: Journal) -> None:
    for number in range(10_000):
        journal.dispatch(dispatch(f"r.{number}"))


def ask(gateway: Process, key: str, text: str) -> httpx.Response:
    body = {"model": "lab/scripted", "messages": [{"role": "user", "content": text}], "max_tokens": 16}
    head = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=head, timeout=30)


def until_reconciled(gateway: Process, lab: Process) -> None:
    bill = (lab.home / "bill.jsonl").read_bytes()
    for path, content in (("reconcile", bill), ("verify", b"")):
        told = httpx.post(f"{gateway.url}/api/v1/ledger/{path}", content=content, headers=ADMIN, timeout=60)
        assert told.status_code < 300, told.text
        assert msgspec.json.decode(told.content)["problems"] == [], told.text


def test_redis_is_flushed_and_the_database_has_no_room(tmp_path: Path) -> None:
    """Kept answers may vanish, never money: what was a hit is a miss again, and the books still equal the bill.

    A database that cannot grow stops posting, not answering: the journal keeps what was spent until there is room.
    """
    home = tmp_path / "gateway"
    home.mkdir()
    with (
        small_disk(tmp_path / "disk", 24 * _MIB) as disk,
        scripted(tmp_path / "lab", "--tokens", "16") as lab,
        redis_server() as redis_url,
    ):
        config = (
            f"database: sqlite:///{disk}/nearhit.db\nredis: {redis_url}\nengines: {{}}\n"
            "cache: {mode: exact, store: redis}\n"
            "providers: {lab: {kind: openai, api_key: none, "
            f"base_url: 'http://127.0.0.1:{lab.port}/v1'}}}}\n"
        )
        (home / "nearhit.yaml").write_text(config)
        priced = nearhit(home, "prices", "set", "lab/scripted", "0", "10", "--effective-from", "2026-01-01")
        assert priced.returncode == 0, priced.stderr
        with serving_lightly(home, config=config) as gateway:
            key = new_key(gateway)
            marks, end = {ask(gateway, key, "the same").headers["x-nearhit-cache"]}, time.monotonic() + 60
            while "hit-exact" not in marks:  # a busy machine may miss Redis's deadline
                assert time.monotonic() < end, marks
                marks.add(ask(gateway, key, "the same").headers["x-nearhit-cache"])
            with redis.Redis.from_url(redis_url) as shared:
                shared.flushall()
            assert ask(gateway, key, "the same").headers["x-nearhit-cache"] in {*marks, "bypass"}
            until_reconciled(gateway, lab)
            filler = fill(disk)
            assert {ask(gateway, key, f"full {number}").status_code for number in range(20)} == {200}
            filler.unlink()
            until_reconciled(gateway, lab)
