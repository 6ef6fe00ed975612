"""The tensors of a model folder, under the names the decoder knows, checked before any is read.

Knows: safetensors files, shards, the prefixes that writers put before names. Does not know: pickled weights (never
opened), what the tensors are for.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.api import EngineError
from engine.models.layout import EMBED, shapes
from engine.models.spec import Spec

_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")
_UNSEEN = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class BadCheckpoint(EngineError):
    """The weights do not match the configuration. The message names the tensor or file."""


class Shards(Mapping[str, Tensor]):
    """All tensors of a folder's safetensors files, read one by one when asked for."""

    def __init__(self, where: dict[str, Any]) -> None:
        self._where = where

    def __getitem__(self, name: str) -> Tensor:
        return self._where[name].get_tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._where[name].get_slice(name).get_shape())

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


@contextmanager
def open_folder(folder: Path) -> Generator[Shards, None, None]:
    """The tensors of `model.safetensors`, or of the shards named by `model.safetensors.index.json`.

    Raises BadCheckpoint.
    """
    where: dict[str, Any] = {}
    with ExitStack() as stack:
        for file in _files(folder):
            try:
                opened = stack.enter_context(safe_open(str(file), framework="pt"))
            except (SafetensorError, OSError) as error:
                raise BadCheckpoint(f"{file}: {error}") from error
            for name in opened.keys():  # noqa: SIM118  (not a mapping: it has keys() only)
                if name in where:
                    raise BadCheckpoint(f"{file}: tensor {name} is also in another file.")
                where[name] = opened
        yield Shards(where)


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            shards = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
        except (msgspec.MsgspecError, RecursionError, OSError) as error:
            raise BadCheckpoint(f"{index}: {error}") from error
        names = sorted(set(shards.values()))
        if any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
            raise BadCheckpoint(f"{index}: shards must lie in the same folder and be safetensors files.")
        return [folder / name for name in names]
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    pickles = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    found = f" {', '.join(pickles[:3])} is not read: loading a pickle runs what is in it." if pickles else ""
    raise BadCheckpoint(f"{folder}: neither model.safetensors nor model.safetensors.index.json.{found}")


class Checked:
    """Tensors whose names and shapes are exactly those of `spec`. Raises BadCheckpoint where they are not."""

    def __init__(self, spec: Spec, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._actual = _rename(spec, tensors)
        wanted = shapes(spec)
        for name, shape in wanted.items():
            if name not in self._actual:
                raise BadCheckpoint(f"Tensor {name} is missing.")
            found = self._shape(self._actual[name])
            if found != shape:
                raise BadCheckpoint(f"Tensor {name} has shape {found}, the configuration says {shape}.")
        # Some writers store a tied head twice, and old ones store rotary tables; anything else is a mistake.
        left = {name for name in self._actual if name not in wanted and not name.endswith("rotary_emb.inv_freq")}
        if spec.tied:
            left.discard("lm_head.weight")
        if left:
            shown = ", ".join(sorted(left)[:5])
            raise BadCheckpoint(f"{len(left)} tensors were not used, among them: {shown}.")

    def _shape(self, name: str) -> tuple[int, ...]:
        tensors = self._tensors
        return tensors.shape(name) if isinstance(tensors, Shards) else tuple(tensors[name].shape)

    def __getitem__(self, name: str) -> Tensor:
        """Raises BadCheckpoint for numbers that are not plain floating point."""
        tensor = self._tensors[self._actual[name]]
        if tensor.dtype not in _FLOATS:
            raise BadCheckpoint(f"Tensor {name} has type {str(tensor.dtype).removeprefix('torch.')}: is it quantized?")
        return tensor


def _rename(spec: Spec, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Name as in `layout` -> name in the file. What has no such name keeps its own."""
    inner = f"{EMBED}.weight".removeprefix("model.")
    prefix = next((prefix for prefix in _PREFIXES if prefix + inner in tensors), "model.")
    found: dict[str, str] = {}
    for name in tensors:
        if spec.nested and name.startswith(_UNSEEN):
            continue
        if name.endswith("lm_head.weight") and name in ("lm_head.weight", "language_model.lm_head.weight"):
            found["lm_head.weight"] = name
        elif name.startswith(prefix):
            found["model." + name.removeprefix(prefix)] = name
        else:
            found[name] = name
    return found
