"""The CUDA runner on a processor: all of it but the kernels, which are plain torch here."""

import random
from itertools import count
from typing import Any

import pytest
import torch

from engine.api import EngineFailed, SamplingParams
from engine.attention import KVCache, pack
from engine.core import EngineCore
from engine.cuda import CudaOptions, build, largest_step
from engine.cuda.frame import Cut, Frame, single_tiles, sizes_of
from engine.cuda.graphs import bucket
from engine.cuda.memory import blocks_within
from engine.cuda.runner import CudaRunner, cut_for
from engine.cuda.table import BlockTable
from engine.frames import Submit
from engine.kernels import Parts, fast
from engine.locate import locate
from engine.models import loader, tiny
from engine.models.decoder import Decoder
from engine.models.linear import DenseFactory
from engine.models.spec import read_spec
from engine.quant.factory import quantizing
from engine.sampler import Row
from engine.scheduler import Limits, Work
from engine.sequence import Sequence

torch.set_num_threads(1)

BASE: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "head_dim": 16, "rms_norm_eps": 1e-6,
}  # fmt: skip
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 16, "sliding_window": 24}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 24},
    "qwen2": {},
    "qwen3": {"tie_word_embeddings": True},
    "smollm3": {"no_rope_layers": [1, 1, 0], "use_sliding_window": False},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0},
    "gemma3_text": GEMMA,
    "phi3": {"partial_rotary_factor": 0.5},
}


def make(family: str, dtype: torch.dtype = torch.float32, quant: str = "none") -> Decoder:
    spec = read_spec({**BASE, "model_type": family, **FAMILIES[family]})
    return loader.build(spec, tiny.tensors(spec, 1), quantizing(quant, DenseFactory(dtype, torch.device("cpu"))))


def sequence(key: int, tokens: list[int], blocks: list[int], prompt: int) -> Sequence:
    return Sequence(
        key=key, tokens=tokens, prompt=prompt, sampling=SamplingParams(max_tokens=1, temperature=0.0, top_k=5), seed=0,
        eos=frozenset(), salt="", priority=0, arrival=key, submitted=0.0, blocks=blocks,
    )  # fmt: skip


STEPS = (  # sequence, from, to: chunks, mixed steps, one row alone, rows computed again
    [(0, 0, 19), (1, 0, 21)],
    [(0, 19, 38), (2, 0, 1), (1, 21, 29)],
    [(0, 38, 39), (1, 29, 30)],
    [(0, 39, 40)],
    [(0, 40, 60), (1, 30, 33)],
)


def differences(decoder: Decoder, runner: CudaRunner) -> list[float]:
    """Relative error of the runner's logits against the decoder's, per step of `STEPS`."""
    source = random.Random(0)
    tokens = [[source.randrange(320) for _ in range(length)] for length in (60, 33, 1)]
    blocks, prompts = [[5, 9, 2, 30], [7, 8, 20], [11]], (30, 25, 1)
    spec = decoder.spec
    cache = KVCache(spec.layers, 40, spec.kv_heads, spec.head)
    told: list[float] = []
    for step in STEPS:
        plan: list[Work] = []
        for key, begin, end in step:
            one = sequence(key, tokens[key][:end], blocks[key], min(end, prompts[key]))
            one.computed = begin
            plan.append(Work(one, end - begin))
        wanted = decoder.forward(pack(plan), cache)
        rows = [Row(work.sequence.sampling, 0, work.end) for work in plan]
        logits = runner.launch(plan, rows)._logits  # type: ignore[attr-defined]  # rows with top-k are drawn from logits
        wanted = wanted[: len(rows)]
        told.append(float((logits - wanted).norm() / wanted.norm()))
    return told


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_computed_as_the_decoder_does(family: str, deterministic: bool) -> None:
    """There are two forward passes; this is what keeps them one model."""
    options = CudaOptions(sequences=4, step_tokens=64, blocks=40, kv_dtype="float32", deterministic=deterministic)
    assert max(differences(make(family), build(make(family), options))) < 1e-5


@pytest.mark.parametrize(("family", "quant"), [("llama", "none"), ("qwen2", "int8"), ("gemma2", "int8")])
def test_in_bfloat16_as_on_a_gpu(family: str, quant: str) -> None:
    """There matrices take and give bfloat16 while norms and biases stay float32: no type may leak into another."""
    runner = build(make(family, torch.bfloat16, quant), CudaOptions(sequences=4, step_tokens=64, blocks=40))
    assert max(differences(make(family, torch.bfloat16, quant), runner)) < 0.06


@pytest.mark.proof
@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_the_same_through_the_kernels(family: str) -> None:
    """Triton's kernels instead of plain torch, in the interpreter: a minute per family."""
    options = CudaOptions(sequences=4, step_tokens=64, blocks=40, kv_dtype="float32")
    assert max(differences(make(family), build(make(family), options, fast))) < 1e-5


def _answers(decoder: Decoder, runner: CudaRunner | None, samplings: list[dict[str, Any]]) -> dict[Any, list[int]]:
    ticks = count()
    core = EngineCore(
        "tiny", decoder, blocks=48, limits=Limits(sequences=6, step_tokens=64, chunk=32), queue=100,
        monotonic=lambda: next(ticks) / 1000, runner=runner,
    )  # fmt: skip
    source = random.Random(1)
    for key in range(10):
        tokens = [source.randrange(256) for _ in range(source.choice([1, 5, 40, 90]))]
        sampling = SamplingParams(max_tokens=12, **samplings[key % len(samplings)])
        outer: dict[str, Any] = {"seed": key, "eos": [], "salt": "", "priority": 0, "deadline_ms": None}
        core.submit(key, Submit(handle=0, tokens=tokens, sampling=sampling, **outer))
    told: dict[Any, list[int]] = {}
    while core.busy:
        for ended in core.step():
            told.setdefault(ended.key, []).extend(ended.output.tokens)
    core.check()
    return told


@pytest.mark.parametrize("kinds", [1, 2, 4])
def test_the_core_says_the_same_on_either_runner(kinds: int) -> None:
    """Plain rows are drawn by the device, others by the sampler, recorded or not: nobody can tell from the tokens."""
    decoder = make("qwen3")
    samplings: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"temperature": 1.0, "top_p": 0.9},
        {"temperature": 0.0, "logprobs": 2},
    ]
    runner = build(decoder, CudaOptions(sequences=6, step_tokens=64, blocks=48, kv_dtype="float32"))
    assert _answers(decoder, runner, samplings[:kinds]) == _answers(decoder, None, samplings[:kinds])
    assert runner.eager > 0
    assert runner.replayed > 0


def test_sizes_in_between_run_as_the_next_larger_one() -> None:
    """A step of 5 uses the graph of 8; one that is larger than what is recorded uses none."""
    assert [bucket(n, 64) for n in (1, 2, 3, 5, 9, 64, 65)] == [1, 2, 4, 8, 16, 64, None]
    assert bucket(300, 10_000) is None


def test_deterministic_cuts_do_not_look_at_the_batch() -> None:
    """A changing range length changes the order of sums, and with it the last bits."""
    assert {cut_for(rows, 16, 8, deterministic=True).split for rows in (1, 3, 17, 256)} == {256}
    assert cut_for(256, 16, 8, deterministic=False).programs == 1
    assert cut_for(1, 16, 8, deterministic=False).programs * 8 >= 132


def test_contexts_beyond_the_room_for_partial_results_run_unrecorded() -> None:
    """A graph knows one buffer for them; a longer context must not write past it."""
    decoder = loader.load(locate("tiny-random:qwen3?seed=3"), "float32")
    runner = build(
        decoder, CudaOptions(sequences=2, step_tokens=64, blocks=200, kv_dtype="float32", deterministic=True)
    )
    runner.forward._parts = runner.forward._parts._replace(sums=torch.empty(1, 4, 16))
    one = sequence(1, list(range(200)) * 2, list(range(1, 30)), 10)
    one.computed = 399
    plain = Row(SamplingParams(max_tokens=1, temperature=0.0), 0, 400)
    assert runner.launch([Work(one, 1)], [plain]).finish()[0].token is not None
    assert (runner.replayed, runner.eager) == (0, 1)


def _decoding(key: int, length: int, first: int) -> Work:
    """The last of `length` tokens, all but ten of which were generated."""
    one = sequence(key, list(range(200)) * 3, list(range(first, first + 38)), 10)
    one.tokens = one.tokens[:length]
    one.computed = length - 1
    return Work(one, 1)


def test_rows_that_need_more_room_than_there_is_take_turns() -> None:
    """On a GPU their partial results were written past the end of the buffer, over whatever lay there."""
    cut = Cut(256, 4, 16, room=5)
    plan = [_decoding(key, length, 1) for key, length in enumerate((600, 256, 257, 400, 12))]
    tiles = single_tiles(plan, range(5), cut)
    ends = [tile[4] + cut.parts(tile[3] + 1) for tile in tiles]
    assert [tile[4] for tile in tiles] == [0, 3, 0, 2, 4]
    assert max(ends) <= cut.room
    frame = Frame(sizes_of(plan, cut), torch.device("cpu"), cut)
    frame.fill(plan, [], range(5))
    assert [len(some.table) for some in frame.inputs.tiles] == [2, 3]
    assert torch.equal(torch.cat([some.table[:, :5] for some in frame.inputs.tiles]), torch.tensor(tiles).int())


def test_there_is_room_for_one_row_of_the_longest_context() -> None:
    """Its partial results stay together, so a buffer for fewer would be overrun even by a row that has its turn."""
    decoder = loader.load(locate("tiny-random:qwen3?seed=3"), "float32")
    for deterministic in (False, True):
        options = CudaOptions(sequences=1, step_tokens=64, blocks=8, kv_dtype="float32", deterministic=deterministic)
        runner = build(decoder, options)
        assert max(runner.cut(rows).parts(decoder.spec.context) for rows in range(1, 300)) <= runner.forward.room


def test_turns_change_nothing_through_the_kernels() -> None:
    """Two launches that share one buffer, in the interpreter, against one launch with room for all."""
    decoder = make("qwen3")
    told: list[torch.Tensor] = []
    for room in (64, 4):
        torch.manual_seed(0)
        options = CudaOptions(sequences=4, step_tokens=64, blocks=40, kv_dtype="float32", deterministic=True)
        runner = build(decoder, options, fast)
        for layer in runner.cache.layers:
            layer.normal_()
        size = (room, decoder.spec.heads)
        runner.forward._parts = Parts(torch.empty(*size, decoder.spec.head), torch.empty(*size, 2))
        plan = [_decoding(key, length, 1 + key) for key, length in enumerate((250, 200))]
        for work in plan:
            work.sequence.blocks = work.sequence.blocks[:16]
        cut = Cut(64, 3, 16, room)
        frame = Frame(sizes_of(plan, cut), torch.device("cpu"), cut)
        frame.fill(plan, [], runner.table.update(plan))
        told.append(runner.forward(frame.inputs))
        assert len(frame.inputs.tiles) == (1 if room == 64 else 2)
    assert torch.equal(*told)


def _work(key: int, blocks: list[int]) -> Work:
    return Work(sequence(key, [1] * 16 * len(blocks), blocks, 1), 1)


def test_the_table_of_blocks_follows_its_sequences() -> None:
    """Grown, preempted and started over, evicted and back: the device's copy must be the sequence's own list."""
    table = BlockTable(2, 6, torch.device("cpu"))
    source = random.Random(3)
    lists: dict[int, list[int]] = {key: [key + 1] for key in range(4)}
    for _ in range(200):
        chosen = source.sample(sorted(lists), 2)
        for key in chosen:
            if source.random() < 0.2 or len(lists[key]) == 6:
                lists[key] = [source.randrange(1, 99)]
            else:
                lists[key] = [*lists[key], source.randrange(1, 99)]
        places = table.update([_work(key, lists[key]) for key in chosen])
        for key, place in zip(chosen, places, strict=True):
            assert table.blocks[place, : len(lists[key])].tolist() == lists[key]


def test_memory_left_after_the_largest_step_becomes_cache() -> None:
    """Not a share of the card: that forgets what the step itself takes."""
    assert blocks_within(free=1000, peak=200, fraction=0.5, block_bytes=10) == 40
    with pytest.raises(EngineFailed, match="no room"):
        blocks_within(free=1000, peak=999, fraction=0.9, block_bytes=10)


def test_the_largest_step_is_one_that_runs() -> None:
    """It is what memory is measured with, so it must be as large as a step can be, and valid."""
    decoder = loader.load(locate("tiny-random:qwen3?seed=3"), "float32")
    plan, rows = largest_step(64, 6, 256)
    assert sum(work.tokens for work in plan) == 60
    assert len(rows) == 6
    runner = build(decoder, CudaOptions(sequences=6, step_tokens=64, blocks=8, kv_dtype="float32"))
    assert len(runner.launch(plan, rows).finish()) == 6


def test_parts_of_a_row() -> None:
    """Room is counted before a step starts."""
    assert Cut(256).parts(256) == 1
    assert Cut(256).parts(257) == 2
