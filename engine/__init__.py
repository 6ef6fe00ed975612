"""The bundled inference engine: a small torch engine in its own process, usable alone (`python -m engine`).

Knows: models, tokens, batches. Does not know: HTTP, tenants, money, the gateway.
"""
