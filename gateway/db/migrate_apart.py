"""`python -m gateway.db.migrate_apart`: brings the database whose URL is on its input up to date, and ends.

Knows: how to say in one line why it could not. Does not know what a migration does: `gateway.db.migrate` does.
"""

import asyncio
import sys

from gateway.db import migrate
from gateway.db.session import UNREACHABLE


def main() -> int:
    """0, or 1 with a sentence on standard error; `NO_ROOM` where trying again makes no room."""
    try:
        asyncio.run(migrate.upgrade(sys.stdin.read()))
    except migrate.NoRoom as error:
        sys.stderr.write(f"{error}\n")
        return migrate.NO_ROOM
    except (migrate.StaleSchema, *UNREACHABLE) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
