"""Weights laid out for the processor, and rows that attend together: faster, and nothing else may change."""

import os
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from engine.attention import BLOCK, KVCache, Look, Span, Tile, pack
from engine.launch import launch
from engine.models import blocked, packed
from engine.models.linear import DenseFactory
from engine.models.packed import Packed, PackedFactory, packing
from engine.options import Options
from engine.scheduler import Work
from engine.selfcheck import _one

CPU = torch.device("cpu")
# The kernel itself refuses the other processors, where weights of this type stay in plain rows.
BFLOAT16 = pytest.param(
    torch.bfloat16,
    marks=pytest.mark.skipif(
        not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor packs no bfloat16"
    ),
)


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
@pytest.mark.parametrize("shape", [(96, 64), (64, 160), (1, 32), (259, 48)])
def test_a_packed_product_is_the_plain_one(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Another order in memory, the same matrix: with its bias, and by row where it is an embedding too."""
    weight, bias, x = torch.randn(shape), torch.randn(shape[0]), torch.randn(5, shape[1])
    made = PackedFactory(dtype, CPU)
    kept = weight.to(dtype)
    wanted = functional.linear(x.to(dtype).float(), kept.float())
    rtol = 1e-5 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(made.row("one", weight, bias)(x), wanted + bias, rtol=rtol, atol=10 * rtol)
    table = made.table("two", weight)
    torch.testing.assert_close(table(x), wanted, rtol=rtol, atol=10 * rtol)
    assert torch.equal(table.rows(torch.tensor([0, shape[0] - 1])), kept[[0, -1]])


@pytest.mark.parametrize("shape", [(96, 64), (64, 768), (256, 2048)])
def test_rows_come_out_alike_however_many_there_are(shape: tuple[int, int]) -> None:
    """With other weights and other rows than it was measured with; one of these shapes needs two rows for it here."""
    linear = Packed(torch.randn(shape))
    x = torch.randn(40, shape[1])
    whole = linear(x)
    for size in range(1, 40):
        assert torch.equal(linear(x[-size:]), whole[-size:])


@pytest.mark.parametrize("shape", [(259, 48), (96, 768), (64, 1100)])
def test_a_row_alone_has_the_bits_of_a_row_in_company(shape: tuple[int, int]) -> None:
    """Where sums are known, another kernel multiplies it: were they others, an answer would tell its company."""
    linear, x = Packed(torch.randn(shape), torch.randn(shape[0])), torch.randn(8, shape[1])
    whole = linear(x)
    assert all(torch.equal(linear(x[at : at + 1]), whole[at : at + 1]) for at in range(8))


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
def test_a_row_that_is_looked_up_is_a_copy(dtype: torch.dtype) -> None:
    """Layers are added to it in place: in the table itself a token would be another one the next time."""
    weight = torch.randn(130, 48).to(dtype)
    table = PackedFactory(dtype, CPU).table("one", weight)
    for ids in ([129], [3], [129, 3]):
        for _ in range(2):
            found = table.rows(torch.tensor(ids))
            assert torch.equal(found, weight[ids])
            found.zero_()


def test_a_table_that_cannot_be_read_where_it_lies_is_kept_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed memory is private to oneDNN: in an order nobody here knows, rows must still be the weights."""
    weight = torch.randn(130, 64)
    monkeypatch.setattr(packed, "_measured", lambda *_: packed._Found(1, seen=False, piece=0))
    table = PackedFactory(torch.float32, CPU).table("one", weight)
    assert torch.equal(table.rows(torch.tensor([129, 0])), weight[[129, 0]])
    torch.testing.assert_close(table(torch.eye(64)), weight.T, rtol=1e-6, atol=1e-6)


def test_an_order_that_is_not_known_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read past private names is compared first: by another idea of the order nothing is taken from it."""
    packed._measured.cache_clear()
    monkeypatch.setattr(blocked, "PIECES", (384,))
    assert not packed._measured(64, 1100, torch.float32, torch.get_num_threads()).piece
    packed._measured.cache_clear()
    monkeypatch.setattr(blocked, "rows", lambda _kept, ids, inputs: torch.zeros(len(ids), inputs))
    assert not packed._measured(64, 1100, torch.float32, torch.get_num_threads()).seen
    packed._measured.cache_clear()


def test_rows_come_out_alike_after_the_threads_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are chosen by the number of threads: what was measured with one says nothing about two."""
    asked: list[int] = []

    def measured(outputs: int, inputs: int, dtype: torch.dtype, threads: int) -> packed._Found:
        asked.append(threads)
        return packed._Found(1, seen=False, piece=0)

    monkeypatch.setattr(packed, "_measured", measured)
    before = torch.get_num_threads()
    linear = Packed(torch.randn(64, 64))
    monkeypatch.setattr(torch, "get_num_threads", lambda: before + 1)
    linear(torch.randn(2, 64))
    linear(torch.randn(2, 64))
    assert asked == [before, before + 1]


def test_a_cache_takes_memory_only_as_it_is_used() -> None:
    """A quarter of the machine is promised to it: written at start, it would be taken from everybody else at once."""
    before = resident()
    cache = KVCache(2, 8_000, 4, 64, "bfloat16")
    cache.write(0, torch.tensor([77]), torch.randn(1, 4, 64), torch.randn(1, 4, 64))
    assert sum(layer.nbytes for layer in cache.layers) > 250 * 2**20
    assert resident() - before < 64 * 2**20


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_where_torch_cannot_pack_nothing_is_packed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The names are private to torch: when they go, the engine is slower and as right, and says so."""
    monkeypatch.setattr(packed, "_mkldnn", object())
    packed._works.cache_clear()
    assert type(packing(torch.float32, CPU)) is DenseFactory
    assert "plain rows" in caplog.text
    packed._works.cache_clear()


@pytest.mark.parametrize("window", [0, 7, 40])
@pytest.mark.parametrize("heads", [2, 6])
def test_tiles_attend_as_each_would_alone(heads: int, window: int) -> None:
    """Against the definition: scattered blocks, prompts and single rows of several lengths in one batch."""
    cache = KVCache(1, 60, 2, 16)
    cache.layers[0].copy_(torch.randn(cache.layers[0].shape))
    cache.layers[0][:, :BLOCK] = 0
    plan, first = [], 1
    for length, prompt, computed in ((50, 50, 16), (33, 20, 32), (600, 580, 32), (70, 70, 69), (9, 3, 8)):
        one = _one(first, list(range(length)), [])
        one.prompt, one.computed = prompt, computed
        one.blocks = torch.randperm(60)[: -(-length // BLOCK)].add(1).tolist()
        plan.append(Work(one, length - computed))
        first += 1
    batch = pack(plan, 1)
    query = torch.randn(len(batch.ids), heads, 16)
    found = cache.attend(0, query, batch, Look(window, 0.25, 0.0)).view(query.shape)
    at = 0
    for work in plan:
        blocks = torch.tensor(work.sequence.blocks)
        slots = (blocks[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
        for position in range(work.begin, work.end):
            seen = slots[max(0, position + 1 - window) if window else 0 : position + 1]
            keys, values = cache.layers[0][:, seen].repeat_interleave(heads // 2, 2)
            weights = torch.einsum("hd,khd->hk", query[at], keys).mul(0.25).softmax(-1)
            torch.testing.assert_close(found[at], torch.einsum("hk,khd->hd", weights, values), rtol=1e-4, atol=1e-5)
            at += 1


def test_what_others_left_in_a_block_is_never_read() -> None:
    """A broken request may leave numbers that are none; zero times those is no zero."""
    cache = KVCache(1, 4, 1, 8)
    cache.layers[0][:, BLOCK:] = float("nan")
    one = _one(0, list(range(20)), [2, 3])
    batch = pack([Work(one, 20)], 1)
    cache.write(0, batch.slots, torch.randn(20, 1, 8), torch.randn(20, 1, 8))
    assert bool(torch.isfinite(cache.attend(0, torch.randn(20, 2, 8), batch, Look(0, 1.0, 0.0))).all())


def test_long_prompts_read_their_keys_once() -> None:
    """32 tiles that each copied 8,000 keys took longer than what they computed."""
    one = _one(0, list(range(2048)), list(range(1, 129)))
    one.computed = 2048 - 64
    (group,) = pack([Work(one, 64)], 1).groups(0)
    assert group.mask.shape == (4, 1, BLOCK, 2048)
    assert group.slots.shape == (2048,)
    assert pack([Work(one, 64)], 1).spans == [Span(one.blocks, [Tile(at * 16, 16, 1984 + at * 16) for at in range(4)])]


def test_a_model_promises_the_same_tokens_in_every_company() -> None:
    """The self-check at start, on the real path: packed weights, grouped attention."""
    core = launch("tiny-random:qwen3", Options(threads=1, context=256, sequences=4), monotonic=lambda: 0.0)
    assert {"reproducible", "packed"} <= {*core.info().features}
