"""Batches at providers' own batch services: which parts are there, which line belongs to which, and what came back."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "batch_part",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("batch_id", sa.Text(), nullable=False),
        sa.Column("provider", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("remote", sa.Text(), nullable=True),
        sa.Column("boot", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batch_part")),
    )
    op.create_index(op.f("ix_batch_part_batch_id"), "batch_part", ["batch_id"], unique=False)
    op.add_column("batch_line", sa.Column("part", sa.Text(), nullable=True))
    op.add_column("batch_line", sa.Column("answer", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("batch_line", "answer")
    op.drop_column("batch_line", "part")
    op.drop_index(op.f("ix_batch_part_batch_id"), table_name="batch_part")
    op.drop_table("batch_part")
