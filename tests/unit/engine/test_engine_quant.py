"""Weights and caches in fewer bits: what is multiplied is what was rounded to, and nothing is given up silently."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.__main__ import main
from engine.api import InvalidRequest, SamplingParams
from engine.attention import KVCache, Look, pack
from engine.launch import launch
from engine.locate import locate
from engine.models.linear import DenseFactory
from engine.models.loader import load
from engine.options import Options
from engine.quant import KINDS, KV_KINDS, factory
from engine.quant.factory import QuantFactory, UnsupportedQuantization, quantizing
from engine.quant.linears import Fp8, Int4, Int8, Quantized
from engine.quant.quality import measure
from engine.quant.rounding import round_fp8, round_int4, round_int8
from engine.scheduler import Work
from engine.sequence import Sequence
from engine.tokenizer import load_tokenizer
from gateway.settings import EngineSettings

CPU = torch.device("cpu")
DENSE = DenseFactory(torch.bfloat16, CPU)


def matrix(rows: int, columns: int, seed: int = 0) -> Tensor:
    """Normal, with one outlier and one row of zeros, as pruned models have them."""
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) / columns**0.5
    weight[1, 3] = 2.0
    weight[2] = 0.0
    return weight


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    ("make", "most"),
    [(Int8, 0.012), (lambda w: Int4(w, None, 64), 0.1), (lambda w: Int4(w, None, 32), 0.08), (Fp8, 0.03)],
)
def test_weights_stay_near(make: Callable[[Tensor], Quantized], most: float) -> None:
    """The definition of each rounding: how far weights move, and that zeros (pruned channels) stay zero."""
    weight = matrix(48, 128)
    widened = make(weight).widened()
    assert relative(widened, weight) < most
    assert torch.equal(widened[2], torch.zeros(128))


@pytest.mark.parametrize("make", [Int8, lambda w, b: Int4(w, b, 64), Fp8])
@pytest.mark.parametrize("tokens", [1, 4, 19])
def test_the_packed_kernel_multiplies_what_was_rounded_to(
    make: Callable[[Tensor, Tensor | None], Quantized], tokens: int
) -> None:
    """Kernels are private to torch: each must compute its definition, with bias, for any number of rows."""
    linear = make(matrix(48, 128), torch.arange(48.0))
    x = torch.randn(tokens, 128, generator=torch.Generator().manual_seed(1))
    weight = linear.widened()
    linear.prepare()
    found = linear(x)
    assert found.dtype == x.dtype
    wanted = x @ weight.T + torch.arange(48.0)
    assert relative(found, wanted) < (0.04 if isinstance(linear, Fp8) else 0.01)
    linear.settle(exact=True)
    assert torch.allclose(linear(x), wanted, atol=1e-4)


@given(st.integers(0, 2**31), st.sampled_from((1e-30, 1e-3, 1.0, 1e4)))
@settings(max_examples=30, deadline=None)
def test_rounding_is_as_near_as_its_steps(seed: int, size: float) -> None:
    """No weight may move by more than half a step (int4: but for what the narrower range cuts off)."""
    weight = torch.randn(16, 64, generator=torch.Generator().manual_seed(seed)) * size
    eights, scales = round_int8(weight)
    assert int(eights.abs().max()) <= 127
    assert bool(((eights.float() * scales.float()[:, None] - weight).abs() <= scales.float()[:, None] * 0.51).all())
    floats, by = round_fp8(weight)
    assert bool(((floats.float() * by[:, None] - weight).abs() <= weight.abs() * 0.0626 + by[:, None] * 2**-9).all())
    fours, steps, zeros = round_int4(weight, 32)
    assert 0 <= int(fours.min()) <= int(fours.max()) <= 15
    near = (fours.view(16, 2, 32).float() - 8) * steps.float()[..., None] + zeros.float()[..., None]
    plain = weight.view(16, 2, 32)
    width = plain.amax(-1) - plain.amin(-1)
    assert bool(((near - plain).square().mean(-1).sqrt() <= width / 15 * 0.5 + 1e-38).all())


def test_an_outlier_costs_its_group_little() -> None:
    """The search over narrower ranges must beat the plain one where a single weight stands out."""
    weight = matrix(16, 64)
    integers, scales, zeros = round_int4(weight, 64)
    found = (integers.view(16, 1, 64).float() - 8) * scales.float()[..., None] + zeros.float()[..., None]
    width = weight.amax(1) - weight.amin(1)
    step = (width / 15)[:, None].masked_fill((width == 0)[:, None], 1)
    plain = ((weight - weight.amin(1)[:, None]) / step).round() * step + weight.amin(1)[:, None]
    ordinary = [row for row in range(16) if row not in (1, 2)]
    ours, theirs = (found.view(16, 64) - weight)[ordinary], (plain - weight)[ordinary]
    assert ours.square().sum() < theirs.square().sum()


def test_what_is_not_packed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """A shape the kernel cannot take: the exact way, one warning, one line for whoever runs it. Never silence."""
    made = quantizing("int8", DENSE)
    weight = matrix(16, 40)
    with caplog.at_level(logging.WARNING):
        first, second = made.row("a", weight, None), made.row("b", weight, None)
    assert len(caplog.records) == 1
    assert "no multiple of 32" in caplog.text
    assert made.notes == ("2 linears are multiplied exactly but slowly: 40 inputs are no multiple of 32",)
    x = torch.randn(3, 40)
    assert isinstance(first, Int8)
    assert torch.equal(first(x), x @ first.widened().T)
    assert torch.equal(first(x), second(x))
    made = quantizing("int4", DENSE)
    slow, kept = made.row("c", matrix(17, 64), None), made.row("d", weight, None)
    assert isinstance(slow, Int4)
    assert slow.exact
    assert torch.equal(kept(x), DENSE.dense(weight)(x))
    assert [note.split(":")[0] for note in made.notes] == [
        "1 linears are multiplied exactly but slowly",
        "1 linears are kept as they are",
    ]


@pytest.mark.parametrize("fault", ["wrong", "refused"])
def test_a_kernel_that_is_wrong_is_not_believed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private kernels change between versions of torch: a wrong product must be noticed before the first answer."""

    def broken(self: Int8, x: Tensor) -> Tensor:
        if fault == "refused":
            raise RuntimeError("expected something else")
        return x @ (self.widened() * 1.5).bfloat16().T

    monkeypatch.setattr(Int8, "packed", broken)
    made = quantizing("int8", DENSE)
    linear = made.row("a", matrix(32, 64), None)
    x = torch.randn(2, 64)
    assert isinstance(linear, Int8)
    assert torch.equal(linear(x), x @ linear.widened().T)
    assert ("torch refuses: expected" if fault == "refused" else "off by") in made.notes[0]


def test_fp8_is_refused_where_it_cannot_be_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU it would be slower than what it replaces: refused, with what to take instead."""
    with pytest.raises(UnsupportedQuantization, match=r"CUDA device.*int8 and int4"):
        load(locate("tiny-random:qwen3"), quant="fp8")
    with pytest.raises(UnsupportedQuantization, match="known"):
        quantizing("int3", DENSE)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "A100")
    with pytest.raises(UnsupportedQuantization, match=r"8\.9 or newer, A100"):
        quantizing("fp8", DenseFactory(torch.bfloat16, torch.device("cuda")))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    assert quantizing("fp8", DenseFactory(torch.bfloat16, torch.device("cuda"))).label == "fp8/bfloat16"


def test_a_model_in_fp8_by_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch multiplies 8-bit floats on CPUs too, slowly: enough to prove the whole model before a GPU sees it."""
    monkeypatch.setattr(factory, "_no_fp8", lambda _device: None)
    reduced, plain = load(locate("tiny-random:qwen3"), quant="fp8"), load(locate("tiny-random:qwen3"))
    assert reduced.notes == ()
    x = torch.randn(5, 64)
    for one, other in zip(reduced.layers, plain.layers, strict=True):
        assert relative(one.qkv(x), other.qkv(x)) < 0.06
        assert relative(one.gate_up(x), other.gate_up(x)) < 0.06


@pytest.mark.parametrize("family", ["qwen3", "gemma2", "phi3"])
@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_a_quantized_model_reads_less(family: str, quant: str) -> None:
    """The point of it: fewer bytes a step. The embedding that is the head too is packed with it."""
    plain, reduced = (
        load(locate(f"tiny-random:{family}"), "bfloat16"),
        load(locate(f"tiny-random:{family}"), quant=quant),
    )
    assert reduced.bytes < plain.bytes * (0.53 if quant == "int8" else 0.42)
    assert reduced.dtype == f"{quant}/float32"
    ids = torch.arange(0, 259, 7)
    assert relative(reduced.embed.rows(ids).float(), plain.embed.rows(ids).float()) < 0.012


def step(tokens: int) -> tuple[Sequence, list[int]]:
    blocks = [3, 1, 2, 5]
    ids = torch.randint(0, 250, (tokens,), generator=torch.Generator().manual_seed(4)).tolist()
    sampling = SamplingParams(max_tokens=1)
    made = Sequence(
        key=0,
        tokens=ids,
        prompt=tokens,
        sampling=sampling,
        seed=0,
        eos=frozenset(),
        salt="",
        priority=0,
        arrival=0,
        submitted=0.0,
        blocks=blocks,
    )
    return made, blocks


@pytest.mark.parametrize(("kind", "most"), [("float32", 0.0), ("bfloat16", 0.004), ("int8", 0.012), ("fp8", 0.04)])
def test_what_a_cache_gives_back(kind: str, most: float) -> None:
    """Scales belong to one token and one head: a large value elsewhere must not coarsen a small one."""
    sequence, _ = step(40)
    batch = pack([Work(sequence, 40)])
    shape = (len(batch.slots), 2, 16)
    key, value = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    key[3, 0] *= 1e4
    key[4, 1] = 0.0
    value[5, 1] *= 1e-6
    cache = KVCache(1, 5, 2, 16, kind)
    cache.write(0, batch.slots, key, value)
    both = cache._read(0, batch.slots[:40])
    for found, wanted in zip(both, (key[:40], value[:40]), strict=True):
        off = (found - wanted).abs().amax(-1) / wanted.abs().amax(-1).clamp(min=1e-30)
        assert float(off.max()) <= most
    query = torch.randn(40, 4, 16)
    exact = KVCache(1, 5, 2, 16)  # float32 that was given what the other gives back
    exact.write(0, batch.slots[:40], *both)
    for look in (Look(0, 0.25, 0.0), Look(7, 0.25, 0.0), Look(7, 0.25, 5.0)):
        assert torch.equal(cache.attend(0, query, batch, look), exact.attend(0, query, batch, look))


@pytest.mark.parametrize("kind", [kind for kind in KV_KINDS if kind != "auto"])
def test_what_a_token_costs_is_what_is_allocated(kind: str) -> None:
    """The engine plans its memory by this number; blocks that move are all of it."""
    cache = KVCache(3, 4, 2, 16, kind)
    slots = cache.layers[0].shape[1]
    assert sum(tensor.nbytes for tensor in cache.tensors()) == slots * KVCache.token_bytes(3, 2, 16, kind)
    assert all(tensor.shape[1] == slots for tensor in cache.tensors())


def test_a_smaller_cache_type_holds_more_tokens() -> None:
    """The point of it: the same memory, more or longer conversations; warm-up and self-check run on it."""
    found = {}
    for kind in ("float32", "bfloat16", "int8", "fp8"):
        options = Options(kv_dtype=kind, memory=200_000)
        core = launch("tiny-random:gemma2?seed=1", options, monotonic=time.monotonic)
        found[kind] = core.info().kv_capacity_tokens
        assert "reproducible" in core.info().features
    assert found["float32"] < found["bfloat16"] < found["int8"] == found["fp8"]


def test_quality_of_the_same_model_is_the_same() -> None:
    """The measure itself: no change where nothing changed, a small one where something did, both sides told."""
    found = measure("tiny-random:qwen3", monotonic=time.monotonic)  # bytes: five thousand tokens
    assert found["perplexity"]["reference"] == found["perplexity"]["reduced"] > 1
    assert (found["same_first_choice"], found["divergence_nats"]) == (1.0, 0.0)
    assert found["scored_tokens"] > 4000
    reduced = measure("tiny-random:qwen3", quant="int8", kv_dtype="fp8", monotonic=time.monotonic)
    assert reduced["perplexity"]["reference"] == found["perplexity"]["reference"] != reduced["perplexity"]["reduced"]
    assert 0.5 < reduced["same_first_choice"] < 1
    assert reduced["divergence_nats"] > 0
    assert reduced["weights_bytes_per_step"]["reduced"] < 0.3 * reduced["weights_bytes_per_step"]["reference"]
    assert reduced["cache_bytes_per_token"]["reduced"] < 0.4 * reduced["cache_bytes_per_token"]["reference"]


def test_perplexity_is_that_of_the_text(tmp_path: Path) -> None:
    """Against the definition: every token but the first of each window, given those before it in the window."""
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog, twice.")
    found = measure("tiny-random:llama", text=text, monotonic=time.monotonic)
    decoder = load(locate("tiny-random:llama"))
    ids = load_tokenizer(locate("tiny-random:llama")).encode(text.read_text(), specials=True)
    total = 0.0
    for end in range(1, len(ids)):
        sequence, _ = step(end)
        sequence.tokens = ids[:end]
        cache = KVCache(2, 5, 2, 16)
        total -= float(decoder.forward(pack([Work(sequence, end)]), cache)[0].log_softmax(-1)[ids[end]])
    assert found["scored_tokens"] == len(ids) - 1
    assert found["perplexity"]["reference"] == pytest.approx(
        torch.tensor(total / (len(ids) - 1)).exp().item(), rel=1e-4
    )
    for bad in ("short", None):
        if bad:
            text.write_text(bad)
        else:
            text.write_bytes(b"\xff" * 100)
        with pytest.raises(InvalidRequest, match="text"):
            measure("tiny-random:llama", text=text, monotonic=time.monotonic)


def test_quality_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of JSON for whoever compares, one plain sentence for what cannot be."""
    text = tmp_path / "mine.txt"
    text.write_text("Any text of some forty characters will do here.")
    command = ["quality", "tiny-random:llama", "--kv-dtype", "int8", "--text", str(text), "--threads", "1"]
    assert main([*command, "--quant", "int4"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out)
    assert (found["quant"], found["kv_dtype"], found["text"]) == ("int4", "int8", "mine.txt")
    assert main([*command, "--quant", "fp8"]) == 1
    assert "needs a CUDA device" in capsys.readouterr().err


def test_settings_name_the_same_kinds() -> None:
    """`nearhit.yaml` is checked without torch: its lists must be the engine's own."""
    fields = EngineSettings.model_fields
    assert get_args(fields["quant"].annotation) == KINDS
    assert get_args(fields["kv_dtype"].annotation) == KV_KINDS
    with pytest.raises(ValueError, match="'none', 'int8', 'int4' or 'fp8'"):
        EngineSettings.model_validate({"quant": "int5"})


def test_quantizing_none_is_dense() -> None:
    """No wrapper where nothing is to be done."""
    assert quantizing("none", DENSE) is DENSE
    assert not isinstance(DENSE, QuantFactory)
