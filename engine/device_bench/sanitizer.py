"""Every kernel under NVIDIA's compute-sanitizer: bad accesses, then races in shared memory.

Knows: that program, what it says at its end. Does not know: whether results are right (`kernels` does).
"""

import os
import re
import shutil
import subprocess
import sys
import time

import torch

from engine.cuda import kernels_for
from engine.device_bench.kernels import checks, drawn_from
from engine.device_bench.models import Scale
from engine.device_bench.rows import Rows

_CHECKS = (("memcheck", 0.55), ("racecheck", 0.95))  # with the share of the stage's time by which each must have ended
_FOUND = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)")
SECONDS = 70.0


def sanitized(scale: Scale, rows: Rows) -> None:
    """On small, ragged shapes, launches only: references under the sanitizer would take minutes."""
    tool = shutil.which("compute-sanitizer") or _beside_nvcc()
    if tool is None:
        rows.add("compute-sanitizer", left_out="it is not on this machine")
        return
    began = time.monotonic()
    for check, share in _CHECKS:
        with rows.apart(f"compute-sanitizer {check}"):
            left = SECONDS * share - (time.monotonic() - began)
            rows.add(f"compute-sanitizer {check}", **_under(tool, check, max(left, 5.0), scale))


def _beside_nvcc() -> str | None:
    path = "/usr/local/cuda/bin/compute-sanitizer"
    return path if os.access(path, os.X_OK) else None


def _under(tool: str, check: str, seconds: float, scale: Scale) -> dict[str, object]:
    """What the tool found. Raises TimeoutExpired."""
    code = "from engine.device_bench.sanitizer import launch_all; launch_all()"
    command = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, "-c", code]
    # Every allocation of its own, so that a read beyond one is seen.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}  # noqa: TID251  (of the child)
    if scale.tiny:
        environment |= {"NEARHIT_SANE_DEVICE": scale.device}
    told = subprocess.run(  # noqa: S603  (ours)
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=seconds,
    )  # fmt: skip
    return verdict(told.stdout, told.returncode)


def verdict(told: str, code: int) -> dict[str, object]:
    """Clean, not clean, or not looked at: the tool refuses some machines, and then says nothing of our kernels."""
    found = _FOUND.findall(told)
    launched = re.search(r"launched (\d+)", told)
    lines = [line for line in told.splitlines() if line.strip()]
    if not found or launched is None:
        return {"left_out": f"it could not look (exit code {code})", "said": lines[-4:]}
    errors = int(found[-1])
    said = [] if errors == 0 else [line for line in lines if line.startswith("=========")][:8]
    return {"found": errors, "launches": int(launched[1]), "ok": errors == 0, "said": said}


def launch_all() -> None:
    """The child: every kernel once, no references."""
    device = os.environ.get("NEARHIT_SANE_DEVICE", "cuda")  # noqa: TID251  (from the parent above)
    scale = Scale(tiny=True, device=device)
    launched = 0
    for check in checks(scale):
        check.ours()
        launched += 1
    kernels_for(torch.device(device)).sample(*drawn_from(scale, 7, 5000))
    if device == "cuda":
        torch.cuda.synchronize()
    sys.stdout.write(f"launched {launched + 1}\n")
