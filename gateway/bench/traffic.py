"""Requests that might have happened: rows from a seed, the same every time, to measure pages and storage on.

Knows: how traffic of a company of some size is spread over hours, teams, keys, models, users and tags. Does not know:
databases, what is measured.
"""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gateway.db.sums import COLUMNS, DAY, Row

_TEAMS = ("search", "support", "growth", "research", "billing", "mobile", "platform", "legal")
_MODELS = ("chat", "smart", "fast", "embed", "reason", "vision", "draft", "legacy")
_PROVIDERS = ("openai", "anthropic", "local", "openai", "anthropic", "openai", "local", "azure")
_USED = ("gpt-5-mini", "claude-sonnet-4-5", "demo", "text-embedding-3", "claude-opus-4-1", "gpt-5", "demo", "gpt-4o")
_FEATURES = ("faq", "compose", "summary", "triage", "translate", "code")
_ANSWERED = ("upstream", "exact", "semantic", "shared", "none")
_MARKS = {"exact": "hit-exact", "semantic": "hit-semantic", "shared": "shared", "none": "bypass"}
_MODELS_OF_A_KEY = 3
_BLOCK = 10_000


class Shape(Struct, frozen=True, kw_only=True):
    """How much of it: `requests` over `days` that end at `end` (seconds since the epoch), by how many of each.

    A key is an application: it asks for one model mostly, for two others at times; users and customers are its own.
    """

    requests: int
    days: int = 30
    keys: int = 32
    users: int = 1_000
    customers: int = 200
    end: float = dt.datetime(2026, 11, 1, tzinfo=dt.UTC).timestamp()
    seed: int = 7


def rows(shape: Shape) -> Iterator[list[Row]]:
    """Rows in order of time, some thousand at once."""
    rng = np.random.default_rng(shape.seed)
    start = shape.end - shape.days * DAY
    at = np.sort(_instants(rng, shape.requests, start, shape.days))
    for first in range(0, shape.requests, _BLOCK):
        yield _block(rng, shape, at[first : first + _BLOCK])


def _instants(rng: np.random.Generator, count: int, start: float, days: int) -> NDArray[np.float64]:
    """More by day than by night, more on weekdays than on Sundays."""
    hours = np.arange(days * 24)
    weight = (1.2 + np.sin((hours % 24 - 8) * np.pi / 12)) * np.where(hours // 24 % 7 < 5, 1.0, 0.4)
    return start + 3_600 * (rng.choice(hours, count, p=weight / weight.sum()) + rng.random(count))


def _few(rng: np.random.Generator, count: int, of: int) -> NDArray[np.int64]:
    """Most of them few: the n-th is asked for 1/n as often."""
    weight = 1 / np.arange(1, of + 1)
    return rng.choice(of, count, p=weight / weight.sum())


def _block(rng: np.random.Generator, shape: Shape, at: NDArray[np.float64]) -> list[Row]:
    n = len(at)
    drawn: dict[str, Any] = {
        "at": at,
        "key": _few(rng, n, shape.keys),
        "model": _few(rng, n, _MODELS_OF_A_KEY),
        "source": rng.choice(len(_ANSWERED), n, p=(0.62, 0.18, 0.12, 0.03, 0.05)),
        "user": np.where(rng.random(n) < 0.6, _few(rng, n, shape.users // shape.keys), -1),
        "feature": np.where(rng.random(n) < 0.5, rng.integers(0, len(_FEATURES), n), -1),
        "customer": np.where(rng.random(n) < 0.25, _few(rng, n, shape.customers // shape.keys), -1),
        "prompt": rng.lognormal(6.0, 1.0, n).astype(int) + 1,
        "completion": rng.lognormal(5.0, 0.8, n).astype(int) + 1,
        "first_ms": rng.lognormal(6.0, 0.5, n),
        "chance": rng.random(n),
        "low": rng.integers(0, 2**62, n),
    }
    columns = {name: values.tolist() for name, values in drawn.items()}
    return [_row(dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]


def _row(one: dict[str, Any]) -> Row:
    source = _ANSWERED[int(one["source"])]
    chance, key = one["chance"], one["key"]
    model = (key + one["model"] * 3) % len(_MODELS)
    upstream, hit = source == "upstream", source in ("exact", "semantic", "shared")
    prompt, completion = one["prompt"], one["completion"] if source != "none" else 0
    cost = (prompt * 150 + completion * 600) * (1 + model)
    first = one["first_ms"] if upstream else 3.0 + 4 * chance
    streamed = chance < 0.5
    tags: dict[str, str] = {"feature": _FEATURES[one["feature"]]} if one["feature"] >= 0 else {}
    if one["customer"] >= 0:
        tags["customer"] = f"customer-{one['customer']}-of-{key}"
    known: dict[str, Any] = {
        "id": _name(one["at"], one["low"]),
        "at": one["at"],
        "key_id": f"k{key:07}",
        "team": _TEAMS[key % len(_TEAMS)],
        "project": f"app{key // 2 % 3}",
        "user": f"user-{one['user']}-{key}@example.com" if one["user"] >= 0 else None,
        "model": _MODELS[model],
        "provider": _PROVIDERS[model] if source != "none" else "",
        "model_used": _USED[model] if source != "none" else "",
        "operation": "embedding" if _MODELS[model] == "embed" else "chat",
        "stream": streamed,
        "source": source,
        "cache": ("audit" if chance < 0.01 else "miss") if upstream else _MARKS[source],
        "status": 200 if source != "none" else (429, 500, 502)[one["low"] % 3],
        "error": "the upstream answered 502" if source == "none" else None,
        "prompt": prompt,
        "cached": prompt // 2 if chance < 0.2 else 0,
        "cache_write": 0,
        "completion": completion,
        "reasoning": 0,
        "cost_nano": cost if upstream else 0,
        "saved_nano": cost if hit else 0,
        "discount_nano": prompt * 60 if upstream and chance < 0.2 else 0,
        "routed_nano": cost // 4 if upstream and chance < 0.1 else 0,
        "embed_nano": 70 if source != "exact" else 0,
        "cost_status": "estimated" if upstream and chance > 0.98 else "exact",
        "similarity": 0.9 + chance / 10 if source == "semantic" else None,
        "confidence": 0.99 if source == "semantic" else None,
        "ttft_ms": first if source != "none" else None,
        "tpot_ms": 12.5 if upstream and streamed else None,
        "total_ms": first + (completion * 12.5 if upstream else 0.5),
        "overhead_ms": 1.0 + chance,
        "attempts": int(upstream),
        "finish": "stop" if source != "none" else None,
        "complete": source != "none",
        "client_gone": False,
        "tags": _json(tags) if tags else None,
    }
    return tuple(known[name] for name in COLUMNS)


def _json(tags: dict[str, str]) -> str:
    return "{" + ",".join(f'"{name}":"{value}"' for name, value in tags.items()) + "}"


def _name(at: float, low: int) -> str:
    """A UUIDv7 of that instant."""
    text = f"{int(at * 1_000) << 80 | 0x7 << 76 | (low & 0xFFF) << 64 | 0x2 << 62 | low:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
