"""Sums of eight and of sixty-four days, what each hour of a day cost, and sums by owner and of all users together.

The tables are empty at first. Processes of the new version fill them within minutes, beside requests: the sums by owner
and of all users follow from what is there, and days become blocks; the days of which rows are kept are made anew, for only
rows know what a user's or a tag's hours cost. Until then pages read what they read before. Going back loses none of that.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_SUMS = (
    "requests", "hits", "errors", "audits", "estimated", "prompt", "cached", "cache_write", "completion", "reasoning",
    "cost_nano", "estimated_nano", "audit_nano", "discount_nano", "saved_nano", "corrected_nano", "routed_nano",
    "embed_nano",
)  # fmt: skip
_SETTINGS = "'labels_to', 'costs_from', 'blocks_to', 'blocks_from', 'late', 'gathered_to'"


def upgrade() -> None:
    for table in ("usage_days8", "usage_days64"):
        op.create_table(
            table,
            sa.Column("facet", sa.Text(), nullable=False),
            sa.Column("starts", sa.Integer(), autoincrement=False, nullable=False),
            sa.Column("who", sa.BigInteger(), autoincrement=False, nullable=False),
            *(
                sa.Column(name, sa.BigInteger(), nullable=False, server_default="0" if name in _SUMS[-2:] else None)
                for name in _SUMS
            ),
            *(sa.Column(f"h{i:02}", sa.Integer(), nullable=False) for i in range(32)),
            sa.PrimaryKeyConstraint("facet", "starts", "who", name=op.f(f"pk_{table}")),
            sqlite_with_rowid=False,
        )
    for i in range(24):
        op.add_column("usage_day", sa.Column(f"c{i:02}", sa.BigInteger(), server_default="0", nullable=False))
    op.create_index("ix_usage_who_label", "usage_who", ["label"], unique=False)
    op.execute("INSERT INTO setting (name, value) VALUES ('late', '0')")
    # From there on this version makes them, and notices which days after that the version before has made beside it.
    for name, of_a_day in (("labels_to", 24), ("costs_from", 1)):
        op.execute(
            f"INSERT INTO setting (name, value) SELECT '{name}', CAST(CAST(value AS bigint) * {of_a_day} AS text) "
            "FROM setting WHERE name = 'days_to' AND value <> '0'"
        )
    op.execute(
        "INSERT INTO setting (name, value) SELECT 'usage_sums', 'days' WHERE EXISTS (SELECT 1 FROM usage_day) "
        "AND NOT EXISTS (SELECT 1 FROM setting WHERE name = 'usage_sums')"
    )


def downgrade() -> None:
    op.execute("DELETE FROM usage_day WHERE facet = 'owner' OR facet LIKE 'any:%'")
    # a day that is not over yet has sums of its first hours only
    days_to = "(SELECT CAST(value AS bigint) FROM setting WHERE name = 'days_to')"
    op.execute(f"DELETE FROM usage_day WHERE starts >= coalesce({days_to}, 0)")
    op.execute(f"DELETE FROM setting WHERE name IN ({_SETTINGS}) OR (name = 'usage_sums' AND value = 'days')")
    op.drop_index("ix_usage_who_label", table_name="usage_who")
    for i in range(24):
        op.drop_column("usage_day", f"c{i:02}")
    for table in ("usage_days64", "usage_days8"):
        op.drop_table(table)
