"""What the cache knew when it decided, on a terminal.

Knows: the `why` of a request as the API answers it. Does not know: how any of it came about.
"""

from typing import Any, cast

from gateway.cli import show

_MOST_FEATURES = 12


def tell_why(why: dict[str, Any]) -> None:
    """Scope, candidates with what spoke for and against them, how the scope stood, and what a fresh answer said."""
    if why.get("scope"):
        show.line(f"scope {why['scope']}…")
    candidates: list[dict[str, Any]] = why.get("candidates") or []
    if candidates:
        columns = ("entry", "similarity", "confidence", "risk", "guard")
        show.table(columns, [[_cell(one.get(column)) for column in columns] for one in candidates])
    for one in candidates:
        if features := cast("dict[str, float]", one.get("features") or {}):
            largest = sorted(features.items(), key=lambda item: -abs(item[1]))[:_MOST_FEATURES]
            show.line(f"{one['entry']}: " + ", ".join(f"{name} {value:g}" for name, value in largest))
        if one.get("guards"):
            show.line(f"{one['entry']}: against it spoke {', '.join(one['guards'])}")
    if headroom := cast("dict[str, float]", why.get("headroom") or {}):
        show.line("the scope then: " + ", ".join(f"{name} {value:.4g}" for name, value in headroom.items()))
    _tell_judged(why)


def _tell_judged(why: dict[str, Any]) -> None:
    if why.get("of"):
        show.line(f"this request checked {why['of']}")
    if why.get("audit"):
        show.line(f"checked by {why['audit']}")
    judged: dict[str, Any] = why.get("judged") or {}
    if judged:
        same = {True: "the same", False: "different"}.get(cast("bool", judged.get("same")), "could not be told")
        show.line(
            f"a fresh answer beside it: {same}" + (f", now a key of {judged['key']}" if judged.get("key") else "")
        )


def _cell(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else show.text(value)
