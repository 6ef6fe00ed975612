"""Every kernel the runs launch, compiled for sm_90 before anything is measured: on the device machine or on any other.

Knows: models of real shapes without weights, the ways a step can be put together. Does not know: results; nothing is
computed. `python -m engine.device_bench.ahead FOLDER` fills a Triton cache that may be carried to the device machine
(deploy/h200/kernels.sh); a machine with another build of Triton compiles anew, with all its processors, in the stage.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import Tensor

from engine.blocks import blocks_for
from engine.cuda import CudaOptions, assembled
from engine.cuda.frame import Frame, Sizes, sizes_of
from engine.cuda.graphs import unrecorded
from engine.cuda.runner import CudaRunner
from engine.device_bench import kernels
from engine.device_bench.models import CONFIGS, Scale, spec_of
from engine.device_bench.right import sequence
from engine.device_bench.rows import Rows
from engine.kernels import Weights
from engine.models import loader
from engine.models.decoder import Decoder
from engine.models.layout import shapes
from engine.models.linear import DenseFactory
from engine.models.spec import Spec
from engine.quant.factory import QuantFactory
from engine.quant.linears import Quantized
from engine.scheduler import Work

_META = torch.device("meta")
_SIZES = (1, 2, 3, 8, 17, 64, 256)  # rows of a decode step: with and without a cut, one row, multiples of 16 and not


class Compiled(Struct, frozen=True):
    """What one part came to. `shared`: the most bytes of shared memory a program takes; `fault`: why it failed."""

    name: str
    kernels: int = 0
    launches: int = 0
    fresh: int = 0
    shared: int = 0
    fault: str | None = None


class _Shapes(Mapping[str, Tensor]):
    """Weights without contents."""

    def __init__(self, spec: Spec) -> None:
        self._shapes = shapes(spec)

    def __getitem__(self, name: str) -> Tensor:
        return torch.empty(self._shapes[name], device=_META, dtype=torch.bfloat16)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


class _Unjudged(QuantFactory):
    """Weights that hold nothing cannot be compared with anything."""

    def _judged(self, name: str, linear: Quantized) -> Quantized:  # noqa: ARG002  (as declared)
        return linear


def decoder_of(model: str, quant: str = "none", layers: int = 1) -> Decoder:
    """`model` with so many layers, its real widths, and no contents."""
    spec = spec_of(Scale(), model)
    spec = replace(spec, layers=layers, ropes=spec.ropes[:layers], windows=spec.windows[:layers])
    dense = DenseFactory(torch.bfloat16, _META)
    return loader.build(spec, _Shapes(spec), dense if quant == "none" else _Unjudged(quant, dense))


def steps(model: str, quant: str = "none", kv_dtype: str = "bfloat16", *, deterministic: bool = False) -> None:
    """Decode steps of several sizes, prompts, and both at once, as the runner would compute them."""
    from engine.kernels import fast

    options = CudaOptions(kv_dtype=kv_dtype, deterministic=deterministic)
    runner = assembled(decoder_of(model, quant), options, fast, 1024, unrecorded)
    for size in _SIZES:
        _step(runner, Frame(Sizes(size, size, size), _META, runner.cut(size)))
    for plan in ([_work(0, 1000, 0)], [_work(0, 1, 0)], [_work(0, 40, 30), _work(1, 300, 0)]):
        cut = runner.cut(sum(work.begin >= work.sequence.prompt for work in plan))
        _step(runner, Frame(sizes_of(plan, cut), _META, cut))


def _work(key: int, length: int, computed: int) -> Work:
    one = sequence(key, [1] * length, list(range(1, blocks_for(length) + 1)))
    one.computed = computed
    return Work(one, length - computed)


def _step(runner: CudaRunner, frame: Frame) -> None:
    runner.forward.kernels.sample(runner.forward(frame.inputs), frame.inputs.noise)


def _by_themselves() -> None:
    """What the stages about kernels launch."""
    from engine.kernels import fast

    for scale in (Scale(device="meta"), Scale(device="meta", tiny=True)):
        for check in kernels.checks(scale):
            check.ours()
        fast.sample(*kernels.drawn_from(scale, 7, 5000))
        fast.sample(*kernels.drawn_from(scale, 64, 151_936))
    for count, width in kernels.SHAPES:
        x = torch.empty(1, width, device=_META, dtype=torch.bfloat16)
        fast.vector(x, Weights(torch.empty(count, width, device=_META, dtype=torch.bfloat16)), None, None)


def _tasks() -> dict[str, Callable[[], None]]:
    tasks: dict[str, Callable[[], None]] = {"kernels by themselves": _by_themselves}
    for model in CONFIGS:
        tasks[model] = partial(steps, model)
        tasks[f"{model}, deterministic"] = partial(steps, model, deterministic=True)
    for kv_dtype in ("fp8", "int8"):
        tasks[f"Qwen3-0.6B, pages {kv_dtype}"] = partial(steps, "Qwen3-0.6B", kv_dtype=kv_dtype)
    for quant in ("int8", "fp8"):
        tasks[f"Qwen3-8B, weights {quant}"] = partial(steps, "Qwen3-8B", quant=quant)
    return tasks


def compile_task(name: str) -> Compiled:
    """One part, in this process."""
    from engine.kernels.ahead import no_device

    before = _entries()
    with no_device() as bench:
        try:
            _tasks()[name]()
        except Exception as error:  # noqa: BLE001  (compilers raise anything; the others go on)
            return Compiled(name, fault=f"{type(error).__name__}: {' '.join(str(error).split())}"[:300])
    found = Counter(launch.key for launch in bench.launches)
    most = max((launch.shared for launch in bench.launches), default=0)
    return Compiled(name, len(found), len(bench.launches), _entries() - before, most)


def _entries() -> int:
    folder = os.environ.get("TRITON_CACHE_DIR")  # noqa: TID251  (Triton's own)
    return sum(1 for _ in Path(folder).iterdir()) if folder and Path(folder).is_dir() else 0


def compiled_ahead(scale: Scale, rows: Rows) -> None:
    """All of it, on every processor at once. `fresh`: variants that were not in the cache that was carried along."""
    names = list(_tasks())[: scale.count(100, 0)] or ["Qwen3-0.6B"]
    began, before = time.monotonic(), _entries()
    with ProcessPoolExecutor(min(len(names), os.cpu_count() or 1), get_context("spawn")) as pool:
        for told in as_completed([pool.submit(compile_task, name) for name in names]):
            one = told.result()
            rows.add(
                f"compiled ahead: {one.name}", kernels=one.kernels, launches=one.launches, most_shared_bytes=one.shared,
                **({"fault": one.fault} if one.fault else {}),
            )  # fmt: skip
    after = _entries()
    rows.add("compiled ahead", seconds=round(time.monotonic() - began, 1), carried=before, fresh=after - before)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    os.environ["TRITON_CACHE_DIR"] = str(Path(sys.argv[1]).resolve())  # noqa: TID251  (of this and its children)
    compiled_ahead(Scale(), Rows(Path(sys.argv[1]).resolve().parent / "compiled-ahead.jsonl", "compiled ahead"))
