"""What a run stands on: the machine, its programs, its packages, and what is missing.

Knows: names of packages and programs. Does not know: what they are for. Needs nothing but Python, and runs as a file by
itself (`python3 engine/device_bench/machine.py FOLDER RUN`): it is what tells why nothing else runs.
"""

import importlib
import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

NEEDED = ("msgspec", "numpy", "torch", "triton", "tokenizers", "safetensors", "transformers", "jinja2", "llguidance")
ASKED = ("psutil", "flashinfer", "tvm_ffi", "zmq", "accelerate")  # some stages only
_PACKAGES = (*NEEDED, "psutil", "flashinfer-python", "apache-tvm-ffi", "pyzmq", "accelerate")
_PROGRAMS = ("nvcc", "ninja", "gcc", "compute-sanitizer")


def environment() -> dict[str, Any]:
    """What figures depend on. Imports nothing, so that it costs nothing and cannot fail."""
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    found["gpu"] = _told(
        "nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"
    )
    found["nvcc"] = _told("nvcc", "--version")
    found |= {name: shutil.which(name) is not None for name in _PROGRAMS if name != "nvcc"}
    found |= {"cores": os.cpu_count(), "free_disk_gib": round(shutil.disk_usage("/tmp").free / 2**30)}  # noqa: S108  (where results go)
    return found


def _told(*command: str) -> str | None:
    """The last line of what a program says, None where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout  # noqa: S603  (ours)
    except (subprocess.SubprocessError, OSError):
        return None
    return (told.strip().splitlines() or [""])[-1][:200]


def missing() -> dict[str, str]:
    """Packages that cannot be imported, with the reason; and the GPU, if torch sees none."""
    faults: dict[str, str] = {}
    for name in (*NEEDED, *ASKED):
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  (a broken package raises anything)
            faults[name] = f"{type(error).__name__}: {error}"[:300]
    if "torch" not in faults:
        import torch

        try:
            torch.zeros(1, device="cuda").add_(1).item()
        except Exception as error:  # noqa: BLE001  (the same)
            faults["gpu"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
    return faults


def main() -> int:
    """Write the first row of a run: 1 when it cannot go on."""
    out, run = Path(sys.argv[1]), sys.argv[2]
    out.mkdir(parents=True, exist_ok=True)
    faults = missing()
    row = {"stage": "machine", "name": "packages and programs", "missing": faults, **environment()}
    with (out / f"{run}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    sys.stdout.write(json.dumps(row, indent=1) + "\n")
    return 1 if any(name in faults for name in (*NEEDED, "gpu")) else 0


if __name__ == "__main__":
    sys.exit(main())
