"""Norms, rotation, gates, linears and drawing, in Triton's interpreter, against their definitions in float64."""

import pytest
import torch

from engine.kernels import HeadNorm, Noise, Norm, Pages, Rotary, Weights, fast, plain
from tests.unit.engine.kernels.scenes import relative

# exp overflows to infinity and its reciprocal is the zero that is wanted
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_add_and_norm_changes_the_stream_and_gives_its_norm() -> None:
    """The sum must be kept: every later layer reads it."""
    x, branch, norm = torch.randn(3, 48), torch.randn(3, 48), Norm(torch.randn(48), 1e-6)
    stream, wide = x.clone(), x.double()
    told = fast.add_norm(stream, branch, norm, torch.float32)
    assert relative(told, plain.add_norm(wide, branch, norm, torch.float64)) < 1e-6
    assert relative(stream, wide) < 1e-6
    assert (
        relative(fast.add_norm(x, None, norm, torch.float32), plain.add_norm(x.double(), None, norm, torch.float64))
        < 1e-6
    )


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate(activation: str) -> None:
    """Two activations, written out by hand in the kernel."""
    both = torch.randn(3, 2 * 70)
    assert relative(fast.gate(both, activation), plain.gate(both.double(), activation)) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("turned", [24, 16])
def test_rotate_and_write(dtype: torch.dtype, turned: int) -> None:
    """One kernel in place of five: queries come back, keys and values land in their slots and nowhere else."""
    heads, kv_heads, size = 4, 2, 24
    qkv = torch.randn(4, (heads + 2 * kv_heads) * size)
    positions, slots = torch.tensor([0, 5, 7, 2], dtype=torch.int32), torch.tensor([17, 3, 40, 0], dtype=torch.int32)
    cos, sin = torch.randn(2, 9, size).unbind(0)
    cos[:, turned:], sin[:, turned:] = 1, 0
    norm = HeadNorm(torch.randn(heads + kv_heads, size), 1e-6)
    told: list[torch.Tensor] = []
    kept: list[Pages] = []
    for kernels in (fast, plain):
        scales = [] if dtype == torch.float32 else [torch.zeros(48, kv_heads) for _ in range(2)]
        pages = Pages(*(torch.zeros(48, kv_heads, size).to(dtype) for _ in range(2)), *scales)
        told.append(kernels.rotate_and_write(qkv, positions, slots, Rotary(cos, sin, turned), norm, pages))
        kept.append(pages)
    assert relative(*told) < 1e-6
    # The interpreter cuts where fp8 rounds: up to one step of three bits of mantissa.
    limit = 0.06 if dtype == torch.float8_e4m3fn else 1e-6
    for ours, theirs in zip(*kept, strict=True):
        if ours is not None and theirs is not None:
            assert relative(ours.float(), theirs.float()) < limit
            assert int((ours.float() != 0).any(-1).view(48, -1).any(-1).sum()) == 4


def test_no_norm_and_no_rotation() -> None:
    """SmolLM3 has layers that do not rotate, Llama has no norms of heads."""
    qkv, pages = torch.randn(2, 8 * 16), Pages(*torch.zeros(2, 32, 2, 16))
    places = torch.tensor([1, 2], dtype=torch.int32)
    told = fast.rotate_and_write(qkv, places, places, None, None, pages)
    assert torch.equal(told, qkv.view(2, 8, 16)[:, :4])
    assert torch.equal(pages.keys[1:3], qkv.view(2, 8, 16)[:, 4:6])


WEIGHTS = [torch.float32, torch.int8, torch.float8_e4m3fn]


def _weights(dtype: torch.dtype, rows: int, columns: int) -> tuple[Weights, Weights]:
    """Some weights, and the same widened."""
    weight = (torch.randn(rows, columns) * 30).to(dtype)
    scale = None if dtype == torch.float32 else torch.rand(rows) + 0.1
    some = Weights(weight, scale, torch.randn(rows))
    return some, some._replace(weight=weight.double())


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_one_row(dtype: torch.dtype) -> None:
    """A linear with nothing around it, with norm and gate around it, and one that is added to the stream."""
    weights, wide = _weights(dtype, 40, 70)
    x, norm = torch.randn(1, 70), Norm(torch.randn(70), 1e-6)
    assert relative(fast.vector(x, weights, None, None), plain.vector(x.double(), wide, None, None)) < 1e-6
    exact = dtype == torch.float32
    told, wanted = fast.vector(x, weights, norm, "silu"), plain.vector(x.double(), wide, norm, "silu")
    assert relative(told.float(), wanted) < (1e-6 if exact else 1e-2)  # quantized layers give bfloat16
    stream, sums = torch.ones(1, 40), torch.ones(1, 40, dtype=torch.float64)
    fast.vector_add(stream, x, weights)
    plain.vector_add(sums, x.double(), wide)
    assert relative(stream, sums) < 1e-6


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_many_rows(dtype: torch.dtype) -> None:
    """The one tiling for every batch."""
    weights, wide = _weights(dtype, 70, 50)
    x = torch.randn(3, 50)
    assert relative(fast.matrix(x, weights), plain.matrix(x.double(), wide)) < 1e-6
    assert torch.equal(fast.matrix(x, weights)[1:2], fast.matrix(x[1:2], weights)), "a row depends on its company"


def test_drawn_tokens_are_the_general_samplers() -> None:
    """The kernel repeats the sampler's noise: a request must not get other tokens because of who draws them."""
    from engine.api import SamplingParams
    from engine.sampler import Row, sample, words

    logits = torch.randn(12, 5000) * 3
    heat = [0.0, 0.5, 1.0, 2.0] * 3
    rows = [Row(SamplingParams(max_tokens=1, temperature=t), at + 7, at * 100) for at, t in enumerate(heat)]
    drawn = torch.tensor([words(row.seed, row.position) for row in rows], dtype=torch.int64)
    noise = Noise(torch.tensor(heat), torch.where(drawn < 2**31, drawn, drawn - 2**32).int())
    tokens, logprobs = fast.sample(logits, noise)
    assert tokens.tolist() == [pick.token for pick in sample(logits, rows)]
    assert tokens.tolist() == plain.sample(logits, noise)[0].tolist()
    assert torch.allclose(logprobs, logits.log_softmax(-1).gather(1, tokens.long()[:, None])[:, 0], atol=1e-5)


def test_logits_that_are_not_finite_are_told() -> None:
    """One request fails, its neighbours do not."""
    logits = torch.randn(3, 300)
    logits[1, 77] = float("nan")
    logits[2, 5] = float("-inf")
    noise = Noise(torch.zeros(3), torch.zeros(3, 2, dtype=torch.int32))
    assert fast.sample(logits, noise)[0].tolist() == [int(logits[0].argmax()), -1, -1]


def test_noise_is_gumbels() -> None:
    """Its mean and spread, and the far tail that float32 could lose."""
    drawn = plain.gumbel(torch.tensor([[5, 6]], dtype=torch.int32), 200_000)[0]
    assert abs(float(drawn.mean()) - 0.5772) < 0.01
    assert abs(float(drawn.std()) - 1.2825) < 0.01
