"""`nearhit budgets …`."""

from urllib.parse import quote

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of
from policies.budget import Mode, WindowKind


def set_budgets(  # noqa: PLR0913 - one name per flag
    scope: str,
    limit_usd: str,
    *,
    window: WindowKind = "month",
    timezone: str = "UTC",
    mode: Mode = "hard",
    alerts: str = "0.5,0.8,0.95",
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """Set a limit.

    Parameters
    ----------
    scope
        org, team:T, project:T/P, key:ID, user:U, model:M or tag:K=V.
    limit_usd
        A decimal amount such as 10.00.
    window
        When it begins anew.
    timezone
        IANA name; the window begins at its midnight.
    mode
        hard refuses beyond the limit, soft only warns.
    alerts
        Fractions of the limit, with commas between.
    """
    body = {
        "limit_usd": limit_usd,
        "window": window,
        "timezone": timezone,
        "mode": mode,
        "alerts": [float(share) for share in alerts.split(",") if share.strip()],
    }
    with control(settings_of(options)) as gateway:
        made = gateway.ask("PUT", f"/api/v1/budgets/{quote(scope, safe='/:=')}", body=body)
    if options.json:
        show.json(made)
    else:
        show.line(f"{made['scope']}: {show.usd(made['limit_usd'])} per {made['window']}, {made['mode']}")


def list_budgets(*, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Where every limit stands in the window that is running."""
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/budgets")
    if options.json:
        show.json(found["data"])
        return
    money = ("limit_usd", "spent_confirmed_usd", "spent_estimated_usd", "held_usd", "remaining_usd")
    rows = [
        [
            row["scope"],
            f"{row['mode']}/{row['window']}",
            *(show.usd(row[name]) for name in money),
            show.text(row["window_end"]),
            show.text(row["runs_out"]),
        ]
        for row in found["data"]
    ]
    columns = ("scope", "mode", "limit", "confirmed", "estimated", "held", "remaining", "window ends", "runs out")
    show.table(columns, rows, right=columns[2:7])


def retire_budgets(scope: str, *, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Take a limit out of force; its history stays."""
    with control(settings_of(options)) as gateway:
        gateway.ask("DELETE", f"/api/v1/budgets/{quote(scope, safe='/:=')}")
    show.line(f"{scope}: retired")
