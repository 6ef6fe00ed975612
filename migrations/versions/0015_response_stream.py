"""Events of responses that are made in the background and streamed: how far each has come, and until when it is kept.

The version before goes on beside it: what it keeps was not streamed. Going back loses the events alone.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "response_stream",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("team", sa.Text(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("ended", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("expires", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_response_stream")),
    )
    op.create_index(op.f("ix_response_stream_expires"), "response_stream", ["expires"], unique=False)
    op.create_index(
        "ix_response_stream_team_project_created", "response_stream", ["team", "project", "created"], unique=False
    )
    op.add_column("kept_response", sa.Column("streamed", sa.Boolean(), nullable=True))


def downgrade() -> None:
    op.drop_column("kept_response", "streamed")
    op.execute("DELETE FROM stored_piece WHERE owner IN (SELECT id FROM response_stream)")
    op.drop_index("ix_response_stream_team_project_created", table_name="response_stream")
    op.drop_index(op.f("ix_response_stream_expires"), table_name="response_stream")
    op.drop_table("response_stream")
