"""Files, batches, kept responses, answers under an idempotency key."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('batch',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('team', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('key_id', sa.Text(), nullable=False),
    sa.Column('endpoint', sa.Text(), nullable=False),
    sa.Column('input_file', sa.Text(), nullable=False),
    sa.Column('output_file', sa.Text(), nullable=True),
    sa.Column('error_file', sa.Text(), nullable=True),
    sa.Column('window', sa.Text(), nullable=False),
    sa.Column('status', sa.Text(), nullable=False),
    sa.Column('metadata', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('errors', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('directives', sa.JSON(), nullable=False),
    sa.Column('lines', sa.BigInteger(), nullable=False),
    sa.Column('succeeded', sa.BigInteger(), nullable=False),
    sa.Column('unsuccessful', sa.BigInteger(), nullable=False),
    sa.Column('output_lifetime', sa.Double(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('expires', sa.Double(), nullable=False),
    sa.Column('in_progress', sa.Double(), nullable=True),
    sa.Column('finalizing', sa.Double(), nullable=True),
    sa.Column('completed', sa.Double(), nullable=True),
    sa.Column('failed', sa.Double(), nullable=True),
    sa.Column('expired', sa.Double(), nullable=True),
    sa.Column('cancelling', sa.Double(), nullable=True),
    sa.Column('cancelled', sa.Double(), nullable=True),
    sa.Column('owner', sa.Text(), nullable=True),
    sa.Column('once', sa.Text(), nullable=True),
    sa.Column('fingerprint', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_batch')),
    sa.UniqueConstraint('once', name=op.f('uq_batch_once'))
    )
    op.create_index(op.f('ix_batch_status'), 'batch', ['status'], unique=False)
    op.create_index('ix_batch_team_project_created', 'batch', ['team', 'project', 'created'], unique=False)
    op.create_table('batch_line',
    sa.Column('batch_id', sa.Text(), nullable=False),
    sa.Column('number', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('custom_id', sa.Text(), nullable=False),
    sa.Column('request', sa.LargeBinary(), nullable=True),
    sa.Column('state', sa.Text(), nullable=False),
    sa.Column('request_id', sa.Text(), nullable=True),
    sa.Column('boot', sa.Text(), nullable=True),
    sa.Column('result', sa.LargeBinary(), nullable=True),
    sa.PrimaryKeyConstraint('batch_id', 'number', name=op.f('pk_batch_line'))
    )
    op.create_index('ix_batch_line_batch_id_state', 'batch_line', ['batch_id', 'state', 'number'], unique=False)
    op.create_table('kept_response',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('team', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('previous', sa.Text(), nullable=True),
    sa.Column('status', sa.Text(), nullable=False),
    sa.Column('body', sa.LargeBinary(), nullable=False),
    sa.Column('items', sa.LargeBinary(), nullable=False),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('expires', sa.Double(), nullable=False),
    sa.Column('boot', sa.Text(), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_kept_response'))
    )
    op.create_index(op.f('ix_kept_response_expires'), 'kept_response', ['expires'], unique=False)
    op.create_index('ix_kept_response_team_project_created', 'kept_response', ['team', 'project', 'created'], unique=False)
    op.create_table('once_answer',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('key_id', sa.Text(), nullable=False),
    sa.Column('fingerprint', sa.Text(), nullable=False),
    sa.Column('request_id', sa.Text(), nullable=False),
    sa.Column('boot', sa.Text(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('expires', sa.Double(), nullable=False),
    sa.Column('done', sa.Boolean(), nullable=False),
    sa.Column('status', sa.BigInteger(), nullable=True),
    sa.Column('headers', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_once_answer'))
    )
    op.create_index(op.f('ix_once_answer_expires'), 'once_answer', ['expires'], unique=False)
    op.create_index('ix_once_answer_key_id_created', 'once_answer', ['key_id', 'created'], unique=False)
    op.create_table('stored_file',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('team', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('purpose', sa.Text(), nullable=False),
    sa.Column('size', sa.BigInteger(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('expires', sa.Double(), nullable=True),
    sa.Column('ready', sa.Boolean(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_stored_file'))
    )
    op.create_index(op.f('ix_stored_file_expires'), 'stored_file', ['expires'], unique=False)
    op.create_index('ix_stored_file_team_project_created', 'stored_file', ['team', 'project', 'created'], unique=False)
    op.create_table('stored_piece',
    sa.Column('owner', sa.Text(), nullable=False),
    sa.Column('number', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('data', sa.LargeBinary(), nullable=False),
    sa.PrimaryKeyConstraint('owner', 'number', name=op.f('pk_stored_piece'))
    )


def downgrade() -> None:
    op.drop_table('stored_piece')
    op.drop_index('ix_stored_file_team_project_created', table_name='stored_file')
    op.drop_index(op.f('ix_stored_file_expires'), table_name='stored_file')
    op.drop_table('stored_file')
    op.drop_index('ix_once_answer_key_id_created', table_name='once_answer')
    op.drop_index(op.f('ix_once_answer_expires'), table_name='once_answer')
    op.drop_table('once_answer')
    op.drop_index('ix_kept_response_team_project_created', table_name='kept_response')
    op.drop_index(op.f('ix_kept_response_expires'), table_name='kept_response')
    op.drop_table('kept_response')
    op.drop_index('ix_batch_line_batch_id_state', table_name='batch_line')
    op.drop_table('batch_line')
    op.drop_index('ix_batch_team_project_created', table_name='batch')
    op.drop_index(op.f('ix_batch_status'), table_name='batch')
    op.drop_table('batch')
