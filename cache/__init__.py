"""A semantic cache that never crosses a tenant: exact digests first, meaning second, a policy in between.

Usable alone. Importing it loads neither torch nor sentence-transformers; FAISS comes with the first semantic lookup.
"""

from cache.embedder import Encoder, EncoderClient, HashEncoder
from cache.scope import Identity, scope_query
from cache.semantic import SemanticCache
from cache.types import CacheConfig, Entry, Hit, Kept, Looked, Miss, Query, ScopeStats, Uncacheable

__all__ = [
    "CacheConfig",
    "Encoder",
    "EncoderClient",
    "Entry",
    "HashEncoder",
    "Hit",
    "Identity",
    "Kept",
    "Looked",
    "Miss",
    "Query",
    "ScopeStats",
    "SemanticCache",
    "Uncacheable",
    "scope_query",
]
