"""How long from a model's folder on disk to its first token, in a process that has just begun.

Knows: checkpoints, processes. Does not know: workloads. Twice: with no compiled kernels at hand, and with them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from safetensors.torch import save_file

from engine.api import SamplingParams
from engine.demo.facts import FOLDER
from engine.device_bench.models import RandomWeights, Scale, make_core, spec_of
from engine.device_bench.right import submit
from engine.device_bench.rows import Rows
from engine.device_bench.speed import drain
from engine.locate import locate
from engine.models import loader

_BEFORE, _NOTHING = "kernels compiled before", "nothing compiled yet"


def ready(scale: Scale, rows: Rows, model: str) -> None:
    """`wanted_s_below` holds where kernels were compiled before: that happens once per machine."""
    with tempfile.TemporaryDirectory() as name:
        folder, compiled = Path(name) / "model", Path(name) / "kernels"
        folder.mkdir()
        weights = RandomWeights(spec_of(scale, model), scale.device)
        save_file({key: weights[key].cpu() for key in weights}, folder / "model.safetensors")
        (folder / "config.json").write_bytes(msgspec.json.encode(scale.config(model)))
        for given in ("tokenizer.json", "tokenizer_config.json"):  # any will do: the core takes ids
            shutil.copy(FOLDER / given, folder / given)
        command = [sys.executable, "-m", "engine.device_bench", "first", str(folder)]
        command += ["--tiny"] if scale.tiny else []
        # What is wanted first, with the kernels that this run compiled; then once with none at hand.
        for what, cache in ((_BEFORE, {}), (_NOTHING, {"TRITON_CACHE_DIR": str(compiled)})):
            with rows.apart(f"ready, {model}, {what}"):
                _started(rows, f"ready, {model}, {what}", command, cache, 5 if what == _BEFORE else None)


def _started(rows: Rows, name: str, command: list[str], cache: dict[str, str], wanted_s: float | None) -> None:
    began = time.perf_counter()
    environment = os.environ | cache  # noqa: TID251  (of the child)
    told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603  (ours)
    seconds = time.perf_counter() - began
    rows.add(
        name, process_s=seconds, loaded_to_first_token_s=float(told.stdout.split()[-1]),
        **({} if wanted_s is None else {"wanted_s_below": wanted_s}),
        note="process_s includes starting Python and importing torch",
    )  # fmt: skip


def first(scale: Scale, folder: str) -> None:
    """The child: load, build, answer one token, print the seconds since its imports ended."""
    began = time.perf_counter()
    decoder = loader.load(locate(folder), "bfloat16", scale.context, device=scale.device)
    core = make_core(scale, decoder)
    core.submit("first", submit(list(range(16)), SamplingParams(max_tokens=1)))
    drain(core)
    sys.stdout.write(f"{time.perf_counter() - began:.3f}\n")
