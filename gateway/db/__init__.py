"""The database: typed models, one connection policy per dialect, migrations from code, every SELECT in one place."""
