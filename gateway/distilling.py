"""Prompts and answers of projects that consented, kept as lines a smaller model can be trained on.

Knows: which projects consented (settings, none by default), lines, bounds. Does not know: training, the cache's own
entries, who may export (`nearhit export distillation`).

What is kept: whole answers that ended by themselves, as the cache would keep them, written beside the event loop. A
file that has reached its bound takes no more and says so once. Consent that begins or ends is told to the audit log.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import quote

import msgspec
import structlog
from sqlalchemy import select

from gateway.audit import Change, note
from gateway.auth import ADMIN
from gateway.call import Call
from gateway.db.models import Audit
from gateway.flights import Flight
from gateway.keeping import Kept, kept_from
from gateway.services import Services

_log = structlog.get_logger("nearhit.distilling")
_encode = msgspec.json.Encoder().encode
FOLDER = "distillation"  # in NEARHIT_HOME
CONSENT = "distillation.consent"
EXPORT = "distillation.export"
_WAITING = 1_024  # lines that may wait to be written
_PAUSE = 0.5  # seconds between writings


class Distilling:
    """One worker's part: lines of several workers are appended to the same files, each whole."""

    def __init__(self, folder: Path, projects: frozenset[str], most_bytes: int) -> None:
        self._folder = folder
        self._projects = projects
        self._most = most_bytes
        self._waiting: list[tuple[str, bytes]] = []
        self._full: set[str] = set()
        self.dropped = 0

    @property
    def projects(self) -> frozenset[str]:
        return self._projects

    def consented(self, call: Call) -> bool:
        """Whether this may be kept; asked before anything is made of the answer.

        A client that forbids the cache to keep its answer (`x-nearhit-cache`) forbids this too.
        """
        return call.operation == "chat" and _project(call) in self._projects and call.directives.write

    def offer(self, call: Call, flight: Flight) -> None:
        """Take the line of an answer; never waits. What is too much is dropped and counted."""
        if not self.consented(call) or (kept := kept_from(call, flight)) is None:
            return
        if len(self._waiting) >= _WAITING:
            self.dropped += 1
            return
        self._waiting.append((_project(call), _line(call, kept)))

    async def run(self) -> None:
        """Write until cancelled; what waits then is written by `flush`."""
        while True:
            await asyncio.sleep(_PAUSE)
            if self._waiting:
                await asyncio.to_thread(self.flush)

    def flush(self) -> None:
        """Append all that waits."""
        waiting, self._waiting = self._waiting, []
        for project, line in waiting:
            self._append(project, line)

    def _append(self, project: str, line: bytes) -> None:
        path = file_of(self._folder, project)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if os.fstat(descriptor).st_size + len(line) > self._most:
                self.dropped += 1
                if project not in self._full:
                    self._full.add(project)
                    _log.warning("a distillation set is full", project=project, bytes=self._most)
                return
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


async def tell_consent(services: Services) -> None:
    """A row in the audit log when other projects consent now than the last one says."""
    now = sorted(services.settings.distillation.projects)
    asked = select(Audit.after).where(Audit.action == CONSENT).order_by(Audit.id.desc()).limit(1)
    async with services.database.read() as connection:
        before = await connection.scalar(asked) or {"projects": []}
    if before != {"projects": now}:
        await note(services, ADMIN, Change(CONSENT, "settings", before=before, after={"projects": now}))


def file_of(folder: Path, project: str) -> Path:
    """Where a project's lines lie; `project` is `<team>/<name>`, whatever characters those have."""
    return folder / f"{quote(project, safe='')}.jsonl"


def lines(folder: Path, project: str) -> Iterator[bytes]:
    """Every whole line; empty without a file. One that was cut off by a crash is left out."""
    path = file_of(folder, project)
    if path.exists():
        with path.open("rb") as file:
            yield from (line for line in file if line.endswith(b"\n"))


def _project(call: Call) -> str:
    return f"{call.principal.team}/{call.principal.project}"


def _line(call: Call, kept: Kept) -> bytes:
    answer = msgspec.json.decode(kept.answer)
    message = answer["choices"][0]["message"]
    messages = [*cast("list[object]", call.body["messages"]), {"role": "assistant", "content": message.get("content")}]
    made = {"id": call.id, "model": call.model, "messages": messages}
    return _encode({**made, "prompt_tokens": kept.prompt_tokens, "completion_tokens": kept.completion_tokens}) + b"\n"
