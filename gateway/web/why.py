"""The sentence that says why a request was a hit or a miss.

Knows: every reason word that the cache and the gateway use. Does not know: pages. A word it has never heard of is shown
as it is, so that a new reason is never hidden.
"""

from typing import NamedTuple

_REASONS = {
    "off": "The cache was switched off for this request.",
    "dry-run": "This was a dry run: nothing was looked up or asked.",
    "no-identity": "The caller belongs to no team, and nothing is cached without one.",
    "temperature": "The request asked for more randomness than cache.max_temperature allows to reuse.",
    "malformed": "The request could not be read as one the cache understands.",
    "not-asked": "The request ended before the cache was asked.",
    "not-kept": "Nothing was kept for exactly this request, and only an exact answer was allowed.",
    "empty": "Nothing is kept yet for this tenant, model and conversation.",
    "far": "No kept request was close enough in meaning.",
    "guard": "A kept request was close, but differed in something that changes the answer (see below).",
    "budget": "Serving the closest answer would have exceeded the allowed error rate.",
    "explore": "The closest answer might have fitted; a fresh one was fetched to learn whether it does.",
    "shadow": "The cache only watches here, by its setting or until it has learned enough: nothing was served.",
    "unsure": "The closest answer might have fitted, but not surely enough for the error budgets.",
    "quarantine": "An answer near here was found wrong; nothing near is served until a fresh answer shows that it may.",
    "brake": "Too many hits were found wrong: nothing is served by meaning until the measured rate is low enough.",
    "unread": "The closest answer might have fitted, but the encoder did not read both texts together in time.",
    "gone": "The closest answer was taken out while it was being judged.",
    "index-loading": "What is kept for this conversation was still being loaded, so only the exact tier could answer.",
    "store-down": "The cache's store did not answer, so the request went on without it.",
    "embed-timeout": "The embedding took longer than cache.embed_timeout, so the semantic look-up was skipped.",
    "encoder-loading": "The encoder was still loading, so only the exact tier could answer.",
    "encoder-down": "The encoder did not answer, so only the exact tier could answer.",
    "encoder-failed": "The encoder could not make a vector of the text, so only the exact tier could answer.",
    "encoder-busy": "The encoder had too much to do, so only the exact tier could answer.",
    "expired": "A kept answer was found, but it had expired or was older than the client allows.",
    "operation": "Only the very same request is reused for this kind of operation.",
    "tools": "Only the very same request is reused when tools are offered.",
    "n": "Only the very same request is reused when several answers are asked for.",
    "logprobs": "Only the very same request is reused when log-probabilities are asked for.",
    "audio": "Only the very same request is reused when audio is asked for.",
    "no-text": "The request has no text whose meaning could be compared.",
    "text-too-long": "The text is longer than the encoder reads, so only the very same request is reused.",
    "time-sensitive": "The request asks about something that changes with time, so only the very same one is reused.",
    "last-turn-not-user": "The conversation does not end with a user's turn, so only the very same one is reused.",
    "non-text-parts": "The message holds more than text, so only the very same request is reused.",
}

# Why the cache was not asked, where nobody said that an answer must not be kept.
_UNASKED = frozenset(("off", "dry-run", "no-identity", "temperature", "malformed", "not-asked", "store-down"))
_MARKS = {
    "hit-exact": "The very same request was answered before in this scope, so the kept answer was served.",
    "hit-semantic": "A request that means the same was answered before in this scope, so its answer was served.",
    "shared": "An identical request was already under way; this one waited for the same answer.",
    "bypass": "The cache was not asked.",
    "audit": "The gateway asked by itself, to check a hit or to judge two answers; no client waited for it.",
    "replayed": "The answer made before under the same idempotency key was told again; nothing was asked or charged.",
    "refresh": "The client asked for a fresh answer instead of a kept one.",
    "miss": "No kept answer could be served, so a fresh one was fetched.",
}
# What became of requests that no upstream was asked for. Whole answers' words need no sentence here.
_REFUSALS = {
    "insufficient_quota": "it would have gone over a budget",
    "max_cost_exceeded": "it could have cost more than its x-nearhit-max-cost-usd",
    "model_not_priced": "the model has no price",
    "rate_limit_exceeded": "it was over a rate limit",
    "overloaded": "the gateway had too much to do",
    "cache_miss": "only a kept answer was asked for",
    "deadline_exceeded": "its time was over",
    "upstream_unavailable": "every upstream it could go to had failed before and was left alone",
}


class Ending(NamedTuple):
    """How a request ended badly: the error's code, and whether an upstream had been asked."""

    error: str
    asked: bool


def ending(error: str | None, attempts: int) -> Ending | None:
    """None where nothing went wrong."""
    return Ending(error, attempts > 0) if error else None


def _instead(ended: Ending) -> str:
    if ended.asked:
        return f"No kept answer could be served, and asking for a fresh one failed: {ended.error}."
    why = _REFUSALS.get(ended.error)
    told = f"{why} ({ended.error})" if why else f"it was refused: {ended.error}"
    return f"No kept answer could be served, and no fresh one was asked for, because {told}."


def sentence(mark: str | None, reason: str | None, bar: str | None, *, known: bool, ended: Ending | None = None) -> str:
    """`mark`: how the cache marked it; `reason`, `bar`: its words; `known` is False once the explanation is gone."""
    if mark is None:
        return "Not known: this request has no row yet."
    said = _MARKS.get(mark, f"The cache marked it “{mark}”.")
    if mark == "miss" and ended is not None:
        said = _instead(ended)
    if mark == "bypass" and known and reason not in _UNASKED:
        said = "The client asked that nothing be kept of its answer."
    if mark.startswith("hit") or mark in ("shared", "replayed"):
        return said
    if not known:
        return f"{said} The details were kept for a few days only and are gone."
    if reason is None:
        return said
    told = _REASONS.get(reason, f"Reason: {reason}.")
    if bar is not None and bar != reason:
        told = f"{told} {_REASONS.get(bar, f'Reason: {bar}.')}"
    return f"{said} {told}"
