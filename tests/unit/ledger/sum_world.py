"""Requests drawn at random, what a plain count says of them.

The count here is written from the meaning of the numbers alone: it shares no code with `gateway.db.sums`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import strategies as st

from gateway.db.rows import UsageRow
from gateway.db.sums import COLUMNS, Row

START = 20_733 * 86_400  # a midnight in UTC, three days before eight and sixty-four days are full
HITS = ("exact", "semantic", "shared")
Told = dict[str, Any]

_some = st.sampled_from
AMOUNT = _some([0, 1, 7, 1_000, 10**12])
REQUEST = st.fixed_dictionaries(
    {
        "at": st.one_of(
            st.floats(0, 4 * 86_400 - 1, allow_nan=False),
            st.integers(0, 4 * 24 - 1).map(lambda hour: hour * 3_600.0),
            st.integers(0, 4 * 24 - 1).map(lambda hour: hour * 3_600.0 + 3_599.999999),
        ),
        "team": _some(["a", "b"]),
        "project": _some(["p", "q"]),
        "key_id": _some(["k1", "k2"]),
        "user": _some([None, "ann", "bob"]),
        "model": _some(["m", "n"]),
        "provider": _some(["openai", ""]),
        "model_used": _some(["x", ""]),
        "operation": _some(["chat", "embedding"]),
        "source": _some(["upstream", "exact", "semantic", "shared", "none"]),
        "cache": _some(["miss", "audit", "hit-exact"]),
        "status": _some([200, 429, 500]),
        "prompt": _some([0, 5, 100]),
        "cached": _some([0, 3]),
        "cost_nano": AMOUNT,
        "saved_nano": AMOUNT,
        "discount_nano": _some([-4, 0, 9]),
        "routed_nano": _some([-3, 0, 11]),
        "embed_nano": _some([0, 7]),
        "cost_status": _some(["exact", "estimated"]),
        "ttft_ms": _some([None, 0.5, 300.0]),
        "total_ms": _some([0.0, 0.99, 1.0, 63.0, 90.5, 5_000.0, 1e6]),
        "tags": _some([None, {"app": "web"}, {"app": "ios", "env": "dev"}, {"env": "dev"}]),
    }
)
_REST = {
    "stream": False,
    "error": None,
    "cache_write": 1,
    "completion": 2,
    "reasoning": 1,
    "similarity": None,
    "confidence": None,
    "tpot_ms": None,
    "overhead_ms": None,
    "attempts": 1,
    "finish": None,
    "complete": True,
    "client_gone": False,
}


def told(number: int, drawn: Mapping[str, Any]) -> Told:
    """A whole request."""
    return {"id": f"{number:036}", **_REST, **drawn, "at": START + drawn["at"]}


def row(of: Told) -> Row:
    """As the recorder hands it on."""
    tags = None if of["tags"] is None else msgspec.json.encode(of["tags"]).decode()
    return tuple(tags if name == "tags" else of[name] for name in COLUMNS)


def _value(of: Told, name: str) -> str:
    if name.startswith("tag:"):
        return (of["tags"] or {}).get(name[4:], "")
    if name in ("minute", "hour", "day", "month"):
        forms = {"minute": "%Y-%m-%dT%H:%M:00Z", "hour": "%Y-%m-%dT%H:00:00Z", "day": "%Y-%m-%d", "month": "%Y-%m"}
        return datetime.fromtimestamp(int(of["at"]), UTC).strftime(forms[name])
    return str(of["key_id" if name == "key" else name] or "")


def counted(
    those: Iterable[Told], corrections: Mapping[str, int], asked: tuple[Sequence[str], float, float, Mapping[str, str]]
) -> dict[tuple[str, ...], dict[str, int]]:
    """Every number of every group, added up one request after another. `asked`: groups, start, end, conditions."""
    group_by, start, end, where = asked
    found: dict[tuple[str, ...], dict[str, int]] = {}
    for one in those:
        if not start <= one["at"] < end or any(_value(one, name) != value for name, value in where.items()):
            continue
        group = found.setdefault(tuple(_value(one, name) for name in group_by), dict.fromkeys(_RULES, 0))
        for name, rule in _RULES.items():
            group[name] += rule(one)
        group["corrected_nano"] += corrections.get(one["id"], 0)
    return found


def _audit(one: Told) -> bool:
    return one["cache"] == "audit"


def _guessed(one: Told) -> bool:
    return one["cost_status"] == "estimated"


_RULES: dict[str, Callable[[Told], int]] = {
    "requests": lambda one: not _audit(one),
    "hits": lambda one: one["source"] in HITS,
    "errors": lambda one: one["status"] >= 400 and not _audit(one),
    "audits": _audit,
    "estimated": lambda one: _guessed(one) and not _audit(one),
    "prompt": lambda one: one["prompt"],
    "cached": lambda one: one["cached"],
    "cache_write": lambda one: one["cache_write"],
    "completion": lambda one: one["completion"],
    "reasoning": lambda one: one["reasoning"],
    "cost_nano": lambda one: one["cost_nano"],
    "estimated_nano": lambda one: one["cost_nano"] if _guessed(one) else 0,
    "audit_nano": lambda one: one["cost_nano"] if _audit(one) else 0,
    "discount_nano": lambda one: one["discount_nano"],
    "saved_nano": lambda one: one["saved_nano"],
    "routed_nano": lambda one: one["routed_nano"],
    "embed_nano": lambda one: one["embed_nano"],
    "corrected_nano": lambda one: 0,
}


def numbers(rows: Iterable[UsageRow]) -> dict[tuple[str, ...], dict[str, int]]:
    """The answer of the queries in the form of `counted`."""
    return {tuple(row.group.values()): {name: int(getattr(row, name)) for name in _RULES} for row in rows}
