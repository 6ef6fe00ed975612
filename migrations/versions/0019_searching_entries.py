"""An index of the few entries that have rarer classes of tokens or searches, by which these are told per key and day.

The version before goes on beside it, and keeps it up. Going back drops it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    some = sa.text("classes IS NOT NULL")
    op.create_index("ix_entry_classes", "entry", ["admitted"], sqlite_where=some, postgresql_where=some)


def downgrade() -> None:
    op.drop_index("ix_entry_classes", table_name="entry")
