"""`/api/v1/export/…`: files for other tools; `/api/v1/exports`: what is exported by itself, and how it went.

Knows: formats as they are asked for, who may. Does not know: rows (`gateway.exports`).

A FOCUS file is made whole in a temporary file before its first byte is sent, so that it is of one moment, a failure is
an answer and not half a file, and a slow reader keeps no connection to the database. Entries are streamed.
"""

import asyncio
import io
import tempfile
from collections.abc import AsyncGenerator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, cast

from litestar import Response, get
from litestar.params import FromQuery, QueryParameter
from litestar.response import Stream
from litestar.types import ControllerRouterHandler
from msgspec import Struct

from gateway.audit import Change, note
from gateway.auth import ORG_WIDE
from gateway.distilling import EXPORT, FOLDER, lines
from gateway.errors import InvalidRequest, NotAllowed
from gateway.exports.columns import Version
from gateway.exports.focus_file import Wanted, write_focus
from gateway.exports.plain import COLUMNS, entries_between, entries_of_month
from gateway.exports.schedule import Run, runs
from gateway.exports.sinks import MEDIA, Format, sink
from gateway.ledger.grouping import TooMany
from gateway.routes import shapes
from gateway.routes.access import CallerDep, control_router
from gateway.routes.months import named, own_team
from gateway.routes.usage import span_of
from gateway.services import Services

_BLOCK = 256 << 10
_LINES = 200
Text = Annotated[str | None, QueryParameter(max_length=64)]
Team = Annotated[str | None, QueryParameter(max_length=200)]


def download(parts: AsyncGenerator[bytes, None], form: Format, name: str) -> Stream:
    """A file of that name, sent as it comes."""
    headers = {"content-disposition": f'attachment; filename="{name}.{form}"', "cache-control": "no-store"}
    return Stream(parts, media_type=MEDIA[form], headers=headers)


@get("/focus", opt={"role": "finance"}, summary="FOCUS dataset of a month")
async def focus(
    caller: CallerDep,
    month: Annotated[str, QueryParameter(max_length=16)],
    form: Annotated[Literal["csv", "parquet"], QueryParameter(name="format")] = "csv",
    version: FromQuery[Version] = "1.2",
    tags: FromQuery[bool] = True,
    team: Team = None,
) -> Response[Any]:
    """One row per day, team, project, key, provider, model, meter and unit price, and one per kind of cache hit.

    `BilledCost` adds up to what the ledger says of the month. `tags=false` puts requests with different tags together.
    """
    wanted = Wanted(month=named(month), form=form, version=version, team=own_team(caller.principal, team), tags=tags)
    return await focus_answer(caller.services, wanted)


async def focus_answer(services: Services, wanted: Wanted) -> Response[Any]:
    """The file as a download. Raises InvalidRequest when it has too many rows."""
    await services.ledger.flush()
    file = cast("BinaryIO", tempfile.TemporaryFile(dir=services.settings.home))  # noqa: SIM115 - `_sent` closes it
    try:
        await write_focus(services.database, services.prices.listed, wanted, file)
        await asyncio.to_thread(file.seek, 0)
    except TooMany as error:
        file.close()
        raise InvalidRequest(f"{error}; `tags=false` makes fewer rows.", param="tags") from error
    except BaseException:
        file.close()
        raise
    return download(_sent(file), wanted.form, f"nearhit-focus-{wanted.month}")


@get("/entries", opt={"role": "finance"}, summary="Entries of the ledger")
async def entries(
    caller: CallerDep,
    month: Text = None,
    start: Annotated[str | None, QueryParameter(name="from", max_length=64)] = None,
    end: Annotated[str | None, QueryParameter(name="to", max_length=64)] = None,
    form: Annotated[Literal["csv", "jsonl"], QueryParameter(name="format")] = "csv",
    team: Team = None,
) -> Response[Any]:
    """Every entry booked in a month, or admitted between `from` and `to`, in order of admission."""
    services, limit = caller.services, own_team(caller.principal, team)
    if month is not None:
        if start is not None or end is not None:
            raise InvalidRequest("Give either `month` or `from` and `to`.", param="month")
        return await entries_answer(services, named(month), limit, form)
    await services.ledger.flush()
    span = span_of(start, end, services.now())
    pages = entries_between(services.database, span.start, span.end, limit)
    return download(_streamed(pages, form), form, "nearhit-entries")


async def entries_answer(services: Services, month: str, team: str | None, form: Literal["csv", "jsonl"]) -> Stream:
    """A month's entries as a download."""
    await services.ledger.flush()
    pages = entries_of_month(services.database, month, team)
    return download(_streamed(pages, form), form, f"nearhit-entries-{month}")


@get("/distillation", opt={"role": "admin"}, summary="Prompts and answers of a project that consented")
async def distillation(caller: CallerDep, project: Annotated[str, QueryParameter(max_length=200)]) -> Stream:
    """One JSON object per line: `messages` with the answer as the last. Who exported is told to the audit log.

    Each host keeps the lines it answered: of several, ask each.
    """
    services = caller.services
    own_team(caller.principal, project.partition("/")[0])
    if project not in services.settings.distillation.projects:
        raise InvalidRequest(
            f"{project!r} has not consented: see `distillation.projects` in the settings.", param="project"
        )
    await note(services, caller.principal, Change(EXPORT, project), ip=caller.ip)
    return download(_read_lines(services.settings.home / FOLDER, project), "jsonl", "nearhit-distillation")


async def _read_lines(folder: Path, project: str) -> AsyncGenerator[bytes, None]:
    found = lines(folder, project)
    while block := await asyncio.to_thread(lambda: b"".join(islice(found, _LINES))):
        yield block


async def _sent(file: BinaryIO) -> AsyncGenerator[bytes, None]:
    with file:
        while block := await asyncio.to_thread(file.read, _BLOCK):
            yield block


async def _streamed(pages: AsyncGenerator[list[dict[str, Any]], None], form: Format) -> AsyncGenerator[bytes, None]:
    into = io.BytesIO()
    writer = sink(form, COLUMNS, into)
    async for rows in pages:
        await asyncio.to_thread(writer.write, rows)
        yield into.getvalue()
        into.seek(0)
        into.truncate()
    writer.close()
    if rest := into.getvalue():
        yield rest


class LastRun(Struct, kw_only=True):
    """`error` is null when it worked; `ended` is null while it runs."""

    period: str
    began: str | None
    ended: str | None
    files: list[str]
    error: str | None


class ExportView(Struct, kw_only=True):
    """An export of the configuration. `sealed`: the run that follows closed months."""

    name: str
    what: str
    format: str
    every: str
    folder: str
    last: LastRun | None
    sealed: LastRun | None


class ExportList(Struct):
    """In the order of the configuration."""

    data: list[ExportView]


@get("/exports", opt={"role": "finance"}, summary="Scheduled exports")
async def list_exports(caller: CallerDep) -> ExportList:
    """What is exported by itself, and how the last run went."""
    if caller.principal.team != ORG_WIDE:
        raise NotAllowed("Scheduled exports hold every team's figures; this key is bound to one.", code="beyond_team")
    return ExportList(await scheduled(caller.services))


async def scheduled(services: Services) -> list[ExportView]:
    """The exports of the configuration with their last runs."""
    done = await runs(services.database)
    return [
        ExportView(
            name=job.name,
            what=job.what,
            format=job.format,
            every=job.every,
            folder=str(job.folder),
            last=_last(done.get(job.name)),
            sealed=_last(done.get(f"{job.name}/sealed")),
        )
        for job in services.settings.exports
    ]


def _last(run: Run | None) -> LastRun | None:
    if run is None:
        return None
    return LastRun(
        period=run.period,
        began=shapes.moment(run.began),
        ended=shapes.moment(run.ended),
        files=run.files,
        error=run.error,
    )


def route_handlers() -> list[ControllerRouterHandler]:
    return [
        control_router("/api/v1/export", [focus, entries, distillation], tags=["Exports"]),
        control_router("/api/v1", [list_exports], tags=["Exports"]),
    ]
