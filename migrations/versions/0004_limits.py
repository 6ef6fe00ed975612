"""Rate limits, alert deliveries, cheaper models, and what a window had spent before its budget was set."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('rate_limit',
    sa.Column('scope', sa.Text(), nullable=False),
    sa.Column('rpm', sa.BigInteger(), nullable=True),
    sa.Column('tpm', sa.BigInteger(), nullable=True),
    sa.Column('version', sa.BigInteger(), nullable=False),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.Column('updated', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('scope', name=op.f('pk_rate_limit'))
    )
    op.create_table('rate_bucket',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('level', sa.Double(), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_rate_bucket'))
    )
    op.create_table('alert_delivery',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('channel', sa.Text(), nullable=False),
    sa.Column('window_id', sa.Text(), nullable=False),
    sa.Column('threshold', sa.Double(), nullable=False),
    sa.Column('limit_nano', sa.BigInteger(), nullable=False),
    sa.Column('spent_nano', sa.BigInteger(), nullable=False),
    sa.Column('mode', sa.Text(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('attempts', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('due', sa.Double(), nullable=True),
    sa.Column('delivered', sa.Double(), nullable=True),
    sa.Column('error', sa.Text(), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_alert_delivery'))
    )
    op.create_index(op.f('ix_alert_delivery_due'), 'alert_delivery', ['due'], unique=False)
    for name in ('budget', 'budget_version'):
        op.add_column(name, sa.Column('degrade_to', sa.Text(), nullable=True))
        op.add_column(name, sa.Column('degrade_at', sa.Double(), nullable=True))
    op.add_column('budget_window', sa.Column('opening_nano', sa.BigInteger(), server_default='0', nullable=False))
    op.add_column('budget_window', sa.Column('opened', sa.BigInteger(), nullable=True))
    op.create_index(op.f('ix_budget_window_opened'), 'budget_window', ['opened'], unique=False)
    op.add_column('entry', sa.Column('asked', sa.Text(), nullable=True))
    op.add_column('entry', sa.Column('tags', sa.Text(), nullable=True))
    op.add_column('entry', sa.Column('charged', sa.Boolean(), server_default=sa.true(), nullable=False))


def downgrade() -> None:
    for name in ('charged', 'tags', 'asked'):
        op.drop_column('entry', name)
    op.drop_index(op.f('ix_budget_window_opened'), table_name='budget_window')
    op.drop_column('budget_window', 'opened')
    op.drop_column('budget_window', 'opening_nano')
    for name in ('budget_version', 'budget'):
        op.drop_column(name, 'degrade_at')
        op.drop_column(name, 'degrade_to')
    op.drop_index(op.f('ix_alert_delivery_due'), table_name='alert_delivery')
    op.drop_table('alert_delivery')
    op.drop_table('rate_bucket')
    op.drop_table('rate_limit')
