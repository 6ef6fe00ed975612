"""HTTP routes: one module per part of the API, each exporting `route_handlers()`."""
