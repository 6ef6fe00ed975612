"""What feedback takes back of what a wrong hit seemed to save."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('saving_correction',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('request_id', sa.Text(), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('team', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('model', sa.Text(), nullable=False),
    sa.Column('amount_nano', sa.BigInteger(), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_saving_correction'))
    )
    op.create_index(op.f('ix_saving_correction_request_id'), 'saving_correction', ['request_id'], unique=False)
    op.create_index(op.f('ix_saving_correction_at'), 'saving_correction', ['at'], unique=False)


def downgrade() -> None:
    op.drop_table('saving_correction')
