"""From rows to what is kept: one dated JSON file and one page a person can read.

Knows: rows, gates. Does not know: how anything was measured.
"""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec
import torch

_PACKAGES = ("torch", "triton", "transformers", "flashinfer-python", "msgspec", "llguidance")


_LIMITS = (("wanted_ms_below", "ttft_ms"), ("wanted_ratio_below", "ratio"), ("wanted_s_below", "process_s"))


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
        found["memory_gib"] = round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1)
    return found


def write(out: Path, run: str, date: str, command: str, rows: list[dict[str, Any]]) -> Path:
    """`out`/device-RUN-DATE.json and .md; the path of the latter."""
    kept = {"run": run, "date": date, "command": command, "environment": environment(), "rows": rows}
    (out / f"device-{run}-{date}.json").write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1))
    page = out / f"device-{run}-{date}.md"
    page.write_text("\n".join(_page(kept)) + "\n", encoding="utf-8")
    return page


def _page(kept: dict[str, Any]) -> list[str]:
    lines = [f"# Device run `{kept['run']}`, {kept['date']}", "", f"`{kept['command']}`", ""]
    lines += [", ".join(f"{name} {value}" for name, value in kept["environment"].items() if value), ""]
    rows: list[dict[str, Any]] = kept["rows"]
    for stage in dict.fromkeys(row["stage"] for row in rows):
        mine = [row for row in rows if row["stage"] == stage]
        end = next((row for row in mine if row["name"] == "stage"), None)
        lines += [f"## {stage}", ""]
        if end is not None:
            lines += [f"{end['seconds']} s" + (f", **failed**: {end['fault']}" if end["fault"] else ""), ""]
        for row in mine:
            if row["name"] != "stage":
                lines.append(f"* {_verdict(row)}{row['name']}: {_figures(row)}")
        lines.append("")
    return lines


def _figures(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in row.items() if name not in ("stage", "name", "ok"))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _verdict(row: dict[str, Any]) -> str:
    """Whether a row holds what was wanted of it; nothing for rows of which nothing was wanted."""
    if "ok" in row:
        return "" if row["ok"] else "**wrong** · "
    if "wanted" in row:
        return "kept · " if row["tokens_per_s"] >= row["wanted"] else "**missed** · "
    for limit, value in _LIMITS:
        if limit in row and row.get(value) is not None:
            return "kept · " if row[value] < row[limit] else "**missed** · "
    return ""
