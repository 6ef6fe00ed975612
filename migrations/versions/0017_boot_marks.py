"""What each process's file says, section by section, so that hosts whose files differ are named.

The version before goes on beside it: its boots have no marks and are compared with nobody. Going back loses the marks alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("boot", sa.Column("marks", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("boot", "marks")
