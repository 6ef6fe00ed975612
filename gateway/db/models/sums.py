"""Sums of requests by hour, by day and by 8 and 64 days, so that pages need not read every row.

Does not know: how requests add up (`gateway.db.sums`), who writes here (`gateway.ledger.request_rows`).
"""

from sqlalchemy import BigInteger, Integer
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db.models.base import Base

EVERY_HOUR = (1 << 24) - 1


class UsageWho(Base):
    """One combination of dimensions, by a digest of it, so that a sum repeats eight bytes and not ten words.

    Empty (0) where a sum is not kept by that dimension. `label`: the user's or the tag's value.
    """

    __tablename__ = "usage_who"
    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=False
    )
    team: Mapped[str]
    project: Mapped[str]
    key_id: Mapped[str]
    model: Mapped[str]
    provider: Mapped[str]
    model_used: Mapped[str]
    operation: Mapped[str]
    source: Mapped[str]
    cache: Mapped[str]
    status: Mapped[int] = mapped_column(Integer)
    label: Mapped[str] = mapped_column(index=True)


class _Sums:
    """Sums of one combination in one period. `facet`: "" of all requests; "first": only the time to the first piece;
    "user" and "tag:<name>": of the requests that have one; "any:<facet>": the same, whatever it is; "owner": of all.

    The gateway's own requests (audits) count in no column but `audits` and the tokens and amounts. `estimated`:
    requests whose cost rests on an estimate. `discount_nano`: what providers' own prompt caches took off the cost,
    `routed_nano`: what choosing among places took off, `embed_nano`: what looking for kept answers took.
    `h00` … `h31` count durations between the edges of `gateway.db.sums.EDGES`.
    """

    __table_args__ = {"sqlite_with_rowid": False}
    facet: Mapped[str] = mapped_column(primary_key=True)
    starts: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    who: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    requests: Mapped[int]
    hits: Mapped[int]
    errors: Mapped[int]
    audits: Mapped[int]
    estimated: Mapped[int]
    prompt: Mapped[int]
    cached: Mapped[int]
    cache_write: Mapped[int]
    completion: Mapped[int]
    reasoning: Mapped[int]
    cost_nano: Mapped[int]
    estimated_nano: Mapped[int]
    audit_nano: Mapped[int]
    discount_nano: Mapped[int]
    saved_nano: Mapped[int]
    corrected_nano: Mapped[int]
    routed_nano: Mapped[int] = mapped_column(server_default="0")
    embed_nano: Mapped[int] = mapped_column(server_default="0")
    h00: Mapped[int] = mapped_column(Integer)
    h01: Mapped[int] = mapped_column(Integer)
    h02: Mapped[int] = mapped_column(Integer)
    h03: Mapped[int] = mapped_column(Integer)
    h04: Mapped[int] = mapped_column(Integer)
    h05: Mapped[int] = mapped_column(Integer)
    h06: Mapped[int] = mapped_column(Integer)
    h07: Mapped[int] = mapped_column(Integer)
    h08: Mapped[int] = mapped_column(Integer)
    h09: Mapped[int] = mapped_column(Integer)
    h10: Mapped[int] = mapped_column(Integer)
    h11: Mapped[int] = mapped_column(Integer)
    h12: Mapped[int] = mapped_column(Integer)
    h13: Mapped[int] = mapped_column(Integer)
    h14: Mapped[int] = mapped_column(Integer)
    h15: Mapped[int] = mapped_column(Integer)
    h16: Mapped[int] = mapped_column(Integer)
    h17: Mapped[int] = mapped_column(Integer)
    h18: Mapped[int] = mapped_column(Integer)
    h19: Mapped[int] = mapped_column(Integer)
    h20: Mapped[int] = mapped_column(Integer)
    h21: Mapped[int] = mapped_column(Integer)
    h22: Mapped[int] = mapped_column(Integer)
    h23: Mapped[int] = mapped_column(Integer)
    h24: Mapped[int] = mapped_column(Integer)
    h25: Mapped[int] = mapped_column(Integer)
    h26: Mapped[int] = mapped_column(Integer)
    h27: Mapped[int] = mapped_column(Integer)
    h28: Mapped[int] = mapped_column(Integer)
    h29: Mapped[int] = mapped_column(Integer)
    h30: Mapped[int] = mapped_column(Integer)
    h31: Mapped[int] = mapped_column(Integer)


class UsageHour(_Sums, Base):
    """`starts`: whole hours since the epoch, UTC. Kept for `retention.hours` days; not by user and tag."""

    __tablename__ = "usage_hour"


class UsageDay(_Sums, Base):
    """`starts`: whole days since the epoch, UTC. `hours`: a bit for each hour of it that may have any (all of them in
    days of before this was noted), so that rows of a user or tag are found though hours are not kept by them.
    `c00` … `c23`: what each hour of it cost, so that days of any zone are read without rows of whole hours.
    """

    __tablename__ = "usage_day"
    c00: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c01: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c02: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c03: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c04: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c05: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c06: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c07: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c08: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c09: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c10: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c11: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c12: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c13: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c14: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c15: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c16: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c17: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c18: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c19: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c20: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c21: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c22: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    c23: Mapped[int] = mapped_column(server_default="0", sort_order=1)
    hours: Mapped[int] = mapped_column(Integer, server_default=str(EVERY_HOUR), sort_order=2)


class UsageDays8(_Sums, Base):
    """`starts`: whole eights of days since the epoch, UTC. As many are kept as days are."""

    __tablename__ = "usage_days8"


class UsageDays64(_Sums, Base):
    """`starts`: whole sixty-fours of days since the epoch, UTC. As many are kept as days are."""

    __tablename__ = "usage_days64"
