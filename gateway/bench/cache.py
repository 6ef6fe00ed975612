"""`nearhit bench cache`: the reuse decision over labelled data, told to people line by line and to machines at the end.

Knows how results are shown and what cannot be used. Does not know how anything is decided: that is `cache.bench`.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from cache import priors, weights
from cache.bench.arms import ARMS, run_arm
from cache.bench.data import Unreadable
from cache.bench.run import Setting, best_fixed, run_pairs, run_stream
from gateway.cli.wrong import Wrong

BASELINES = ("gptcache-default", "cosine-80", "cosine-90", "cosine-95", "guarded", "verified", "pooled")
_SHOWN = ("hit_rate", "wrong_per_request", "wrong_per_hit")
_SHOWN_PAIRS = ("served_true_rate", "served_true_near_rate", "served_false_rate")


class Wanted(Struct, frozen=True, kw_only=True):
    """One of `stream` and `pairs`, or an `arm`, with a stream or on the project's own texts.

    `baselines`: also what others do. `quiet`: only the JSON.
    """

    stream: Path | None = None
    pairs: Path | None = None
    arm: str | None = None
    baselines: bool = False
    quiet: bool = False


def run(wanted: Wanted, setting: Setting) -> int:
    """Measure, show, and end with one line of JSON. Raises Wrong for what cannot be used."""
    with tempfile.TemporaryDirectory() as scratch:
        placed = setting if setting.folder != Path() else replace(setting, folder=Path(scratch))
        try:
            if wanted.arm is not None:
                result = _arms(wanted, placed)
            else:
                result = _pairs(wanted, placed) if wanted.pairs else _stream(wanted, placed)
        except (Unreadable, LookupError, priors.Unfit, weights.Unusable) as error:
            raise Wrong(f"bench cache: {error}") from error
    sys.stdout.write(f"{msgspec.json.encode(result).decode()}\n")
    return 0


def _stream(wanted: Wanted, setting: Setting) -> dict[str, Any]:
    assert wanted.stream is not None
    result = run_stream(wanted.stream, setting)
    show = _silent if wanted.quiet else _show
    show(setting.policy, result, _SHOWN)
    if not wanted.baselines:
        return result
    others: dict[str, Any] = {}
    for name in BASELINES:
        others[name] = run_stream(wanted.stream, replace(setting, policy=name, artefact=None))
        show(name, others[name], _SHOWN)
    others["hindsight-best"] = best_fixed(wanted.stream, setting)
    show("hindsight-best", others["hindsight-best"], _SHOWN)
    return {**result, "baselines": others}


def _pairs(wanted: Wanted, setting: Setting) -> dict[str, Any]:
    assert wanted.pairs is not None
    result = run_pairs(wanted.pairs, setting)
    show = _silent if wanted.quiet else _show
    for tag, tally in result["tags"].items():
        show(tag, tally, _SHOWN_PAIRS)
    show("all", result, _SHOWN_PAIRS)
    return result


def _arms(wanted: Wanted, setting: Setting) -> dict[str, Any]:
    """One arm, or all of them."""
    told: dict[str, Any] = {}
    for name in ARMS if wanted.arm == "all" else [wanted.arm or ""]:
        ran = run_arm(name, wanted.stream, setting)
        told[name] = ran.told()
        if not wanted.quiet:
            sys.stdout.write(f"{name:8} {ran.shown.line()}\n")
            sys.stdout.flush()
    return {"arms": told} if wanted.arm == "all" else told[wanted.arm or ""]


def _silent(name: str, told: dict[str, Any], shown: tuple[str, ...]) -> None:
    """For machines."""


def _show(name: str, told: dict[str, Any], shown: tuple[str, ...]) -> None:
    parts: list[str] = []
    for label in shown:
        interval = told.get(f"{label}_95")
        reach = f" ({interval[0]:.2%} to {interval[1]:.2%})" if interval else ""
        parts.append(f"{label.replace('_', ' ')} {told[label]:.2%}{reach}")
    broken = f"  VIOLATED: {', '.join(told['violated'])}" if told.get("violated") else ""
    sys.stdout.write(f"{name:18} {'  '.join(parts)}{broken}\n")
