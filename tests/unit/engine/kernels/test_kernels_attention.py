"""Attention over pages, in Triton's interpreter, against its definition in float64."""

from collections.abc import Callable

import pytest
import torch

from engine.kernels import Look, Pages, attention, fast, plain
from tests.unit.engine.kernels.scenes import Scene, relative

LENGTHS = [(1, 1), (4, 21), (1, 133)]  # rows asked for, tokens so far


def truth(scene: Scene, look: Look) -> torch.Tensor:
    pages = Pages(scene.pages.keys.double(), scene.pages.values.double(), *scene.pages[2:])
    return plain.attend(scene.query.double(), pages, [scene.tiles(64)], scene.blocks, look, scene.parts)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "look"),
    [
        pytest.param(4, 2, 32, Look(0.2), id="groups"),
        pytest.param(3, 1, 24, Look(0.2, 20), id="odd sizes, window"),
        pytest.param(2, 2, 16, Look(0.3, 0, 5.0), id="no groups, softcap"),
    ],
)
def test_rows_of_prompts_and_single_rows_are_the_definition(
    make_scene: Callable[..., Scene], heads: int, kv_heads: int, size: int, look: Look
) -> None:
    """Prompt tiles, single rows, single rows in ranges: each reads scattered blocks its own way."""
    scene = make_scene(heads, kv_heads, size, LENGTHS, torch.float32)
    wanted = truth(scene, look)
    for tiles in (scene.tiles(4), scene.tiles(1), scene.tiles(1, 64, 2)):
        told = fast.attend(scene.query, scene.pages, [tiles], scene.blocks, look, scene.parts)
        assert relative(told, wanted) < 1e-6


def test_half_precision(make_scene: Callable[..., Scene]) -> None:
    """fp16 goes through the same conversions as bfloat16, which the interpreter multiplies wrongly."""
    scene = make_scene(4, 2, 16, LENGTHS, torch.float16)
    told = fast.attend(scene.query, scene.pages, [scene.tiles(1, 64, 1)], scene.blocks, Look(0.2), scene.parts)
    assert relative(told, truth(scene, Look(0.2))) < 1e-3


def test_prompts_and_single_rows_in_one_step(make_scene: Callable[..., Scene]) -> None:
    """A mixed step is two tables over one result: each must leave the other's rows alone."""
    scene = make_scene(2, 1, 16, [(1, 70), (6, 9)], torch.float32)
    both = scene.tiles(6), scene.tiles(1, 64, 2)
    single, prompts = both[1]._replace(table=both[1].table[:1]), both[0]._replace(table=both[0].table[1:2])
    told = fast.attend(scene.query, scene.pages, [single, prompts], scene.blocks, Look(0.2), scene.parts)
    assert relative(told, truth(scene, Look(0.2))) < 1e-6


def test_ranges_do_not_depend_on_programs_or_company(make_scene: Callable[..., Scene]) -> None:
    """Deterministic mode rests on this: a row is the same to the bit alone, among others, whoever works on it."""
    scene = make_scene(2, 1, 16, [(1, 40), (1, 133)], torch.float32)
    together = [
        fast.attend(scene.query, scene.pages, [scene.tiles(1, 64, programs)], scene.blocks, Look(0.2), scene.parts)
        for programs in (1, 3)
    ]
    own = scene.tiles(1, 64, 2)
    only = own._replace(table=torch.tensor([[1, 0, 1, 132, 5, 0, 0, 0]], dtype=torch.int32))
    alone = fast.attend(scene.query[1:], scene.pages, [only], scene.blocks, Look(0.2), scene.parts)
    assert torch.equal(together[0][1], together[1][1])
    assert torch.equal(together[0][1], alone[0])


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantized_pages(make_scene: Callable[..., Scene], dtype: torch.dtype) -> None:
    """Scales belong to keys before the softmax and to values after it."""
    scene = make_scene(4, 2, 16, [(1, 50), (4, 20)], torch.float32)
    scales = torch.rand(2, *scene.pages.keys.shape[:2]) + 0.1
    kept = [(part * 20).to(dtype) for part in scene.pages[:2]]
    scene = scene._replace(pages=Pages(*kept, *(scales / 20)))
    wanted = truth(scene, Look(0.2))
    told = fast.attend(scene.query, scene.pages, [scene.tiles(4)], scene.blocks, Look(0.2), scene.parts)
    assert relative(told, wanted) < 1e-6


def test_merging_more_ranges_than_one_pass_takes(make_scene: Callable[..., Scene]) -> None:
    """Long contexts leave more partial results than are merged at a time."""
    scene = make_scene(2, 1, 16, [(1, 64 * attention.MERGED + 70)], torch.float32)
    told = fast.attend(scene.query, scene.pages, [scene.tiles(1, 64, 4)], scene.blocks, Look(0.2), scene.parts)
    assert relative(told, truth(scene, Look(0.2))) < 1e-6


@pytest.mark.proof
@pytest.mark.parametrize("heads", [(8, 2, 64), (7, 1, 128), (12, 4, 96), (4, 4, 256)])
@pytest.mark.parametrize("look", [Look(0.1), Look(0.1, 33), Look(0.1, 0, 30.0), Look(0.1, 20, 10.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_wider_shapes(
    make_scene: Callable[..., Scene], heads: tuple[int, int, int], look: Look, dtype: torch.dtype
) -> None:
    """The shapes of real models, which take the interpreter minutes."""
    scene = make_scene(*heads, [(1, 1), (19, 60), (1, 210), (40, 40)], dtype)
    wanted = truth(scene, look)
    for tiles in (scene.tiles(16), scene.tiles(1), scene.tiles(1, 64, 3)):
        told = fast.attend(scene.query, scene.pages, [tiles], scene.blocks, look, scene.parts)
        assert relative(told, wanted) < (1e-6 if dtype == torch.float32 else 1e-3)
