"""How much error whoever asks puts up with, and which judged keys are good enough for that.

A judged key is a wording that was only judged to have another one's answer. Knows: the operator's budgets and the
asker's, the doubt that was kept with a key. Does not know: how it is judged (`cache.verify`), where keys are kept.
"""

from cache.types import CacheConfig, Entry
from policies.reuse import Budget

NONE = -1.0  # below every doubt: no judged key, however sure


def tightened(config: CacheConfig, allowed: Budget) -> Budget:
    """The operator's, which a client may only tighten."""
    return Budget(
        max_error_rate=min(config.max_error_rate, allowed.max_error_rate),
        max_wrong_hit_rate=min(config.max_wrong_hit_rate, allowed.max_wrong_hit_rate),
    )


def borne(budget: Budget, config: CacheConfig) -> float:
    """How much doubt of a judged key is borne within such a `tightened` budget: the share of hits that may be wrong.

    None where the cache only watches: such a key is an answer to another wording, and served by meaning.
    Where fewer wrong answers are allowed than the operator does, that share too: all requests may be for that key.
    """
    if config.mode == "shadow" or min(budget.max_error_rate, budget.max_wrong_hit_rate) <= 0.0:
        return NONE
    fewer = budget.max_error_rate < config.max_error_rate
    return min(budget.max_wrong_hit_rate, budget.max_error_rate) if fewer else budget.max_wrong_hit_rate


def doubt_of(entry: Entry, config: CacheConfig) -> float:
    """Of a key that was made before its doubt was kept no more is known than what is asked of all of them."""
    return config.max_wrong_hit_rate if entry.doubt is None else entry.doubt
