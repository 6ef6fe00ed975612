"""Every kernel by itself: against float64, and in bytes per second over batch and context.

Knows: kernels, the plain definitions, rooflines. Does not know: engines, peers.
"""

from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import Tensor

from engine.blocks import BLOCK, blocks_for
from engine.cuda import kernels_for
from engine.cuda.frame import Cut
from engine.cuda.runner import cut_for
from engine.device_bench.models import Scale
from engine.device_bench.right import relative
from engine.device_bench.roof import measured, median_ms
from engine.device_bench.rows import Rows
from engine.kernels import HeadNorm, Kernels, Look, Noise, Norm, Pages, Parts, Rotary, Tiles, Weights, plain

_HEADS = ((16, 8, 128), (32, 8, 128), (32, 8, 64), (32, 32, 128), (14, 2, 64), (9, 3, 64), (4, 1, 256))

_MOST_BYTES = 40e9


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


def against_float64(scale: Scale, rows: Rows) -> None:
    """bfloat16 in, float64 as the truth: errors of a few thousandths are bfloat16's own."""
    for heads in _HEADS[: scale.count(len(_HEADS), 2)]:
        for look in (Look(heads[2] ** -0.5), Look(heads[2] ** -0.5, 50), Look(heads[2] ** -0.5, 0, 30.0)):
            for asked, context in ((1, scale.count(777, 40)), (scale.count(150, 20), scale.count(333, 37))):
                _check_attention(scale, rows, heads, look, asked, context)
    _check_others(scale, rows)


def _check_attention(
    scale: Scale, rows: Rows, heads: tuple[int, int, int], look: Look, asked: int, context: int
) -> None:
    kernels = kernels_for(torch.device(scale.device))
    scene = Scene(scale, heads, 3, context, asked)
    single = asked == 1
    cut = Cut(64, 3, 16) if single else cut_for(1, heads[0], heads[1], deterministic=False)
    tiles, parts = scene.tiles(cut, single)
    out = kernels.attend(scene.query, scene.pages, (tiles,), scene.blocks, look, parts)
    wide = Pages(scene.pages.keys.double(), scene.pages.values.double())
    truth = plain.attend(scene.query.double(), wide, (tiles,), scene.blocks, look, parts)
    error = relative(out, truth)
    name = f"attention, heads {heads}, window {look.window}, softcap {look.softcap:.0f}, {asked} rows at {context}"
    rows.add(name, relative_error=error, ok=error < 1e-2)


def _check_others(scale: Scale, rows: Rows) -> None:
    kernels = kernels_for(torch.device(scale.device))
    device, width, inner = scale.device, scale.count(1024, 64), scale.count(3072, 96)
    torch.manual_seed(1)
    x, branch = torch.randn(5, width, device=device), _random(scale, 5, width)
    norm = Norm(torch.randn(width, device=device), 1e-6)
    weights = {
        "bf16": Weights(_random(scale, 2 * inner, width) * 0.03),
        "int8": Weights(torch.randint(-127, 128, (2 * inner, width), device=device, dtype=torch.int8),
                        torch.rand(2 * inner, device=device) * 1e-3),
        "fp8": Weights(torch.randn(2 * inner, width, device=device).to(torch.float8_e4m3fn),
                       torch.rand(2 * inner, device=device) * 1e-1),
    }  # fmt: skip
    checks: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
        "add and norm": lambda: (
            kernels.add_norm(x.clone(), branch, norm, torch.bfloat16),
            plain.add_norm(x.double(), branch, norm, torch.float64),
        ),
        "gate": lambda: (kernels.gate(branch, "silu"), plain.gate(branch.double(), "silu")),
    }
    for kind, some in weights.items():
        wide = some._replace(weight=some.weight.double())
        checks[f"vector, {kind}, normed and gated"] = lambda some=some, wide=wide: (
            kernels.vector(x[:1], some, norm, "silu"), plain.vector(x[:1].double(), wide, norm, "silu"))  # fmt: skip
        checks[f"matrix, {kind}"] = lambda some=some, wide=wide: (
            kernels.matrix(branch, some), plain.matrix(branch.double(), wide))  # fmt: skip
    for name, check in checks.items():
        error = relative(*check())
        rows.add(name, relative_error=error, ok=error < 1e-2)
    _check_rotate(scale, rows, kernels)
    _check_sample(scale, rows, kernels)


def _check_rotate(scale: Scale, rows: Rows, kernels: Kernels) -> None:
    heads, kv, size = 16, 8, 128
    device = scale.device
    qkv = _random(scale, 7, (heads + 2 * kv) * size)
    places = torch.tensor([3, 40, 17, 18, 99, 0, 5], dtype=torch.int32, device=device)
    angles = torch.randn(64, size, device=device)
    rotary = Rotary(angles.cos(), angles.sin(), size)
    norm = HeadNorm(torch.randn(heads + kv, size, device=device), 1e-6)
    for dtype in (torch.bfloat16, torch.int8, torch.float8_e4m3fn):
        made: list[tuple[Tensor, ...]] = []
        for some in (kernels, plain):
            kept = [torch.zeros(112, kv, size, device=device).to(dtype) for _ in range(2)]
            scales = [] if dtype == torch.bfloat16 else [torch.zeros(112, kv, device=device) for _ in range(2)]
            pages = Pages(*kept, *scales)
            made.append((some.rotate_and_write(qkv, places % 64, places, rotary, norm, pages), *kept))
        errors = [relative(ours.float(), theirs.float()) for ours, theirs in zip(*made, strict=True)]
        rows.add(f"rotate and write, pages {dtype}", relative_error=max(errors), ok=max(errors) < 2e-2)


def _check_sample(scale: Scale, rows: Rows, kernels: Kernels) -> None:
    vocabulary = scale.count(151_936, 512)
    logits = _random(scale, 64, vocabulary) * 4
    heat = torch.arange(64, device=scale.device).remainder(3) * 0.5
    words = torch.randint(-(2**31), 2**31 - 1, (64, 2), device=scale.device, dtype=torch.int32)
    ours, truth = kernels.sample(logits, Noise(heat, words)), plain.sample(logits, Noise(heat, words))
    same = int((ours[0] == truth[0]).sum())
    rows.add("sample", rows=64, equal=same, logprob_error=float((ours[1] - truth[1]).abs().max()), ok=same >= 63)


def bandwidth(scale: Scale, rows: Rows) -> None:
    """Attention's GB/s over batch and context, for the cut the engine would choose and for a few others."""
    ceilings = measured(scale.device)
    rows.add("ceilings", bandwidth_gb_s=ceilings.bandwidth / 1e9, arithmetic_tflop_s=ceilings.arithmetic / 1e12)
    kernels = kernels_for(torch.device(scale.device))
    for heads, batch, context in product(_HEADS[:2] + _HEADS[3:4], (1, 8, 64, 256), (512, 4096, 32768)):
        read = batch * context * heads[1] * heads[2] * 4
        if read > _MOST_BYTES:
            continue
        scene = Scene(scale, heads, batch, context)
        chosen = cut_for(batch, heads[0], heads[1], deterministic=False)
        fixed = cut_for(batch, heads[0], heads[1], deterministic=True)
        for cut in dict.fromkeys((chosen, fixed, chosen._replace(split=128, programs=64))):
            ms = median_ms(partial(_attend, kernels, scene, *scene.tiles(cut, single=True)), rep=20)
            rows.add(
                f"attention {heads}, batch {batch}, context {context}",
                split=cut.split, programs=cut.programs, chosen=cut == chosen, us=ms * 1e3, gb_s=read / ms / 1e6,
                fraction=read / ms * 1e3 / ceilings.bandwidth,
            )  # fmt: skip


def _attend(kernels: Kernels, scene: Scene, tiles: Tiles, parts: Parts) -> None:
    kernels.attend(scene.query, scene.pages, (tiles,), scene.blocks, Look(0.1), parts)


def vectors(scale: Scale, rows: Rows) -> None:
    """One row times weights: ours against the library, in GB/s; weights take turns so that no cache holds them."""
    ceilings, kernels = measured(scale.device), kernels_for(torch.device(scale.device))
    for count, width in ((4096, 1024), (1024, 3072), (6144, 1024), (151_936, 1024), (24_576, 4096), (4096, 12_288)):
        copies = max(2, int(300e6 // (count * width * 2)))
        held = [_random(scale, count, width) for _ in range(copies)]
        x = _random(scale, 1, width)
        ours = partial(_one_row, kernels, x)
        for name, call in (("ours", ours), ("library", partial(torch.nn.functional.linear, x))):
            graph = torch.cuda.CUDAGraph()
            for w in held:
                call(w)
            with torch.cuda.graph(graph):
                for w in held:
                    call(w)
            ms = median_ms(graph.replay) / copies
            rate = count * width * 2 / ms * 1e3
            figures = {"us": ms * 1e3, "gb_s": rate / 1e9, "fraction": rate / ceilings.bandwidth}
            rows.add(f"one row, {count} x {width}, {name}", **figures)


def _one_row(kernels: Kernels, x: Tensor, weight: Tensor) -> None:
    kernels.vector(x, Weights(weight), None, None)
