"""Which tags requests have carried: names to choose from.

Knows: that sums are kept by tag, in an index that begins with it. Does not know: values, who may see what.
"""

from sqlalchemy import func, select

from gateway.db.models import RequestRow, UsageDay
from gateway.db.session import Database
from gateway.db.sums import ANY, TAG

_MOST = 50
_FACETS = 2 * _MOST + 8  # each tag has two, and there are few that are no tags
_NEWEST = 200


async def tag_names(database: Database) -> list[str]:
    """At most fifty of the days that are summed up, and those of the newest two hundred requests; in order.

    One step in the index per facet: no row of a sum is read. Nothing is assumed of how the database orders names.
    """
    found: set[str] = set()
    after = ""
    async with database.read() as connection:
        for _ in range(_FACETS):
            facet = await connection.scalar(select(func.min(UsageDay.facet)).where(UsageDay.facet > after))
            if facet is None:
                break
            kept_by = facet.removeprefix(ANY)  # these come before the others, and may be all that is reached
            if kept_by.startswith(TAG):
                found.add(kept_by.removeprefix(TAG))
            after = facet
        newest = select(RequestRow.tags).order_by(RequestRow.at.desc()).limit(_NEWEST)
        for tags in (await connection.execute(newest)).scalars():
            found |= set(tags or ())
    return sorted(found)[:_MOST]
