"""`python -m gateway.bench.cache_table RESULT.json`: the summary of a suite's file as Markdown tables.

Knows the rows of `gateway.bench.cache_orders`. Does not know how anything was measured.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

Told = dict[str, Any]
_HEAD = (
    "| policy | budget | orders | hits, 95 % (least, most) | wrong per request, 95 % (worst order) "
    "| wrong per hit, 95 % (worst order) | orders above / provably | first hit, half / all orders |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|"
)
_TABLES = (
    ("A: the budget per request alone", 1.0, 0.0),
    ("B: at most 5 % wrong per hit as well", 0.05, 0.0),
    ("A, 5 % of the judge's labels flipped", 1.0, 0.05),
    ("B, 5 % of the judge's labels flipped", 0.05, 0.05),
    ("A, 10 % of the judge's labels flipped", 1.0, 0.10),
    ("B, 10 % of the judge's labels flipped", 0.05, 0.10),
)
_OURS = ("learned", "pooled", "verified", "hindsight-best")
# Nobody's budget: what these do is counted under 1 % and 5 %.
_FIXED = ("gptcache-default", "cosine-80", "cosine-90", "cosine-95", "guarded")


def markdown(result: Told) -> str:
    """Everything of `summary`, a section per stream."""
    summary: list[Told] = [row for row in result["summary"] if row["part"] != "curve"]
    parts: list[str] = []
    for stream in dict.fromkeys(row["stream"] for row in summary):
        mine = [row for row in summary if row["stream"] == stream]
        first = mine[0]
        parts.append(f"## {stream.partition('.')[0]}: {first['requests']:,} requests")
        for title, per_hit, flip in _TABLES:
            rows = [row for row in mine if row["max_wrong_hit_rate"] == per_hit and row["flip"] == flip]
            chosen = sorted((row for row in rows if row["policy"] in _OURS), key=_place)
            if chosen:
                parts.append(f"**{title}**\n\n{_table(chosen)}")
        known = [row for row in mine if row["policy"] in _FIXED]
        if known:
            parts.append(f"**Without a budget** (orders above, provably above: 1 % per request)\n\n{_table(known)}")
    return "\n\n".join(parts) + "\n"


def _place(row: Told) -> tuple[int, bool, float]:
    return _OURS.index(row["policy"]), row["seen"], row["budget"]


def _table(rows: Iterable[Told]) -> str:
    return "\n".join([_HEAD, *(_line(row) for row in rows)])


def _line(row: Told) -> str:
    name = "nearhit" if row["policy"] == "learned" else row["policy"]
    seen = " (*seen*)" if row["seen"] else ""
    over = [
        f"{row['above'][budget]} / {row['violated'][budget]}" for budget in ("max_error_rate", "max_wrong_hit_rate")
    ]
    shown = over[:1] if row["max_wrong_hit_rate"] >= 1.0 or row["policy"] in _FIXED else over
    cells = (
        f"{name}{seen}",
        "none" if row["policy"] in _FIXED else f"{row['budget']:.1%}".replace(".0%", "%"),
        str(row["orders"]),
        f"{_rate(row, 'hit_rate', 1)} ({_percent(row['least_hit_rate'], 1)}, {_percent(row['most_hit_rate'], 1)})",
        f"{_rate(row, 'wrong_per_request', 2)} ({_percent(row['worst_per_request'], 2)})",
        f"{_rate(row, 'wrong_per_hit', 1)} ({_percent(row['worst_per_hit'], 1)})" if row["hits"] else "no hits",
        "; ".join(shown),
        " / ".join("never" if at is None else f"{at:,}" for at in row["first_hit"]),
    )
    return f"| {' | '.join(cells)} |"


def _rate(row: Told, name: str, digits: int) -> str:
    low, high = row[f"{name}_95"]
    return f"{_percent(row[name], digits)}, {_percent(low, digits)}-{_percent(high, digits)}"


def _percent(value: float, digits: int) -> str:
    return f"{value * 100:.{digits}f}"


def main(arguments: Sequence[str]) -> int:
    """Exit codes: 0 shown, 1 the file cannot be used (the message says why), 2 usage."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m gateway.bench.cache_table RESULT.json\n")
        return 2
    try:
        result = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=Told)
        sys.stdout.write(markdown(result))
    except (OSError, msgspec.DecodeError, KeyError) as error:
        sys.stderr.write(f"{arguments[0]}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
