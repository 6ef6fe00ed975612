"""Contract prices with tiers, hours and classes of tokens; measured engine prices."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


# A price version is what charges rest on: like entries it is never changed, for every role and every tool.
_SQLITE_GUARD = (
    "CREATE TRIGGER price_version_is_never_changed BEFORE UPDATE ON price_version "
    "BEGIN SELECT RAISE(ABORT, 'price versions are append-only'); END",
    "CREATE TRIGGER price_version_is_never_deleted BEFORE DELETE ON price_version "
    "BEGIN SELECT RAISE(ABORT, 'price versions are append-only'); END",
)
_POSTGRES_GUARD = (
    "CREATE FUNCTION price_version_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'price versions are append-only'; END $$",
    "CREATE TRIGGER price_version_is_append_only BEFORE UPDATE OR DELETE ON price_version "
    "FOR EACH ROW EXECUTE FUNCTION price_version_is_append_only()",
)


def upgrade() -> None:
    op.add_column('entry', sa.Column('classes', sa.Text(), nullable=True))
    op.add_column('price_version', sa.Column('terms', sa.JSON(none_as_null=True), nullable=True))
    op.add_column('price_override', sa.Column('effective_until', sa.Double(), nullable=True))
    op.add_column('price_override', sa.Column('terms', sa.JSON(none_as_null=True), nullable=True))
    op.add_column('price_override', sa.Column('service', sa.JSON(none_as_null=True), nullable=True))
    op.add_column('price_override', sa.Column('basis', sa.JSON(none_as_null=True), nullable=True))
    for statement in _SQLITE_GUARD if op.get_bind().dialect.name == 'sqlite' else _POSTGRES_GUARD:
        op.execute(statement)


def downgrade() -> None:
    if op.get_bind().dialect.name == 'sqlite':
        op.execute("DROP TRIGGER price_version_is_never_changed")
        op.execute("DROP TRIGGER price_version_is_never_deleted")
    else:
        op.execute("DROP TRIGGER price_version_is_append_only ON price_version")
        op.execute("DROP FUNCTION price_version_is_append_only()")
    op.drop_column('price_override', 'basis')
    op.drop_column('price_override', 'service')
    op.drop_column('price_override', 'terms')
    op.drop_column('price_override', 'effective_until')
    op.drop_column('price_version', 'terms')
    op.drop_column('entry', 'classes')
