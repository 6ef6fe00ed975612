"""What each stage does.

Knows: workloads, by name. Does not know: how long they may take, in which order they run.
"""

from collections.abc import Callable

from engine.device_bench import ahead, kernels, peers, ready, right, sanitizer, serving, speed
from engine.device_bench.models import Scale
from engine.device_bench.rows import Rows

SMALL, MIDDLE, LARGE = "Qwen3-0.6B", "Llama-3.2-1B", "Qwen3-8B"

_Run = Callable[[Scale, Rows], None]


def _each(body: Callable[[Scale, Rows, str], None], *models: str) -> _Run:
    def run(scale: Scale, rows: Rows) -> None:
        for model in models:
            with rows.apart(f"{body.__name__}, {model}"):
                body(scale, rows, model)

    return run


def _alone(scale: Scale, rows: Rows) -> None:
    for model in (SMALL, LARGE, MIDDLE):
        with rows.apart(f"batch 1, {model}"):
            speed.batch_one(scale, rows, model)
    with rows.apart(f"batch 1, {SMALL}, deterministic"):
        speed.batch_one(scale, rows, SMALL, deterministic=True)


def _nano(scale: Scale, rows: Rows) -> None:
    with rows.apart(f"nano mix, {SMALL}"):
        speed.nano_mix(scale, rows, SMALL)
    with rows.apart(f"nano mix, {LARGE}"):
        speed.nano_mix(scale, rows, LARGE)


def _quantized(scale: Scale, rows: Rows) -> None:
    """Batch 1 where weights are what is read, the mix where keys and values are."""
    kinds = ("int8", "int4") if scale.tiny else ("fp8", "int8", "int4")  # fp8 needs a GPU
    for quant in kinds:
        with rows.apart(f"batch 1, {LARGE}, weights {quant}"):
            speed.batch_one(scale, rows, LARGE, quant=quant)
    with rows.apart(f"nano mix, {SMALL}, kv_dtype fp8"):
        speed.nano_mix(scale, rows, SMALL, kv_dtype="fp8")


def _serving(scale: Scale, rows: Rows) -> None:
    with rows.apart(f"serving, {SMALL}"):
        serving.poisson(scale, rows, SMALL, (10.0, 40.0, 100.0), scale.count(8000, 200) / 1000)
    with rows.apart(f"8k prompt into decoders, {SMALL}"):
        serving.long_prompts(scale, rows, SMALL)


STAGES: dict[str, _Run] = {
    "compiled ahead": ahead.compiled_ahead,
    "kernels against float64": kernels.against_float64,
    "logits": _each(right.against_transformers, SMALL, MIDDLE, LARGE),
    "graphs against eager": right.graphs_against_eager,
    "determinism": right.in_any_company,
    "compute-sanitizer": sanitizer.sanitized,
    "quantized quality": right.quantized_quality,
    "kernel bandwidth": kernels.bandwidth,
    "one row": kernels.vectors,
    "profile": _each(speed.profile, SMALL),
    "host share": _each(speed.host_share, SMALL),
    "ready": _each(ready.ready, SMALL),
    "first token": _each(serving.first_token, SMALL),
    "batch 1": _alone,
    "nano mix": _nano,
    "serving": _serving,
    "quantized speed": _quantized,
    "guesses": _each(speed.guesses, SMALL),
    "peer: transformers": _each(peers.transformers_generate, SMALL, LARGE),
    "peer: whole compile": _each(peers.whole_compile, SMALL, LARGE),
    "peer: transformers batching": _each(peers.transformers_batching, SMALL),
    "peer: mini-sglang": _each(peers.mini_sglang, SMALL),
}
