"""Rows of requests and their sums learn what the encoder's time cost that looked for a kept answer.

Nothing is written anew: on PostgreSQL and SQLite a column with a constant default is added to the table's description.
Going back loses that cost, and nothing else.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("request", sa.Column("embed_nano", sa.Integer(), server_default="0", nullable=False))
    for table in ("usage_hour", "usage_day"):
        op.add_column(table, sa.Column("embed_nano", sa.BigInteger(), server_default="0", nullable=False))


def downgrade() -> None:
    for table in ("usage_day", "usage_hour", "request"):
        op.drop_column(table, "embed_nano")
