"""The first schema: keys, budgets and their balances, the ledger, requests, prices, audit."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


# Entries are append-only for every role and every tool, not only by convention.
_SQLITE_GUARD = (
    "CREATE TRIGGER entry_is_never_changed BEFORE UPDATE ON entry BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END",
    "CREATE TRIGGER entry_is_never_deleted BEFORE DELETE ON entry BEGIN SELECT RAISE(ABORT, 'entries are append-only'); END",
)
_POSTGRES_GUARD = (
    "CREATE FUNCTION entry_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'entries are append-only'; END $$",
    "CREATE TRIGGER entry_is_append_only BEFORE UPDATE OR DELETE ON entry "
    "FOR EACH ROW EXECUTE FUNCTION entry_is_append_only()",
)


def upgrade() -> None:
    op.create_table('api_key',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('prefix', sa.Text(), nullable=False),
    sa.Column('hash', sa.Text(), nullable=False),
    sa.Column('team', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('role', sa.Text(), nullable=False),
    sa.Column('models', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('expires', sa.Double(), nullable=True),
    sa.Column('revoked', sa.Double(), nullable=True),
    sa.Column('last_used', sa.Double(), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_api_key')),
    sa.UniqueConstraint('hash', name=op.f('uq_api_key_hash'))
    )
    op.create_table('audit',
    sa.Column('id', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.Column('action', sa.Text(), nullable=False),
    sa.Column('target', sa.Text(), nullable=False),
    sa.Column('before', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('after', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('ip', sa.Text(), nullable=True),
    sa.Column('digest', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_audit'))
    )
    op.create_index(op.f('ix_audit_at'), 'audit', ['at'], unique=False)
    op.create_table('boot',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('host', sa.Text(), nullable=False),
    sa.Column('journalled', sa.Boolean(), nullable=False),
    sa.Column('started', sa.Double(), nullable=False),
    sa.Column('seen', sa.Double(), nullable=False),
    sa.Column('closed', sa.Double(), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_boot'))
    )
    op.create_table('budget',
    sa.Column('scope', sa.Text(), nullable=False),
    sa.Column('limit_nano', sa.BigInteger(), nullable=False),
    sa.Column('window', sa.Text(), nullable=False),
    sa.Column('timezone', sa.Text(), nullable=False),
    sa.Column('mode', sa.Text(), nullable=False),
    sa.Column('alerts', sa.JSON(), nullable=False),
    sa.Column('version', sa.BigInteger(), nullable=False),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('updated', sa.Double(), nullable=False),
    sa.Column('retired', sa.Double(), nullable=True),
    sa.CheckConstraint('limit_nano >= 0', name=op.f('ck_budget_limit')),
    sa.PrimaryKeyConstraint('scope', name=op.f('pk_budget'))
    )
    op.create_table('budget_alert',
    sa.Column('window_id', sa.Text(), nullable=False),
    sa.Column('threshold', sa.Double(), nullable=False),
    sa.Column('spent_nano', sa.BigInteger(), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('window_id', 'threshold', name=op.f('pk_budget_alert'))
    )
    op.create_table('budget_version',
    sa.Column('scope', sa.Text(), nullable=False),
    sa.Column('version', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('limit_nano', sa.BigInteger(), nullable=False),
    sa.Column('window', sa.Text(), nullable=False),
    sa.Column('timezone', sa.Text(), nullable=False),
    sa.Column('mode', sa.Text(), nullable=False),
    sa.Column('retired', sa.Boolean(), server_default=sa.false(), nullable=False),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('scope', 'version', name=op.f('pk_budget_version'))
    )
    op.create_table('budget_window',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('scope', sa.Text(), nullable=False),
    sa.Column('window', sa.Text(), nullable=False),
    sa.Column('starts', sa.BigInteger(), nullable=False),
    sa.Column('ends', sa.BigInteger(), nullable=False),
    sa.Column('limit_nano', sa.BigInteger(), nullable=False),
    sa.Column('spent_nano', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('estimated_nano', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('held_nano', sa.BigInteger(), server_default='0', nullable=False),
    sa.Column('wanted', sa.Double(), nullable=True),
    sa.CheckConstraint('held_nano >= 0', name=op.f('ck_budget_window_held')),
    sa.CheckConstraint('spent_nano >= 0', name=op.f('ck_budget_window_spent')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_budget_window'))
    )
    op.create_index('ix_budget_window_scope_starts', 'budget_window', ['scope', 'starts'], unique=False)
    op.create_table('entry',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('request_id', sa.Text(), nullable=False),
    sa.Column('admitted', sa.Double(), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('boot', sa.Text(), nullable=False),
    sa.Column('windows', sa.Text(), nullable=False),
    sa.Column('team', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('key_id', sa.Text(), nullable=False),
    sa.Column('user', sa.Text(), nullable=True),
    sa.Column('provider', sa.Text(), nullable=False),
    sa.Column('model', sa.Text(), nullable=False),
    sa.Column('provider_id', sa.Text(), nullable=True),
    sa.Column('price', sa.Text(), nullable=False),
    sa.Column('prompt', sa.BigInteger(), nullable=False),
    sa.Column('cached', sa.BigInteger(), nullable=False),
    sa.Column('cache_write', sa.BigInteger(), nullable=False),
    sa.Column('completion', sa.BigInteger(), nullable=False),
    sa.Column('reasoning', sa.BigInteger(), nullable=False),
    sa.Column('amount_nano', sa.BigInteger(), nullable=False),
    sa.Column('reserved_nano', sa.BigInteger(), nullable=False),
    sa.Column('source', sa.Text(), nullable=False),
    sa.Column('ended', sa.Text(), nullable=False),
    sa.Column('note', sa.Text(), nullable=True),
    sa.Column('digest', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_entry'))
    )
    op.create_index(op.f('ix_entry_at'), 'entry', ['at'], unique=False)
    op.create_index(op.f('ix_entry_request_id'), 'entry', ['request_id'], unique=False)
    op.create_table('entry_conflict',
    sa.Column('entry_id', sa.Text(), nullable=False),
    sa.Column('digest', sa.Text(), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('amount_nano', sa.BigInteger(), nullable=False),
    sa.Column('source', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('entry_id', 'digest', name=op.f('pk_entry_conflict'))
    )
    op.create_table('explain',
    sa.Column('request_id', sa.Text(), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('data', sa.JSON(), nullable=False),
    sa.PrimaryKeyConstraint('request_id', name=op.f('pk_explain'))
    )
    op.create_index(op.f('ix_explain_at'), 'explain', ['at'], unique=False)
    op.create_table('lease',
    sa.Column('boot', sa.Text(), nullable=False),
    sa.Column('window_id', sa.Text(), nullable=False),
    sa.Column('granted_nano', sa.BigInteger(), nullable=False),
    sa.Column('consumed_nano', sa.BigInteger(), nullable=False),
    sa.Column('closed', sa.Boolean(), server_default=sa.false(), nullable=False),
    sa.CheckConstraint('consumed_nano >= 0 AND granted_nano >= consumed_nano', name=op.f('ck_lease_consumed')),
    sa.PrimaryKeyConstraint('boot', 'window_id', name=op.f('pk_lease'))
    )
    op.create_index(op.f('ix_lease_window_id'), 'lease', ['window_id'], unique=False)
    op.create_table('price_override',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('provider', sa.Text(), nullable=False),
    sa.Column('model', sa.Text(), nullable=False),
    sa.Column('input_pico', sa.BigInteger(), nullable=False),
    sa.Column('output_pico', sa.BigInteger(), nullable=False),
    sa.Column('cached_pico', sa.BigInteger(), nullable=False),
    sa.Column('cache_write_pico', sa.BigInteger(), nullable=False),
    sa.Column('request_pico', sa.BigInteger(), nullable=False),
    sa.Column('status', sa.Text(), nullable=False),
    sa.Column('effective_from', sa.Double(), nullable=False),
    sa.Column('source', sa.Text(), nullable=False),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_price_override'))
    )
    op.create_index('uq_price_override_model', 'price_override', ['provider', 'model', 'effective_from'], unique=True)
    op.create_table('price_version',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('input_pico', sa.BigInteger(), nullable=False),
    sa.Column('output_pico', sa.BigInteger(), nullable=False),
    sa.Column('cached_pico', sa.BigInteger(), nullable=False),
    sa.Column('cache_write_pico', sa.BigInteger(), nullable=False),
    sa.Column('request_pico', sa.BigInteger(), nullable=False),
    sa.Column('tiers', sa.JSON(), nullable=False),
    sa.Column('status', sa.Text(), nullable=False),
    sa.Column('first_used', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_price_version'))
    )
    op.create_table('request',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('key_id', sa.Text(), nullable=False),
    sa.Column('team', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('user', sa.Text(), nullable=True),
    sa.Column('model', sa.Text(), nullable=False),
    sa.Column('provider', sa.Text(), nullable=False),
    sa.Column('model_used', sa.Text(), nullable=False),
    sa.Column('operation', sa.Text(), nullable=False),
    sa.Column('stream', sa.Boolean(), nullable=False),
    sa.Column('source', sa.Text(), nullable=False),
    sa.Column('cache', sa.Text(), nullable=False),
    sa.Column('status', sa.Integer(), nullable=False),
    sa.Column('error', sa.Text(), nullable=True),
    sa.Column('prompt', sa.BigInteger(), nullable=False),
    sa.Column('cached', sa.BigInteger(), nullable=False),
    sa.Column('cache_write', sa.BigInteger(), nullable=False),
    sa.Column('completion', sa.BigInteger(), nullable=False),
    sa.Column('reasoning', sa.BigInteger(), nullable=False),
    sa.Column('cost_nano', sa.BigInteger(), nullable=False),
    sa.Column('saved_nano', sa.BigInteger(), nullable=False),
    sa.Column('cost_status', sa.String(length=16), nullable=False),
    sa.Column('similarity', sa.Double(), nullable=True),
    sa.Column('confidence', sa.Double(), nullable=True),
    sa.Column('ttft_ms', sa.Double(), nullable=True),
    sa.Column('tpot_ms', sa.Double(), nullable=True),
    sa.Column('total_ms', sa.Double(), nullable=False),
    sa.Column('overhead_ms', sa.Double(), nullable=True),
    sa.Column('attempts', sa.Integer(), nullable=False),
    sa.Column('finish', sa.Text(), nullable=True),
    sa.Column('complete', sa.Boolean(), nullable=False),
    sa.Column('client_gone', sa.Boolean(), nullable=False),
    sa.Column('tags', sa.JSON(none_as_null=True), nullable=True),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_request'))
    )
    op.create_index(op.f('ix_request_at'), 'request', ['at'], unique=False)
    op.create_index('ix_request_key_id_at', 'request', ['key_id', 'at'], unique=False)
    op.create_index('ix_request_team_at', 'request', ['team', 'at'], unique=False)
    op.create_table('session',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.Column('role', sa.Text(), nullable=False),
    sa.Column('csrf', sa.Text(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.Column('seen', sa.Double(), nullable=False),
    sa.Column('expires', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_session'))
    )
    op.create_index(op.f('ix_session_expires'), 'session', ['expires'], unique=False)
    op.create_table('setting',
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('value', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('name', name=op.f('pk_setting'))
    )
    op.create_table('team',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_team'))
    )
    op.create_table('project',
    sa.Column('id', sa.Text(), nullable=False),
    sa.Column('team', sa.Text(), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('created', sa.Double(), nullable=False),
    sa.ForeignKeyConstraint(['team'], ['team.id'], name=op.f('fk_project_team')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_project'))
    )
    op.create_index(op.f('ix_project_team'), 'project', ['team'], unique=False)
    for statement in _SQLITE_GUARD if op.get_bind().dialect.name == "sqlite" else _POSTGRES_GUARD:
        op.execute(statement)


def downgrade() -> None:
    op.drop_index(op.f('ix_project_team'), table_name='project')
    op.drop_table('project')
    op.drop_table('team')
    op.drop_table('setting')
    op.drop_index(op.f('ix_session_expires'), table_name='session')
    op.drop_table('session')
    op.drop_index('ix_request_team_at', table_name='request')
    op.drop_index('ix_request_key_id_at', table_name='request')
    op.drop_index(op.f('ix_request_at'), table_name='request')
    op.drop_table('request')
    op.drop_table('price_version')
    op.drop_index('uq_price_override_model', table_name='price_override')
    op.drop_table('price_override')
    op.drop_index(op.f('ix_lease_window_id'), table_name='lease')
    op.drop_table('lease')
    op.drop_index(op.f('ix_explain_at'), table_name='explain')
    op.drop_table('explain')
    op.drop_table('entry_conflict')
    op.drop_index(op.f('ix_entry_request_id'), table_name='entry')
    op.drop_index(op.f('ix_entry_at'), table_name='entry')
    op.drop_table('entry')
    op.drop_index('ix_budget_window_scope_starts', table_name='budget_window')
    op.drop_table('budget_window')
    op.drop_table('budget_version')
    op.drop_table('budget_alert')
    op.drop_table('budget')
    op.drop_table('boot')
    op.drop_index(op.f('ix_audit_at'), table_name='audit')
    op.drop_table('audit')
    op.drop_table('api_key')
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION entry_is_append_only()")
