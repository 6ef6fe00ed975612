"""Sealed months, shared costs, exports."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


# A sealed month is never changed, by any role or tool; one that is being closed may be begun anew.
_SQLITE_GUARD = (
    "CREATE TRIGGER seal_is_never_changed BEFORE UPDATE ON month_seal WHEN OLD.digest IS NOT NULL "
    "BEGIN SELECT RAISE(ABORT, 'sealed months never change'); END",
    "CREATE TRIGGER seal_is_never_deleted BEFORE DELETE ON month_seal WHEN OLD.digest IS NOT NULL "
    "BEGIN SELECT RAISE(ABORT, 'sealed months never change'); END",
    *(
        f"CREATE TRIGGER sealed_line_{name} BEFORE {event} ON month_line "
        f"WHEN EXISTS (SELECT 1 FROM month_seal WHERE month = {row}.month AND digest IS NOT NULL) "
        "BEGIN SELECT RAISE(ABORT, 'sealed months never change'); END"
        for name, event, row in (("changed", "UPDATE", "OLD"), ("deleted", "DELETE", "OLD"), ("added", "INSERT", "NEW"))
    ),
)
_POSTGRES_GUARD = (
    "CREATE FUNCTION seal_never_changes() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN IF OLD.digest IS NOT NULL THEN RAISE EXCEPTION 'sealed months never change'; END IF; "
    "IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$",
    "CREATE TRIGGER seal_never_changes BEFORE UPDATE OR DELETE ON month_seal "
    "FOR EACH ROW EXECUTE FUNCTION seal_never_changes()",
    "CREATE FUNCTION sealed_line_never_changes() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ DECLARE its text; BEGIN IF TG_OP = 'INSERT' THEN its := NEW.month; ELSE its := OLD.month; END IF; "
    "IF EXISTS (SELECT 1 FROM month_seal WHERE month = its AND digest IS NOT NULL) "
    "THEN RAISE EXCEPTION 'sealed months never change'; END IF; "
    "IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW; END $$",
    "CREATE TRIGGER sealed_line_never_changes BEFORE INSERT OR UPDATE OR DELETE ON month_line "
    "FOR EACH ROW EXECUTE FUNCTION sealed_line_never_changes()",
)


def upgrade() -> None:
    op.create_table('month_seal',
    sa.Column('month', sa.Text(), nullable=False),
    sa.Column('began', sa.Double(), nullable=False),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.Column('reason', sa.Text(), nullable=True),
    sa.Column('sealed', sa.Double(), nullable=True),
    sa.Column('entries', sa.BigInteger(), nullable=False),
    sa.Column('amount_nano', sa.BigInteger(), nullable=False),
    sa.Column('estimated_nano', sa.BigInteger(), nullable=False),
    sa.Column('adjustments_nano', sa.BigInteger(), nullable=False),
    sa.Column('facts', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('previous', sa.Text(), nullable=True),
    sa.Column('digest', sa.Text(), nullable=True),
    sa.PrimaryKeyConstraint('month', name=op.f('pk_month_seal'))
    )
    op.create_table('month_line',
    sa.Column('month', sa.Text(), nullable=False),
    sa.Column('number', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('belongs', sa.Text(), nullable=False),
    sa.Column('team', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('key_id', sa.Text(), nullable=False),
    sa.Column('user', sa.Text(), nullable=False),
    sa.Column('provider', sa.Text(), nullable=False),
    sa.Column('model', sa.Text(), nullable=False),
    sa.Column('meter', sa.Text(), nullable=False),
    sa.Column('quantity', sa.BigInteger(), nullable=False),
    sa.Column('amount_nano', sa.BigInteger(), nullable=False),
    sa.Column('estimated_nano', sa.BigInteger(), nullable=False),
    sa.Column('entries', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('month', 'number', name=op.f('pk_month_line'))
    )
    op.create_table('late_entry',
    sa.Column('entry_id', sa.Text(), nullable=False),
    sa.Column('month', sa.Text(), nullable=False),
    sa.Column('belongs', sa.Text(), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('entry_id', name=op.f('pk_late_entry'))
    )
    op.create_index(op.f('ix_late_entry_month'), 'late_entry', ['month'], unique=False)
    op.create_table('shared_cost',
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('amount_nano', sa.BigInteger(), nullable=True),
    sa.Column('team', sa.Text(), nullable=True),
    sa.Column('split', sa.Text(), nullable=False),
    sa.Column('shares', sa.JSON(), nullable=False),
    sa.Column('from_month', sa.Text(), nullable=False),
    sa.Column('until_month', sa.Text(), nullable=True),
    sa.Column('actor', sa.Text(), nullable=False),
    sa.Column('updated', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('name', name=op.f('pk_shared_cost'))
    )
    op.create_table('export_run',
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('period', sa.Text(), nullable=False),
    sa.Column('began', sa.Double(), nullable=False),
    sa.Column('ended', sa.Double(), nullable=True),
    sa.Column('files', sa.JSON(), nullable=False),
    sa.Column('error', sa.Text(), nullable=True),
    sa.PrimaryKeyConstraint('name', name=op.f('pk_export_run'))
    )
    op.add_column('boot', sa.Column('oldest', sa.Double(), nullable=True))
    op.create_index('ix_entry_admitted', 'entry', ['admitted', 'source', 'amount_nano'], unique=False)
    for statement in _SQLITE_GUARD if op.get_bind().dialect.name == "sqlite" else _POSTGRES_GUARD:
        op.execute(statement)


def downgrade() -> None:
    op.drop_index('ix_entry_admitted', table_name='entry')
    op.drop_column('boot', 'oldest')
    op.drop_table('export_run')
    op.drop_table('shared_cost')
    op.drop_index(op.f('ix_late_entry_month'), table_name='late_entry')
    op.drop_table('late_entry')
    op.drop_table('month_line')
    op.drop_table('month_seal')
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION seal_never_changes()")
        op.execute("DROP FUNCTION sealed_line_never_changes()")
