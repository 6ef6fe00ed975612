"""`nearhit export …`: files for spreadsheets and other tools."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import Options, settings_of
from gateway.cli.wrong import Wrong

Output = Annotated[Path | None, Parameter(name=("--output", "-o"), help="File (default: standard output).")]


def focus_export(
    *,
    month: str,
    format: Literal["csv", "parquet"] = "csv",
    focus_version: Literal["1.2", "1.3"] = "1.2",
    tags: bool = True,
    output: Output = None,
    options: Options = Options(),  # noqa: B008 - frozen
) -> None:
    """The FOCUS dataset of a month: charges by day, team, project, key, model, meter and unit price.

    Parameters
    ----------
    month
        Such as 2026-10 (UTC).
    focus_version
        Of the specification.
    tags
        Requests with different tags in rows of their own.
    """
    asked = {"month": month, "format": format, "version": focus_version, "tags": str(tags).lower()}
    _save("/api/v1/export/focus", asked, output, options)


def distillation_export(*, project: str, output: Output = None, options: Options = Options()) -> None:  # noqa: B008 - frozen
    """Prompts and answers of a project that consented, as JSON lines to train a smaller model on.

    Each host keeps the lines it answered: of several, ask each.

    Parameters
    ----------
    project
        One of `distillation.projects`.
    """
    _save("/api/v1/export/distillation", {"project": project}, output, options)


def entries_export(
    *,
    month: str | None = None,
    start: Annotated[str | None, Parameter(name="--from")] = None,
    end: Annotated[str | None, Parameter(name="--to")] = None,
    format: Literal["csv", "jsonl"] = "csv",
    output: Output = None,
    options: Options = Options(),  # noqa: B008 - frozen
) -> None:
    """Every entry of the ledger, of a month or of a span.

    Parameters
    ----------
    month
        Those booked in it, late ones included.
    start
        A time, a date, or a duration before now such as 7d.
    """
    asked = {"month": month, "from": start, "to": end, "format": format}
    _save("/api/v1/export/entries", asked, output, options)


def requests_export(
    *,
    start: Annotated[str | None, Parameter(name="--from")] = None,
    end: Annotated[str | None, Parameter(name="--to")] = None,
    output: Output = None,
    options: Options = Options(),  # noqa: B008 - frozen
) -> None:
    """Every request of a span, as CSV.

    Parameters
    ----------
    start
        A time, a date, or a duration before now such as 7d.
    """
    _save("/api/v1/export/requests", {"from": start, "to": end}, output, options)


def usage_export(
    *,
    by: str = "team,model",
    start: Annotated[str | None, Parameter(name="--from")] = None,
    end: Annotated[str | None, Parameter(name="--to")] = None,
    output: Output = None,
    options: Options = Options(),  # noqa: B008 - frozen
) -> None:
    """Usage, cost and savings by any dimension, as CSV.

    Parameters
    ----------
    by
        Dimensions with commas between, as in `nearhit usage`.
    start
        A time, a date, or a duration before now such as 7d.
    """
    _save("/api/v1/export/usage", {"group_by": by, "from": start, "to": end}, output, options)


def statement_export(
    *,
    month: str,
    team: str | None = None,
    format: Literal["csv", "json"] = "csv",
    output: Output = None,
    options: Options = Options(),  # noqa: B008 - frozen
) -> None:
    """What each team owes for a month: its own spend, its part of shared costs, corrections.

    Parameters
    ----------
    month
        Such as 2026-10 (UTC).
    team
        Only that one.
    """
    _save(f"/api/v1/months/{month}/statement", {"team": team, "format": format}, output, options)


def _save(path: str, asked: dict[str, Any], output: Path | None, options: Options) -> None:
    """Into a new file, which takes the place of an old one only when it is whole."""
    settings = settings_of(options)
    if output is None:
        with control(settings) as gateway:
            gateway.save(path, asked, sys.stdout.buffer)
        sys.stdout.flush()
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with control(settings) as gateway, part.open("wb") as file:
            gateway.save(path, asked, file)
        part.replace(output)
    except OSError as error:
        raise Wrong(f"cannot write {output}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    show.line(f"{output}: {output.stat().st_size} bytes")
