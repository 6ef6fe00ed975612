"""`nearhit usage`: what was used, spent and saved."""

from typing import Annotated, Any

from cyclopts import App, Parameter

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


def rebuild_usage(*, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Make the sums of usage anew from the rows of requests, as far back as those are kept."""
    with control(settings_of(options)) as gateway:
        found = gateway.ask("POST", "/api/v1/usage/rebuild")
    if options.json:
        show.json(found)
    else:
        show.line(f"sums of {found['days']} days were made anew")


app = App(name="usage", help="What was used, spent and saved.")
app.default(usage)
for _name, _words in {
    "recompute": "Every charge once more, from its own row.",
    "coverage": "How much of the spend was counted.",
    "whatif": "A month under other prices, models or another cache.",
}.items():
    app.command(f"gateway.cli.recomputing:{_name}_usage", name=_name, help=_words)
app.command(rebuild_usage, name="rebuild", help="Make the sums anew.")
