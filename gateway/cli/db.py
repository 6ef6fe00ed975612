"""`nearhit db …`: the schema of the database."""

import asyncio

from gateway.cli import show
from gateway.cli.options import Options, ReadOptions, settings_of
from gateway.cli.wrong import Wrong


def upgrade_db(*, options: Options = Options()) -> None:  # noqa: B008 - frozen
    """Bring the database to the revision this version needs; creates an empty one."""
    from gateway.db.migrate import StaleSchema, upgrade
    from gateway.db.session import UNREACHABLE, told

    settings = settings_of(options)
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        show.line(f"at revision {asyncio.run(upgrade(settings.database_url))}")
    except StaleSchema as error:
        raise Wrong(str(error)) from error
    except UNREACHABLE as error:
        raise Wrong(f"the database does not answer: {told(error)}") from error


def current_db(*, options: ReadOptions = ReadOptions()) -> int:  # noqa: B008 - frozen
    """Which revision the database is at; exit code 1 when it is not the one this version needs."""
    from gateway.db.migrate import current, head, how_to_mend
    from gateway.db.session import UNREACHABLE, told

    settings = settings_of(options)
    fresh = settings.database is None and not (settings.home / "nearhit.db").exists()
    try:
        found = None if fresh else asyncio.run(current(settings.database_url))
    except UNREACHABLE as error:
        raise Wrong(f"the database does not answer: {told(error)}") from error
    if options.json:
        show.json({"current": found, "head": head()})
    else:
        show.line(f"at revision {found or 'none'}, this version needs {head()}")
        if found != head():
            show.line(f"mend: {how_to_mend(found)}")
    return 0 if found == head() else 1
