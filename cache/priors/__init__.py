"""Priors of the reuse boundary: the artefacts that ship beside this file, and how one is read.

Knows the file format (JSON, nothing executable), that a prior belongs to one encoder and one reader, and the reader's
file (safetensors, nothing executable either). Does not know how priors are
made (`cache.training`) or used (`policies.reuse.learned`).
"""

import hashlib
from importlib.resources import files
from pathlib import Path

import msgspec

from policies.reuse.prior import Prior

_LARGEST = 2 << 20


READER = "minilm-reader.safetensors"


class Unfit(Exception):
    """The file is no prior this version can use; the message says why and what to do."""


def shipped(encoder: str) -> Prior | None:
    """The prior for an encoder by its name or the digest of its weights, as `cache.encoder` writes them; else None.

    A scope without a prior shadows until its own labels suffice.
    """
    for file in sorted((files(__name__)).iterdir(), key=lambda item: item.name):
        if file.name.endswith(".json"):
            prior = _decode(file.read_bytes(), file.name)
            if prior.encoder and prior.encoder in encoder:
                return prior
    return None


def reader_artefact() -> bytes:
    """What makes a reader of two texts of the bundled encoder (`cache.reader`)."""
    return (files(__name__) / READER).read_bytes()


def digest(reader: bytes) -> str:
    """What a prior says which reader it was made with."""
    return hashlib.sha256(reader).hexdigest()[:12]


def read(path: Path) -> Prior:
    """The prior in `path`. Raises Unfit."""
    try:
        return _decode(path.read_bytes(), str(path))
    except OSError as error:
        raise Unfit(f"{path}: {error}") from error


def write(prior: Prior, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(prior), indent=1) + b"\n")


def _decode(data: bytes, name: str) -> Prior:
    if len(data) > _LARGEST:
        raise Unfit(f"{name}: larger than any prior")
    try:
        return msgspec.json.decode(data, type=Prior)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise Unfit(f"{name}: {error}. Make it again with python -m cache.training.") from error
