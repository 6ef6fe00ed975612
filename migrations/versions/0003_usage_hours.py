"""Sums of requests by hour and day, so that pages need not read every row.

Going back below this loses what only the sums know: all of the time whose rows were pruned already, and of every
request what the provider's own cache took off. Coming up again makes sums anew of the rows that are kept, and no more.
Keep a copy of the database before going back.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_SUMS = (
    "requests", "hits", "errors", "audits", "estimated", "prompt", "cached", "cache_write", "completion", "reasoning",
    "cost_nano", "estimated_nano", "audit_nano", "discount_nano", "saved_nano", "corrected_nano",
)
_WHO = ("team", "project", "key_id", "model", "provider", "model_used", "operation", "source", "cache")


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    op.add_column('request', sa.Column('discount_nano', sa.BigInteger(), server_default='0', nullable=False))
    op.create_table('usage_who',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), autoincrement=False, nullable=False),
    *(sa.Column(name, sa.Text(), nullable=False) for name in _WHO),
    sa.Column('status', sa.Integer(), nullable=False),
    sa.Column('label', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_usage_who'))
    )
    for table in ('usage_hour', 'usage_day'):
        op.create_table(table,
        sa.Column('facet', sa.Text(), nullable=False),
        sa.Column('starts', sa.Integer(), autoincrement=False, nullable=False),
        sa.Column('who', sa.BigInteger(), autoincrement=False, nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _SUMS),
        *(sa.Column(f'h{i:02}', sa.Integer(), nullable=False) for i in range(32)),
        sa.PrimaryKeyConstraint('facet', 'starts', 'who', name=op.f(f'pk_{table}')),
        sqlite_with_rowid=False,
        )
        if not sqlite:  # rows are updated many times within their hour: room for the next version on the same page
            op.execute(f"ALTER TABLE {table} SET (fillfactor = 70)")
    # Requests of before have no sums yet; the next start adds them up.
    op.execute(
        "INSERT INTO setting (name, value) SELECT 'usage_sums', 'missing' WHERE EXISTS (SELECT 1 FROM request)"
    )


def downgrade() -> None:
    for table in ('usage_day', 'usage_hour', 'usage_who'):
        op.drop_table(table)
    op.execute("DELETE FROM setting WHERE name IN ('usage_sums', 'rows_from', 'hours_from', 'days_to')")
    op.drop_column('request', 'discount_nano')
