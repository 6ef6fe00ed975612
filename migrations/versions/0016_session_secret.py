"""Which of a key's secrets opened a session, so that the session ends with it.

The version before goes on beside it: its sessions have no mark and end with their key. Going back loses the marks alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("session", sa.Column("secret", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("session", "secret")
