"""A key's old secret works on for a while after a rotation; sessions of people who signed in elsewhere know their team."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("api_key") as table:
        table.add_column(sa.Column("old_hash", sa.Text(), nullable=True))
        table.add_column(sa.Column("old_until", sa.Double(), nullable=True))
    with op.batch_alter_table("session") as table:
        table.add_column(sa.Column("team", sa.Text(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("session") as table:
        table.drop_column("team")
    with op.batch_alter_table("api_key") as table:
        table.drop_column("old_until")
        table.drop_column("old_hash")
