"""Messages about days that were dearer than expected, on their way to people.

The version before goes on beside it, without them. Going back drops those that were not delivered.
"""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "spending_delivery",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("attempts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("due", sa.Double(), nullable=True),
        sa.Column("delivered", sa.Double(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("told", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_spending_delivery")),
    )
    op.create_index(op.f("ix_spending_delivery_due"), "spending_delivery", ["due"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_spending_delivery_due"), table_name="spending_delivery")
    op.drop_table("spending_delivery")
