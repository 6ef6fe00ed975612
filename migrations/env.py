"""Alembic's entry point: always runs on the connection it is handed by `gateway.db.migrate`.

Run by hand (to write a new revision) with `alembic -x url=sqlite:///FILE`, see CONTRIBUTING.
"""

from alembic import context

from gateway.db.models import Base

connection = context.config.attributes.get("connection")
if connection is None:
    from sqlalchemy import create_engine

    url = context.get_x_argument(as_dictionary=True)["url"]
    with create_engine(url).begin() as made:
        context.configure(connection=made, target_metadata=Base.metadata, render_as_batch=True)
        context.run_migrations()
else:
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    context.run_migrations()
