"""An index of entries by the time they ended goes: nothing asks for it, and every entry paid for it.

Revision ID: 0007
Revises: 0006
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_entry_at", table_name="entry")


def downgrade() -> None:
    op.create_index("ix_entry_at", "entry", ["at"], unique=False)
