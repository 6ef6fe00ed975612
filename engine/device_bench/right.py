"""Is what the GPU computes right? Against float64, against transformers, graphs against eager, batch against batch.

Knows: references. Does not know: speed.
"""

import random
from typing import Any

import torch
from torch import Tensor

from engine.api import EngineError, SamplingParams
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
    import transformers

    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**scale.config(model))
    with torch.device(scale.device):
        theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    # Fresh weights give flat logits, all within rounding of each other: an eightfold final norm tells them apart.
    theirs.model.norm.weight.data.mul_(8)
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
    top = truth.topk(2).values
    clear = top[:, 0] - top[:, 1] > MARGIN
    agree = ours.argmax(-1) == truth.argmax(-1)
    rows.add(
        f"{model}: bf16 logits against transformers",
        rows=len(tokens), relative_error_ours=relative(ours, truth), relative_error_transformers=relative(other, truth),
        relative_error_between=relative(ours, other), rows_with_clear_margin=int(clear.sum()),
        top1_agreement_clear=float(agree[clear].float().mean()) if bool(clear.any()) else None,
        top1_agreement_all=float(agree.float().mean()),
        transformers_top1_agreement_all=float((other.argmax(-1) == truth.argmax(-1)).float().mean()),
    )  # fmt: skip


def _runner(scale: Scale, decoder: Decoder, **options: Any) -> CudaRunner:
    given: dict[str, Any] = {"sequences": scale.count(64, 20), "step_tokens": 1024, "blocks": scale.count(2048, 128)}
    return build(decoder, CudaOptions(**{**given, **options}))


def graphs_against_eager(scale: Scale, rows: Rows) -> None:
    """The same requests with recorded steps and without: equal tokens, in every size up to the one recorded."""
    decoder = make_decoder(scale, "Qwen3-0.6B")
    for size in (1, 3, 17):
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


def quantized_logits(scale: Scale, rows: Rows) -> None:
    """What fewer bits cost: the trained demo model's loss on its own answers, and logits of a real shape."""
    from engine.device_bench.quality import demo_loss

    base = None
    for quant, kv_dtype in (("none", "bfloat16"), ("int8", "bfloat16"), ("fp8", "bfloat16"), ("int4", "bfloat16"),
                            ("none", "fp8"), ("none", "int8")):  # fmt: skip
        try:
            loss = demo_loss(scale, quant, kv_dtype)
        except (RuntimeError, EngineError) as error:
            rows.add(f"demo model, weights {quant}, KV {kv_dtype}", fault=str(error)[:200])
            continue
        base = loss if base is None else base
        rows.add(f"demo model, weights {quant}, KV {kv_dtype}", loss_nats=loss, perplexity_change=_change(loss, base))


def _change(loss: float, base: float) -> float:
    return float(torch.tensor(loss - base).exp()) - 1
