"""The same work done by others, in the same run on the same GPU, each row with its handicaps.

Knows: transformers, a whole-model compile in the manner of gpt-fast, mini-sglang where it was carried along. Does not
know: our engine. A peer that does not run is reported as such; it is never replaced by a weakened one.
"""

import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from engine.device_bench.models import Scale, make_decoder, spec_of
from engine.device_bench.roof import Ceilings, batch_seconds, decode_seconds, measured
from engine.device_bench.rows import Rows
from engine.device_bench.speed import nano_sizes
from engine.device_bench.whole import WholeModel

MINI_SGLANG = Path(".peers/mini-sglang/python")


def _model(scale: Scale, model: str) -> Any:
    transformers: Any = import_module("transformers")
    config = transformers.AutoConfig.for_model(**scale.config(model))
    with torch.device(scale.device):
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
        return made.eval()


class _Clock:
    """When each token came: `generate` hands it to the host first. The prompt comes before the tokens."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:  # noqa: ARG002  (transformers' form)
        self.times.append(time.perf_counter())

    def end(self) -> None: ...

    @property
    def rate(self) -> float:
        """Tokens per second from the first to the last."""
        _prompt, first, *_, last = self.times
        return (len(self.times) - 2) / (last - first)


def transformers_generate(scale: Scale, rows: Rows, model: str) -> None:
    """`generate`, batch 1, greedy, 128 in: with its default cache, then with a static one and torch.compile."""
    ceilings, made = measured(scale.device), _model(scale, model)
    ids = torch.randint(1, 500, (1, scale.count(128, 8)), device=scale.device)
    out = scale.count(200, 4)
    ways: list[tuple[str, dict[str, Any], str]] = [("dynamic cache", {}, "no graphs, no compile: its default")]
    if not scale.tiny:
        ways.append(("static cache, compiled", {"cache_implementation": "static"}, "compile time is not counted"))
    for name, options, handicap in ways:
        told = f"peer: transformers generate, {name}, {model}, batch 1"
        with rows.apart(told):
            rates = [_rate(made, ids, out, options) for _ in range(3)][1:]  # the first compiles
            rate = statistics.median(rates)
            floor = decode_seconds(spec_of(scale, model), ceilings, [ids.shape[1] + out // 2])
            rows.add(
                told, tokens_per_s=rate, least=min(rates), most=max(rates), fraction=rate * floor, handicap=handicap
            )


def _rate(made: Any, ids: torch.Tensor, count: int, options: dict[str, Any]) -> float:
    clock = _Clock()
    made.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, min_new_tokens=count,
        pad_token_id=0, streamer=clock, **options,
    )  # fmt: skip
    return clock.rate


def transformers_batching(scale: Scale, rows: Rows, model: str) -> None:
    """Continuous batching on a quarter of the nano mix (all of it would take minutes)."""
    transformers: Any = import_module("transformers")
    ceilings, made = measured(scale.device), _model(scale, model)
    prompts, _ = nano_sizes(scale)
    share = scale.count(64, 4)
    out = scale.count(256, 4)
    config = transformers.GenerationConfig(max_new_tokens=out, do_sample=False, eos_token_id=-1, pad_token_id=0)
    batching = getattr(transformers, "ContinuousBatchingConfig", None)
    small = batching(num_blocks=64, max_batch_tokens=128) if batching and scale.tiny else None
    options = {} if small is None else {"continuous_batching_config": small}
    began = time.perf_counter()
    told = made.generate_batch(inputs=prompts[:share], generation_config=config, progress_bar=False, **options)
    seconds = time.perf_counter() - began
    tokens = sum(len(one.generated_tokens) for one in told.values())
    floor = batch_seconds(spec_of(scale, model), ceilings, [(len(prompt), out) for prompt in prompts[:share]])
    rows.add(
        f"peer: transformers continuous batching, {model}", tokens_per_s=tokens / seconds, requests=share,
        tokens=tokens, fraction=floor / seconds,
        handicap="without flash-attn it takes paged|sdpa with a full mask: no decode path, no graphs, no"
        " overlap; its start is included",
    )  # fmt: skip


def whole_compile(scale: Scale, rows: Rows, model: str) -> None:
    """gpt-fast's way: a static cache, one compiled function per token, CUDA graphs by the compiler; our weights."""
    length, out = scale.count(128, 8), scale.count(512, 6)
    ceilings = measured(scale.device)
    whole = WholeModel(make_decoder(scale, model), length + out)
    # A tiny run is on a processor, whose compiler may be missing: what is compiled is run as it is.
    run = whole.step if scale.tiny else torch.compile(whole.step, mode="reduce-overhead", fullgraph=True)
    warm = length + out // 2
    with torch.inference_mode():
        token = torch.tensor([1], device=scale.device)
        positions = torch.arange(length + out, device=scale.device)[:, None]
        for at in range(length + out):
            if at == warm:
                began = _now(scale)
            token = run(token, positions[at].clone()).clone()  # a clone is aligned as the first was
        seconds = _now(scale) - began  # pyright: ignore[reportPossiblyUnboundVariable]  (`warm` lies in the range)
    rate = (length + out - warm) / seconds
    floor = decode_seconds(spec_of(scale, model), ceilings, [warm + out // 4])
    rows.add(
        f"peer: whole-model compile (gpt-fast's way), {model}, batch 1", tokens_per_s=rate, fraction=rate * floor,
        handicap="compile time is not counted; it serves one request at a time and attends to its whole cache",
    )  # fmt: skip


def _now(scale: Scale) -> float:
    if scale.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def mini_sglang(scale: Scale, rows: Rows, model: str) -> None:
    """The nano mix through mini-sglang with flashinfer, if both were carried along (deploy/h200/README.md)."""
    if not MINI_SGLANG.is_dir():
        rows.add(f"peer: mini-sglang, {model}", left_out=f"{MINI_SGLANG} was not carried along")
        return
    sys.path.insert(0, str(MINI_SGLANG))
    folder = _folder_for(scale.config(model))
    from minisgl.core import SamplingParams  # pyright: ignore[reportMissingImports]  (carried, not a dependency)
    from minisgl.llm import LLM  # pyright: ignore[reportMissingImports]  (the same)

    engine = LLM(
        str(folder), use_dummy_weight=True, attention_backend="fi", page_size=256, max_seq_len_override=4096,
        max_extend_tokens=16384, cuda_graph_max_bs=256,
    )  # fmt: skip
    prompts, outs = nano_sizes(scale)
    sizes = [(len(prompt), out) for prompt, out in zip(prompts, outs, strict=True)]
    floor = batch_seconds(spec_of(scale, model), Ceilings(), sizes)
    engine.generate([prompts[0]], SamplingParams(temperature=0.1, max_tokens=8))
    began = time.perf_counter()
    engine.generate(prompts, [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=out) for out in outs])
    seconds = time.perf_counter() - began
    rows.add(
        f"peer: mini-sglang, {model}, nano mix", tokens_per_s=sum(outs) / seconds, fraction=floor / seconds,
        handicap="made for torch below 2.10 and transformers below 4.58: run outside of what it pins",
    )  # fmt: skip


def _folder_for(config: dict[str, Any]) -> Path:
    """A folder with a config and any tokenizer: weights are dummies."""
    import shutil
    import tempfile

    import msgspec

    from engine.demo.facts import FOLDER

    folder = Path(tempfile.mkdtemp())
    known = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
    told = {**config, "architectures": [known[config["model_type"]]]}
    (folder / "config.json").write_bytes(msgspec.json.encode(told))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FOLDER / name, folder / name)
    return folder
