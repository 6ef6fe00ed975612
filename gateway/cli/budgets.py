"""`nearhit budgets …`."""

from typing import Any, Literal
from urllib.parse import quote

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of
from policies.budget import Mode, WindowKind

_NONE = "none"


def set_budgets(  # noqa: PLR0913 - one name per flag
    scope: str,
    limit_usd: str | None = None,
    *,
    window: WindowKind | None = None,
    timezone: str | None = None,
    mode: Mode | None = None,
    alerts: str | None = None,
    rpm: int | Literal["none"] | None = None,
    tpm: int | Literal["none"] | None = None,
    on_exhausted: str | None = None,
    degrade_at: float | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> int:
    """Set limits: in money, per minute, or both. What is left out stays as it is; `none` takes it away.

    Parameters
    ----------
    scope
        org, team:T, project:T/P, key:ID, user:U, model:M or tag:K=V.
    limit_usd
        A decimal amount such as 10.00, or none.
    window
        When it begins anew; month for a new one.
    timezone
        IANA name; the window begins at its midnight. UTC for a new one.
    mode
        hard refuses beyond the limit, soft only warns; hard for a new one.
    alerts
        Fractions of the limit, with commas between; 0.5,0.8,0.95 for a new one.
    rpm
        Requests per minute, or none.
    tpm
        Tokens per minute, or none.
    on_exhausted
        refuse, or degrade:MODEL to have that model answer instead.
    degrade_at
        Fraction of the limit from which it does; 1 where it is left out: only instead of a refusal.
    """
    given: dict[str, object] = {"rpm": rpm, "tpm": tpm}
    given |= {"on_exhausted": on_exhausted, "degrade_at": degrade_at, "limit_usd": limit_usd}
    given |= {"window": window, "timezone": timezone, "mode": mode}
    body = {name: None if value == _NONE else value for name, value in given.items() if value is not None}
    if alerts is not None:
        try:
            body["alerts"] = [float(share) for share in alerts.split(",") if share.strip()]
        except ValueError:
            show.line(f"--alerts takes fractions of the limit such as 0.5,0.8,0.95, not {alerts!r}")
            return 2
    with control(settings_of(options)) as gateway:
        made = gateway.ask("PUT", f"/api/v1/budgets/{quote(scope, safe='/:=')}", body=body)
    if options.json:
        show.json(made)
    else:
        show.line(f"{made['scope']}: {_told(made)}")
    return 0


def _told(row: dict[str, Any]) -> str:
    """Everything a scope is limited by, in a line."""
    parts: list[str] = []
    if row["limit_usd"] is not None:
        parts.append(f"{show.usd(row['limit_usd'])} per {row['window']}, {row['mode']}")
    parts += [f"{row[name]} {name}" for name in ("rpm", "tpm") if row[name] is not None]
    if row["on_exhausted"] != "refuse":
        parts.append(f"{row['on_exhausted']} at {row['degrade_at']:g}")
    return ", ".join(parts) or "no limit"


def list_budgets(*, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Where every limit stands in the window that is running."""
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/budgets")
    if options.json:
        show.json(found["data"])
        return
    rows = [[row["scope"], *_cells(row)] for row in found["data"]]
    columns = ("limit", "confirmed", "estimated", "held", "remaining", "rpm", "tpm")
    show.table(("scope", "mode", *columns, "window ends", "runs out", "when exhausted"), rows, right=columns)


def _cells(row: dict[str, Any]) -> list[str]:
    money = ("limit_usd", "spent_confirmed_usd", "spent_estimated_usd", "held_usd", "remaining_usd")
    limited = row["limit_usd"] is not None
    return [
        f"{row['mode']}/{row['window']}" if limited else "rate",
        *(show.usd(row[name]) if limited else "" for name in money),
        *(show.text(row[name]) for name in ("rpm", "tpm")),
        show.text(row["window_end"]),
        _runs_out(row),
        row["on_exhausted"] if limited else "",
    ]


def _runs_out(row: dict[str, Any]) -> str:
    """The forecast with its range where there is one, else the pace so far."""
    forecast = row["forecast"]
    if forecast is None:
        return show.text(row["runs_out"])
    between = f"{show.text(forecast['runs_out_earliest'])} to {show.text(forecast['runs_out_latest'])}"
    return f"{show.text(forecast['runs_out'])} ({between})" if forecast["runs_out_earliest"] else ""


def retire_budgets(scope: str, *, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Take a limit out of force; its history stays."""
    with control(settings_of(options)) as gateway:
        gateway.ask("DELETE", f"/api/v1/budgets/{quote(scope, safe='/:=')}")
    show.line(f"{scope}: retired")
