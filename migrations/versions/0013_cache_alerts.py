"""Where a cache's hits are wrong too often, and the messages about it on their way to people."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cache_alert",
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("raised", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("team", "project", "model", name=op.f("pk_cache_alert")),
    )
    op.create_index(op.f("ix_cache_alert_ended"), "cache_alert", ["ended"], unique=False)
    op.create_table(
        "cache_delivery",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("due", sa.Double(), nullable=True),
        sa.Column("delivered", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("over", sa.Boolean(), nullable=False),
        sa.Column("rate", sa.Double(), nullable=False),
        sa.Column("low", sa.Double(), nullable=False),
        sa.Column("high", sa.Double(), nullable=False),
        sa.Column("allowed", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cache_delivery")),
    )
    op.create_index(op.f("ix_cache_delivery_due"), "cache_delivery", ["due"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_cache_delivery_due"), table_name="cache_delivery")
    op.drop_table("cache_delivery")
    op.drop_index(op.f("ix_cache_alert_ended"), table_name="cache_alert")
    op.drop_table("cache_alert")
