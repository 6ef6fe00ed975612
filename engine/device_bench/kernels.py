"""Every kernel by itself: against float64, and in bytes per second over batch and context.

Knows: kernels, the plain definitions, rooflines. Does not know: engines, peers.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import torch
from msgspec import Struct
from torch import Tensor

from engine.blocks import BLOCK, blocks_for
from engine.cuda import kernels_for
from engine.cuda.frame import Cut
from engine.cuda.runner import cut_for
from engine.device_bench.models import Scale
from engine.device_bench.right import relative
from engine.device_bench.roof import Ceilings, measured, median_ms, recorded
from engine.device_bench.rows import Rows
from engine.kernels import HeadNorm, Kernels, Look, Noise, Norm, Pages, Parts, Rotary, Tiles, Weights, plain

_HEADS = ((16, 8, 128), (32, 8, 128), (32, 8, 64), (32, 32, 128), (14, 2, 64), (9, 3, 64), (4, 1, 256))

_MOST_BYTES = 40e9


def _kernels(scale: Scale) -> Kernels:
    """On the device `meta`, where nothing is computed, those of a GPU: to see what is launched."""
    return kernels_for(torch.device("cuda" if scale.device == "meta" else scale.device))


class Scene:
    """`batch` sequences of `context` tokens in scattered blocks; each asks with `asked` rows at its end."""

    def __init__(self, scale: Scale, heads: tuple[int, int, int], batch: int, context: int, asked: int = 1) -> None:
        query, kv, size = heads
        device = scale.device
        torch.manual_seed(0)
        each = blocks_for(context)
        order = torch.randperm(batch * each, device=device).int() + 1
        self.blocks = order.view(batch, each)
        slots = (batch * each + 1) * BLOCK
        self.pages = Pages(*(_random(scale, slots, kv, size) for _ in range(2)))
        self.query = _random(scale, batch * asked, query, size)
        self._where = (batch, context, asked, device)

    def tiles(self, cut: Cut, single: bool) -> tuple[Tiles, Parts]:
        batch, context, asked, device = self._where
        rows: list[list[int]] = []
        part = 0
        step = 1 if single else cut.prompt
        for one in range(batch):
            for at in range(0, asked, step):
                count = min(step, asked - at)
                rows.append([one, one * asked + at, count, context - asked + at, part, 0, 0, 0])
                part += cut.parts(context) if single else 0
        table = torch.tensor(rows, dtype=torch.int32, device=device)
        heads, size = self.query.shape[1:]
        room = part if single and cut.programs > 1 else 1
        parts = Parts(*(torch.empty(room, heads, width, device=device) for width in (size, 2)))
        return (Tiles(table, 1, cut.split, cut.programs) if single else Tiles(table, cut.prompt)), parts


def _random(scale: Scale, *shape: int) -> Tensor:
    return torch.randn(*shape, device=scale.device).to(torch.bfloat16)


class Check(Struct, frozen=True):
    """A launch and what it must come to. `most`: the relative error that its types explain."""

    name: str
    ours: Callable[[], Sequence[Tensor]]
    truth: Callable[[], Sequence[Tensor]]
    most: float = 1e-2


def against_float64(scale: Scale, rows: Rows) -> None:
    """bfloat16 in, float64 as the truth: errors of a few thousandths are bfloat16's own."""
    for check in checks(scale):
        with rows.apart(check.name):
            pairs = zip(check.ours(), check.truth(), strict=True)
            error = max(relative(ours.float(), truth) for ours, truth in pairs)
            rows.add(check.name, relative_error=error, ok=error < check.most)
    with rows.apart("sample"):
        _check_sample(scale, rows, _kernels(scale))


def checks(scale: Scale) -> Iterator[Check]:
    """Every kernel but the one that draws, in every form it is launched in."""
    for heads in _HEADS[: scale.count(len(_HEADS), 2)]:
        for look in (Look(heads[2] ** -0.5), Look(heads[2] ** -0.5, 50), Look(heads[2] ** -0.5, 0, 30.0)):
            for asked, context in ((1, scale.count(777, 40)), (scale.count(150, 20), scale.count(333, 37))):
                yield _attention(scale, heads, look, asked, context)
    yield from _linears(scale)
    for dtype in (torch.bfloat16, torch.int8, torch.float8_e4m3fn):
        yield _rotation(scale, dtype)


def _attention(scale: Scale, heads: tuple[int, int, int], look: Look, asked: int, context: int) -> Check:
    single = asked == 1
    cut = Cut(64, 3, 16) if single else cut_for(1, heads[0], heads[1], deterministic=False)
    scene = Scene(scale, heads, 3, context, asked)
    tiles, parts = scene.tiles(cut, single)

    def ours() -> list[Tensor]:
        kernels = _kernels(scale)
        return [kernels.attend(scene.query, scene.pages, (tiles,), scene.blocks, look, parts)]

    def truth() -> list[Tensor]:
        wide = Pages(scene.pages.keys.double(), scene.pages.values.double())
        return [plain.attend(scene.query.double(), wide, (tiles,), scene.blocks, look, parts)]

    name = f"attention, heads {heads}, window {look.window}, softcap {look.softcap:.0f}, {asked} rows at {context}"
    return Check(name, ours, truth)


def _linears(scale: Scale) -> Iterator[Check]:
    kernels = _kernels(scale)
    device, width, inner = scale.device, scale.count(1024, 64), scale.count(3072, 96)
    x, branch = torch.randn(5, width, device=device), _random(scale, 5, width)
    norm = Norm(torch.randn(width, device=device), 1e-6)
    yield Check(
        "add and norm",
        lambda: [kernels.add_norm(x.clone(), branch, norm, torch.bfloat16)],
        lambda: [plain.add_norm(x.double(), branch, norm, torch.float64)],
    )
    yield Check(
        "gate", lambda: [kernels.gate(branch, "silu")], lambda: [plain.gate(branch.double(), "silu")]
    )  # fmt: skip
    shape = (2 * inner, width)
    for kind, some in {
        "bf16": Weights(_random(scale, *shape) * 0.03),
        "int8": Weights(
            (torch.rand(*shape, device=device) * 254 - 127).to(torch.int8),
            (torch.rand(2 * inner, device=device) * 1e-3).bfloat16(),  # as engine.quant.rounding makes them
        ),
        "fp8": Weights(
            torch.randn(*shape, device=device).to(torch.float8_e4m3fn), torch.rand(2 * inner, device=device) * 1e-1
        ),
    }.items():
        wide = some._replace(weight=some.weight.double())
        yield Check(
            f"vector, {kind}, normed and gated",
            lambda some=some: [kernels.vector(x[:1], some, norm, "silu")],
            lambda wide=wide: [plain.vector(x[:1].double(), wide, norm, "silu")],
        )
        yield Check(
            f"matrix, {kind}",
            lambda some=some: [kernels.matrix(branch, some)],
            lambda wide=wide: [plain.matrix(branch.double(), wide)],
        )


def _rotation(scale: Scale, dtype: torch.dtype) -> Check:
    heads, kv, size = 16, 8, 128
    device = scale.device
    qkv = _random(scale, 7, (heads + 2 * kv) * size)
    places = torch.tensor([3, 40, 17, 18, 99, 0, 5], dtype=torch.int32, device=device)
    angles = torch.randn(64, size, device=device)
    rotary = Rotary(angles.cos(), angles.sin(), size)
    norm = HeadNorm(torch.randn(heads + kv, size, device=device), 1e-6)

    def made(some: Kernels, where: str) -> list[Tensor]:
        kept = [torch.zeros(112, kv, size, device=where).to(dtype) for _ in range(2)]
        scales = [] if dtype == torch.bfloat16 else [torch.zeros(112, kv, device=where) for _ in range(2)]
        turned = Rotary(rotary.cos.to(where), rotary.sin.to(where), size)
        weight = HeadNorm(norm.weight.to(where), 1e-6)
        at = places.to(where)
        query = some.rotate_and_write(qkv.to(where), at % 64, at, turned, weight, Pages(*kept, *scales))
        return [query.cpu(), *(one.cpu().float() for one in kept)] if where != "meta" else [query]

    # The truth on the processor: not every type can be written to by index everywhere.
    return Check(
        f"rotate and write, pages {dtype}",
        lambda: made(_kernels(scale), device), lambda: made(plain, "cpu"), 2e-2,
    )  # fmt: skip


def _check_sample(scale: Scale, rows: Rows, kernels: Kernels) -> None:
    logits, noise = drawn_from(scale, scale.count(64, 16), scale.count(151_936, 512))
    ours, truth = kernels.sample(logits, noise), plain.sample(logits, noise)
    same = int((ours[0] == truth[0]).sum())
    rows.add(
        "sample", rows=len(logits), equal=same, logprob_error=float((ours[1] - truth[1]).abs().max()),
        ok=same >= len(logits) - 1,
    )  # fmt: skip


def drawn_from(scale: Scale, count: int, vocabulary: int) -> tuple[Tensor, Noise]:
    """Logits, and noise for rows that are greedy, cool and warm in turn."""
    device = scale.device
    heat = torch.arange(count, device=device).remainder(3) * 0.5
    words = (torch.rand(count, 2, device=device) * 2e9).to(torch.int32)
    return _random(scale, count, vocabulary) * 4, Noise(heat, words)


def bandwidth(scale: Scale, rows: Rows) -> None:
    """Attention's GB/s over batch and context, for the cut the engine would choose and for a few others."""
    ceilings = measured(scale.device)
    rows.add("ceilings", bandwidth_gb_s=ceilings.bandwidth / 1e9, arithmetic_tflop_s=ceilings.arithmetic / 1e12)
    batches, contexts = ((1, 3), (40,)) if scale.tiny else ((1, 8, 64, 256), (512, 4096, 32768))
    for heads, batch, context in product(_HEADS[:2] + _HEADS[3:4], batches, contexts):
        read = batch * context * heads[1] * heads[2] * 4
        if read <= _MOST_BYTES:
            with rows.apart(f"attention {heads}, batch {batch}, context {context}"):
                _bandwidth(scale, rows, ceilings, heads, batch, context)


def _bandwidth(
    scale: Scale, rows: Rows, ceilings: Ceilings, heads: tuple[int, int, int], batch: int, context: int
) -> None:
    kernels = _kernels(scale)
    scene = Scene(scale, heads, batch, context)
    read = scene.pages.keys[0].nbytes * 2 * batch * context
    chosen = cut_for(batch, heads[0], heads[1], deterministic=False)
    fixed = cut_for(batch, heads[0], heads[1], deterministic=True)
    for cut in dict.fromkeys((chosen, fixed, chosen._replace(split=128, programs=64))):
        call = partial(_attend, kernels, scene, *scene.tiles(cut, single=True))
        ms = median_ms(call, scale.device, rep=20)
        rows.add(
            f"attention {heads}, batch {batch}, context {context}",
            split=cut.split, programs=cut.programs, chosen=cut == chosen, us=ms * 1e3, gb_s=read / ms / 1e6,
            fraction=read / ms * 1e3 / ceilings.bandwidth,
        )  # fmt: skip


def _attend(kernels: Kernels, scene: Scene, tiles: Tiles, parts: Parts) -> None:
    kernels.attend(scene.query, scene.pages, (tiles,), scene.blocks, Look(0.1), parts)


SHAPES = ((4096, 1024), (1024, 3072), (6144, 1024), (151_936, 1024), (24_576, 4096), (4096, 12_288))


def vectors(scale: Scale, rows: Rows) -> None:
    """One row times weights: ours against the library, in GB/s; weights take turns so that no cache holds them."""
    ceilings, kernels = measured(scale.device), _kernels(scale)
    for count, width in ((64, 32),) if scale.tiny else SHAPES:
        copies = 2 if scale.tiny else max(2, int(300e6 // (count * width * 2)))
        held = [_random(scale, count, width) for _ in range(copies)]
        x = _random(scale, 1, width)
        ours = partial(_one_row, kernels, x)
        for name, call in (("ours", ours), ("library", partial(torch.nn.functional.linear, x))):
            with rows.apart(f"one row, {count} x {width}, {name}"):
                ms = median_ms(recorded(partial(_each_of, call, held), scale.device), scale.device) / copies
                rate = count * width * 2 / ms * 1e3
                figures = {"us": ms * 1e3, "gb_s": rate / 1e9, "fraction": rate / ceilings.bandwidth}
                rows.add(f"one row, {count} x {width}, {name}", **figures)


def _each_of(call: Callable[[Tensor], object], held: list[Tensor]) -> None:
    for weight in held:
        call(weight)


def _one_row(kernels: Kernels, x: Tensor, weight: Tensor) -> None:
    kernels.vector(x, Weights(weight), None, None)
