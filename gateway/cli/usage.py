"""`nearhit usage`: what was used, spent and saved."""

from typing import Annotated, Any

from cyclopts import Parameter

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of


def usage(
    *,
    by: str = "team,model",
    start: Annotated[str | None, Parameter(name="--from")] = None,
    end: Annotated[str | None, Parameter(name="--to")] = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """What was used, spent and saved, by any dimension.

    Parameters
    ----------
    by
        Dimensions with commas between: team, project, key, user, model, model_used, provider, operation, source, cache,
        status, hour, day, month, tag:NAME.
    start
        A time, a date, or a duration before now such as 7d. Left out: the first of this month (UTC).
    end
        The same. Left out: now.
    """
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/usage", params={"group_by": by, "from": start, "to": end})
    if options.json:
        show.json(found)
        return
    groups = found["group_by"]
    columns = (*groups, "requests", "hit rate", "errors", "tokens", "spent", "saved", "p50", "p95")
    rows = [_row(row, groups) for row in [*found["data"], {**dict.fromkeys(groups, ""), **found["total"]}]]
    if groups:
        rows[-1][0] = "total"
    else:
        rows = rows[:1]
    show.table(columns, rows, right=columns[len(groups) :])


def _row(row: dict[str, Any], groups: list[str]) -> list[str]:
    return [
        *(show.text(row[name]) for name in groups),
        str(row["requests"]),
        show.percent(row["hit_rate"]),
        show.percent(row["error_rate"]),
        str(row["total_tokens"]),
        show.usd(row["cost_usd"]),
        show.usd(row["saved_usd"]),
        show.millis(row["p50_ms"]),
        show.millis(row["p95_ms"]),
    ]
