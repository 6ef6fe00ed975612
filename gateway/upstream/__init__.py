"""What upstream providers are built from: exchanges over HTTP, and the languages that are not OpenAI's.

Knows: one file per language and direction. Does not know: which provider is configured, tenants, money.
"""
