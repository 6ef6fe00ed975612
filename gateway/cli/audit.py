"""`nearhit audit …`: the log of changes."""

from gateway.cli import show
from gateway.cli.connection import control
from gateway.cli.options import ReadOptions, settings_of


def list_audit(*, limit: int = 50, action: str | None = None, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """The newest changes.

    Parameters
    ----------
    limit
        How many, 1000 at most.
    action
        Only those whose action begins so, such as `key.` or `budget.set`.
    """
    with control(settings_of(options)) as gateway:
        found = gateway.ask("GET", "/api/v1/audit", params={"limit": limit, "action": action})
    if options.json:
        show.json(found)
        return
    columns = ("id", "at", "actor", "action", "target", "before", "after", "ip")
    show.table(columns, [[show.text(row[column]) for column in columns] for row in found["data"]])


def verify_audit(*, noted: str | None = None, options: ReadOptions = ReadOptions()) -> int:  # noqa: B008 - frozen
    """Recompute the chain of changes; exit code 1 when a row was altered, taken out or cut off.

    Parameters
    ----------
    noted
        A head that this command printed earlier and that was kept elsewhere: it must still be in the chain.
    """
    with control(settings_of(options)) as gateway:
        found = gateway.ask("POST", "/api/v1/audit/verify", params={"noted": noted})
    good = found["whole"] and found["noted_is_there"]
    if options.json:
        show.json(found)
    elif not found["whole"]:
        show.line(
            f"the row {found['broken_at']} does not follow from the ones before it: it, or one of them, was changed"
        )
    elif not found["noted_is_there"]:
        show.line("the noted head is not in the chain: rows were cut off after it was noted, or all were written anew")
    else:
        show.line(f"{found['rows']} changes, each follows from the one before it; head {found['head']}")
    return 0 if good else 1
