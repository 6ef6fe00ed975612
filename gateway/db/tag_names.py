"""Which tags requests have carried: names to choose from.

Knows: that sums are kept by tag, in an index that begins with it. Does not know: values, who may see what.
"""

from sqlalchemy import func, select

from gateway.db.models import RequestRow, UsageDay
from gateway.db.session import Database
from gateway.db.sums import TAG

_MOST = 50
_NEWEST = 200
_PAST_TAGS = TAG[:-1] + chr(ord(TAG[-1]) + 1)


async def tag_names(database: Database) -> list[str]:
    """At most fifty of the days that are summed up, and those of the newest two hundred requests; in order.

    One step in the index per name: no row of a sum is read.
    """
    found: set[str] = set()
    after = TAG
    async with database.read() as connection:
        for _ in range(_MOST):
            wanted = select(func.min(UsageDay.facet)).where(UsageDay.facet > after, UsageDay.facet < _PAST_TAGS)
            facet = await connection.scalar(wanted)
            if facet is None:
                break
            found.add(facet.removeprefix(TAG))
            after = facet
        newest = select(RequestRow.tags).order_by(RequestRow.at.desc()).limit(_NEWEST)
        for tags in (await connection.execute(newest)).scalars():
            found |= set(tags or ())
    return sorted(found)[:_MOST]
