"""From rows to what is kept: one dated JSON file and one page a person can read.

Knows: rows, gates. Does not know: how anything was measured, torch: pages are written on any machine.
"""

import json
from pathlib import Path
from typing import Any

from engine.device_bench.rows import read

_LIMITS = (("wanted_ms_below", "ttft_ms"), ("wanted_ratio_below", "ratio"), ("wanted_s_below", "process_s"))
_SILENT = ("stage", "name", "ok")
_ABOUT = ("run", "machine")  # stages that say where the others ran


def write(file: Path, into: Path) -> Path:
    """`into`/device-RUN-DATE.json and .md of the rows in `file`; the path of the latter."""
    rows = read(file)
    about = next((row for row in rows if row["stage"] == "run"), {})
    kept: dict[str, Any] = {name: about.get(name) for name in ("run", "date", "command", "environment")}
    kept["run"] = kept["run"] or file.stem
    kept["rows"] = [row for row in rows if row["stage"] != "run"]
    stem = f"device-{kept['run']}-{kept['date'] or 'unknown'}"
    (into / f"{stem}.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    page = into / f"{stem}.md"
    page.write_text("\n".join(_page(kept)) + "\n", encoding="utf-8")
    return page


def keep(folder: Path, into: Path) -> list[Path]:
    """Pages of every run whose rows lie in `folder`, those of a run that was cut short included."""
    return [write(file, into) for file in sorted(folder.rglob("*.jsonl")) if file.stem in ("right", "fast", "dry")]


def _page(kept: dict[str, Any]) -> list[str]:
    rows: list[dict[str, Any]] = kept["rows"]
    lines = [f"# Device run `{kept['run']}`, {kept['date']}", "", f"`{kept['command']}`", ""]
    lines += [", ".join(f"{name} {value}" for name, value in (kept["environment"] or {}).items() if value), ""]
    lines += _gates(rows) + _faults(rows)
    for stage in dict.fromkeys(row["stage"] for row in rows):
        mine = [row for row in rows if row["stage"] == stage]
        end = next((row for row in mine if row["name"] == "stage"), None)
        lines += [f"## {stage}", ""]
        if end is not None:
            lines += [f"{end['seconds']} s" + (f", **failed**: {end['fault']}" if end["fault"] else ""), ""]
        elif stage not in _ABOUT and all(row["name"] != "left out" for row in mine):
            lines += ["**Cut short**: the run ended within it.", ""]
        lines += [f"* {_verdict(row)}{row['name']}: {_figures(row)}" for row in mine if row["name"] != "stage"]
        lines.append("")
    return lines


def _gates(rows: list[dict[str, Any]]) -> list[str]:
    """What was wanted of this run, in one table."""
    told = [(row, _gate(row)) for row in rows]
    lines = [
        f"| {row['name']} | {_short(value)} | {wanted} | {row.get('hoped_for', '')} | {_verdict(row).strip(' ·')} |"
        for row, gate in told
        if gate is not None
        for value, wanted in (gate,)
    ]
    return ["| gate | measured | wanted | hoped for | |", "|---|--:|--:|--:|---|", *lines, ""] if lines else []


def _faults(rows: list[dict[str, Any]]) -> list[str]:
    bad = [row for row in rows if row.get("ok") is False or row.get("fault") or row["name"] == "left out"]
    if not bad:
        return []
    return ["**Wrong or missing:**", *(f"* {row['stage']}: {row['name']}: {_figures(row)}" for row in bad), ""]


def _gate(row: dict[str, Any]) -> tuple[Any, Any] | None:
    """What was measured and what was wanted of it."""
    if "wanted" in row:
        return row["tokens_per_s"], row["wanted"]
    return next(((row[value], f"< {row[limit]}") for limit, value in _LIMITS if row.get(value) and limit in row), None)


def _figures(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in row.items() if name not in _SILENT)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _verdict(row: dict[str, Any]) -> str:
    """Whether a row holds what was wanted of it; nothing for rows of which nothing was wanted."""
    if "ok" in row:
        return "" if row["ok"] else "**wrong** · "
    if row.get("fault"):
        return "**failed** · "
    if "wanted" in row:
        return "kept · " if row["tokens_per_s"] >= row["wanted"] else "**missed** · "
    for limit, value in _LIMITS:
        if limit in row and row.get(value) is not None:
            return "kept · " if row[value] < row[limit] else "**missed** · "
    return ""
