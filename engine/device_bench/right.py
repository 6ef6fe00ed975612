"""Is what the GPU computes right? Against float64, against transformers, graphs against eager, batch against batch.

Knows: references. Does not know: speed.
"""

import random
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from engine.api import SamplingParams
from engine.blocks import blocks_for
from engine.core import EngineCore
from engine.cuda import CudaOptions, build
from engine.cuda.frame import Frame, sizes_of
from engine.cuda.runner import CudaRunner
from engine.device_bench.models import Scale, forget, make_core, make_decoder
from engine.device_bench.rows import Rows
from engine.frames import Submit
from engine.models.decoder import Decoder
from engine.scheduler import Work
from engine.sequence import Sequence

MARGIN = 0.1  # between the two likeliest tokens; below it bfloat16 may choose either
_DEVIATION = 1.5  # of logits
_INITIAL = 0.02  # deviation of a fresh head's weights
_ROUNDING = 2**-9  # of a bfloat16


def relative(result: Tensor, truth: Tensor) -> float:
    """||result - truth|| / ||truth||."""
    return float((result.double() - truth.double()).norm() / truth.double().norm())


def sequence(key: int, tokens: list[int], blocks: list[int], prompt: int | None = None) -> Sequence:
    """As the scheduler would hand it over."""
    return Sequence(
        key=key, tokens=tokens, prompt=len(tokens) if prompt is None else prompt,
        sampling=SamplingParams(max_tokens=1, temperature=0.0), seed=0, eos=frozenset(), salt="", priority=0,
        arrival=key, submitted=0.0, blocks=blocks,
    )  # fmt: skip


def logits_of(runner: CudaRunner, tokens: list[int], blocks: list[int], prompt: int, chunk: int = 1 << 30) -> Tensor:
    """Logits [T, V] of every row: the prompt in chunks, then token by token as if it had been generated."""
    rows: list[Tensor] = []
    at = 0
    while at < len(tokens):
        count = min(chunk, prompt - at) if at < prompt else 1
        work = _AllRows(sequence(0, tokens[: at + count], blocks, min(prompt, at + count)), count)
        work.sequence.computed = at
        rows.append(logits_of_step(runner, [work]))
        at += count
    return torch.cat(rows)


def logits_of_step(runner: CudaRunner, plan: list[Any]) -> Tensor:
    """All wanted logits of one step, without sampling."""
    cut = runner.cut(len(plan))
    frame = Frame(sizes_of(plan, cut), runner.device, cut)
    frame.fill(plan, [], runner.table.update(plan))
    return runner.forward(frame.inputs).float()


class _AllRows(Work):
    """Work whose every row's logits are wanted."""

    @property
    def wanted(self) -> int:
        return self.tokens


def against_transformers(scale: Scale, rows: Rows, model: str) -> None:
    """The same random weights in both, bfloat16, and transformers once more in float32 as the judge of both."""
    transformers: Any = import_module("transformers")
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**scale.config(model))
    with torch.device(scale.device):
        theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    # Logits with a deviation of 1.5: fresh weights give flatter ones, all within rounding of each other, and where they
    # are larger, neighbours that differ by MARGIN are one number in bfloat16.
    theirs.model.norm.weight.data.mul_(_DEVIATION / (_INITIAL * config.hidden_size**0.5))
    decoder = make_decoder(scale, model, theirs.state_dict())
    runner = _runner(scale, decoder)
    source = random.Random(0)  # noqa: S311  (a workload)
    tokens = [source.randrange(config.vocab_size) for _ in range(scale.count(512, 40))]
    blocks = list(range(1, blocks_for(len(tokens)) + 1))
    ours = logits_of(runner, tokens, blocks, prompt=len(tokens) - scale.count(64, 8), chunk=scale.count(200, 16))
    with torch.inference_mode():
        ids = torch.tensor([tokens], device=scale.device)
        other = theirs(ids).logits[0].float()
        truth = theirs.float()(ids).logits[0]
    rows.add(f"{model}: bf16 logits against transformers", **agreement(ours, other, truth))


def agreement(ours: Tensor, other: Tensor, truth: Tensor) -> dict[str, Any]:
    """Two bfloat16 computations against one in float32 [T, V].

    Wanted: the same likeliest token wherever the margin is clear; at most what the reference itself does not reach.
    """
    top = truth.topk(2).values
    margin = top[:, 0] - top[:, 1]
    clear = margin > MARGIN
    mine, theirs = (one.argmax(-1) == truth.argmax(-1) for one in (ours, other))
    wrong, theirs_wrong = clear & ~mine, int((clear & ~theirs).sum())
    error, theirs_error = relative(ours, truth), relative(other, truth)
    kept = int(wrong.sum()) <= theirs_wrong and error < 2 * theirs_error + _ROUNDING
    return {
        "ok": kept and bool(ours.isfinite().all()), "rows": len(truth),
        "relative_error_ours": error, "relative_error_transformers": theirs_error,
        "relative_error_between": relative(ours, other),
        "rows_with_clear_margin": int(clear.sum()), "clear_rows_not_agreed": int(wrong.sum()),
        "clear_rows_not_agreed_transformers": theirs_wrong,
        "largest_margin_not_agreed": float(margin[wrong].max()) if bool(wrong.any()) else None,
        "top1_agreement_all": float(mine.float().mean()),
        "transformers_top1_agreement_all": float(theirs.float().mean()),
    }  # fmt: skip


def _runner(scale: Scale, decoder: Decoder, **options: Any) -> CudaRunner:
    given: dict[str, Any] = {"sequences": scale.count(64, 20), "step_tokens": 1024, "blocks": scale.count(2048, 128)}
    return build(decoder, CudaOptions(**{**given, **options}))


def graphs_against_eager(scale: Scale, rows: Rows) -> None:
    """The same requests with recorded steps and without: equal tokens, in every size up to the one recorded."""
    decoder = make_decoder(scale, "Qwen3-0.6B")
    for size in (1, 3, 17):  # 3 and 17 run as 4 and 24, with and without a graph
        told = {
            graphs: _answers(make_core(scale, decoder, graphs=graphs, blocks=scale.count(2048, 128)), scale, size)
            for graphs in (True, False)
        }
        same = sum(told[True][key] == told[False][key] for key in told[True])
        rows.add(f"graphs against eager, {size} at once", requests=size, equal=same, ok=same == size)
        forget()


def in_any_company(scale: Scale, rows: Rows) -> None:
    """Deterministic mode: one request's tokens alone, among 3, among 17; greedy and drawn. Then without the mode."""
    decoder = make_decoder(scale, "Qwen3-0.6B")
    for deterministic in (True, False):
        core = make_core(scale, decoder, deterministic=deterministic, blocks=scale.count(2048, 128))
        told = [_answers(core, scale, size) for size in (1, 3, 17)]
        alone = told[0][0]
        equal = [answers[0] == alone for answers in told]
        rows.add(
            f"same tokens in batches of 1, 3, 17, deterministic={deterministic}",
            equal=equal, ok=all(equal) or not deterministic,
        )  # fmt: skip
        del core
        forget()


def _answers(core: EngineCore, scale: Scale, size: int) -> dict[int, list[int]]:
    """Tokens of request 0 and `size - 1` others."""
    vocabulary = core.info().vocabulary
    for key in range(size):
        source = random.Random(key)  # noqa: S311  (a workload)
        tokens = [source.randrange(vocabulary) for _ in range(scale.count(100, 20) + 7 * key)]
        sampling = SamplingParams(max_tokens=scale.count(64, 6), temperature=0.8 if key % 2 == 0 else 0.0)
        core.submit(key, submit(tokens, sampling, seed=key))
    told: dict[int, list[int]] = {key: [] for key in range(size)}
    while core.busy:
        for ended in core.step():
            told[ended.key].extend(ended.output.tokens)  # pyright: ignore[reportArgumentType]  (keys are ours)
    core.pool.forget(range(1, core.pool.count + 1))  # so that the next batch computes its prompts again
    return told


def submit(tokens: list[int], sampling: SamplingParams, seed: int = 0) -> Submit:
    return Submit(
        handle=0, tokens=tokens, sampling=sampling, seed=seed, eos=[], salt="", priority=0, deadline_ms=None
    )  # fmt: skip


def quantized_quality(scale: Scale, rows: Rows) -> None:
    """What fewer bits cost: the trained demo model's loss on answers to questions that it was not trained with."""
    from engine.device_bench.quality import demo_loss

    base = None
    for quant, kv_dtype in (("none", "bfloat16"), ("int8", "bfloat16"), ("fp8", "bfloat16"), ("int4", "bfloat16"),
                            ("none", "fp8"), ("none", "int8")):  # fmt: skip
        with rows.apart(f"demo model, weights {quant}, KV {kv_dtype}"):
            if scale.device == "cpu" and quant == "fp8":
                rows.add(f"demo model, weights {quant}, KV {kv_dtype}", left_out="fp8 weights need a GPU")
                continue
            loss, notes = demo_loss(scale, quant, kv_dtype)
            base = loss if base is None else base
            told = {"loss_nats": loss, "perplexity_change": _change(loss, base), "notes": notes}
            rows.add(f"demo model, weights {quant}, KV {kv_dtype}", **told)


def _change(loss: float, base: float) -> float:
    return float(torch.tensor(loss - base).exp()) - 1
