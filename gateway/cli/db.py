"""`nearhit db …`: the schema of the database, and the way into another one."""

import asyncio
import sys
from typing import Annotated

from cyclopts import Parameter

from gateway.cli import show
from gateway.cli.options import Options, ReadOptions, settings_of
from gateway.cli.wrong import Wrong


def upgrade_db(*, options: Options = Options()) -> None:  # noqa: B008 - frozen
    """Bring the database to the revision this version needs; creates an empty one."""
    from gateway.db.migrate import StaleSchema, upgrade
    from gateway.db.session import UNREACHABLE, words_of

    settings = settings_of(options)
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        show.line(f"at revision {asyncio.run(upgrade(settings.database_url))}")
    except StaleSchema as error:
        raise Wrong(str(error)) from error
    except UNREACHABLE as error:
        raise Wrong(f"the database cannot be used: {words_of(error)}") from error


def current_db(*, options: ReadOptions = ReadOptions()) -> int:  # noqa: B008 - frozen
    """Which revision the database is at; exit code 1 when it is not the one this version needs."""
    from gateway.db.migrate import current, head, how_to_mend
    from gateway.db.session import UNREACHABLE, words_of

    settings = settings_of(options)
    fresh = settings.database is None and not (settings.home / "nearhit.db").exists()
    try:
        found = None if fresh else asyncio.run(current(settings.database_url))
    except UNREACHABLE as error:
        raise Wrong(f"the database cannot be used: {words_of(error)}") from error
    if options.json:
        show.json({"current": found, "head": head()})
    else:
        show.line(f"at revision {found or 'none'}, this version needs {head()}")
        if found != head():
            show.line(f"mend: {how_to_mend(found)}")
    return 0 if found == head() else 1


def copy_db(
    *,
    to: Annotated[str, Parameter(allow_leading_hyphen=True)],
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> None:
    """Put everything the database holds into another one, which must be empty. No gateway may run meanwhile.

    Keys, budgets, ledger, requests, months, files: all rows, or none. The cache stays where it is.

    Parameters
    ----------
    to
        postgresql://USER@HOST/NAME or sqlite:///FILE; - reads it from standard input, since a password in a
        command can be read by others.
    """
    from gateway.cli.copying import copied

    found = copied(settings_of(options), sys.stdin.readline().strip() if to == "-" else to)
    rows = {one.table: one.rows for one in found if one.rows}
    if options.json:
        show.json({"rows": rows, "total": sum(rows.values())})
        return
    show.table(("table", "rows"), [[name, f"{count:,}"] for name, count in rows.items()], right=("rows",))
    show.line(
        f"{sum(rows.values()):,} rows copied and compared. Keep the secret, point `database` at the copy, start, and"
    )
    show.line(
        "ask `nearhit ledger verify`. Do not start a gateway on the old one again: each would spend the budgets anew."
    )
