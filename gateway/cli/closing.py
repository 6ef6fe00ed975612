"""`nearhit close MONTH` and `nearhit months`: sealing a month, and which months there are."""

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of


def close(
    month: str,
    *,
    force: bool = False,
    reason: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """Seal a month: its sums never change again; what is posted later stands in the next open month.

    Parameters
    ----------
    month
        Such as 2026-10 (UTC).
    force
        Although something of it may still be under way. Never while the month runs or an earlier one is open.
    reason
        Why; kept with the month.
    """
    with control(settings_of(options)) as gateway:
        body = {"force": force, "reason": reason}
        found = gateway.ask("POST", f"/api/v1/months/{month}/close", body=body)
    if options.json:
        show.json(found)
        return
    show.line(f"{month}: {show.usd(found['spent_usd'])} in {found['entries']} entries, sealed")
    show.line(f"digest {found['digest']}")


def months(*, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Every month, what it cost and whether it is closed."""
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/months")
    if options.json:
        show.json(found["data"])
        return
    rows = [
        [
            row["month"],
            row["state"],
            show.usd(row["spent_usd"]),
            show.usd(row["estimated_usd"]),
            show.usd(row["adjustments_usd"]),
            str(row["entries"]),
            show.text(row["sealed_at"]),
            show.text(row["sealed_by"]),
        ]
        for row in found["data"]
    ]
    columns = ("month", "state", "spent", "estimated", "adjustments", "entries", "sealed", "by")
    show.table(columns, rows, right=columns[2:6])
