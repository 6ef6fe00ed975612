"""Hits of closed months, kept beside their lines, so that a sealed month's export outlives the sums of usage.

The version before goes on beside it: months that it closes keep no hits, and are told from the sums as ever. Going back
loses the hits, which nothing but exports and the proof of sealed months reads.
"""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_SQLITE_GUARD = tuple(
    f"CREATE TRIGGER sealed_hit_{name} BEFORE {event} ON month_hit "
    f"WHEN EXISTS (SELECT 1 FROM month_seal WHERE month = {row}.month AND digest IS NOT NULL) "
    "BEGIN SELECT RAISE(ABORT, 'sealed months never change'); END"
    for name, event, row in (("changed", "UPDATE", "OLD"), ("deleted", "DELETE", "OLD"), ("added", "INSERT", "NEW"))
)
_POSTGRES_GUARD = (
    "CREATE TRIGGER sealed_hit_never_changes BEFORE INSERT OR UPDATE OR DELETE ON month_hit "
    "FOR EACH ROW EXECUTE FUNCTION sealed_line_never_changes()",
)


def upgrade() -> None:
    op.create_table(
        "month_hit",
        sa.Column("month", sa.Text(), nullable=False),
        sa.Column("day", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("avoided_nano", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("month", "day", "number", name=op.f("pk_month_hit")),
    )
    for statement in _SQLITE_GUARD if op.get_bind().dialect.name == "sqlite" else _POSTGRES_GUARD:
        op.execute(statement)


def downgrade() -> None:
    op.drop_table("month_hit")
