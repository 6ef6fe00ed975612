"""Contract prices with tiers, hours and classes of tokens; measured engine prices."""

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
