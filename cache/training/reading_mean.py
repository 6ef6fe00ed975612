"""`python -m cache.training.reading_mean OUT FILE=SHARE FILE=SHARE …`: the mean of readers that come from one another.

Readers taught one after the other lie in one basin, and the mean of their weights ranks better than each of them, at
no cost when it reads (Wortsman et al. 2022, arXiv:2203.05482). What an older one has not (marks, a head for them) is
zero there, as where it was learned from. Knows artefacts as `cache.training.reading` writes them, of one rank. Does not
know how well the mean reads.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor


def mean(readers: Sequence[tuple[Mapping[str, Tensor], float]]) -> dict[str, Tensor]:
    """Of (artefact, share) pairs, in half precision. Raises ValueError where one has another shape, or no share."""
    total = sum(share for _, share in readers)
    if total <= 0.0 or min(share for _, share in readers) < 0.0:
        raise ValueError("shares must be above nothing")
    found: dict[str, Tensor] = {}
    for held, share in readers:
        for name, tensor in held.items():
            part = tensor.float() * (share / total)
            if name in found and found[name].shape != part.shape:
                raise ValueError(f"{name}: {tuple(found[name].shape)} in one, {tuple(part.shape)} in another")
            found[name] = found[name] + part if name in found else part
    return {name: tensor.to(torch.float16).contiguous() for name, tensor in found.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 written, 1 the files cannot be used (the message says why), 2 usage."""
    parser = argparse.ArgumentParser(prog="python -m cache.training.reading_mean", description="Mix readers.")
    parser.add_argument("out", type=Path)
    parser.add_argument("readers", nargs="+", metavar="FILE=SHARE")
    options = parser.parse_args(arguments)
    readers: list[tuple[dict[str, Tensor], float]] = []
    try:
        for given in options.readers:
            path, _, share = str(given).rpartition("=")
            readers.append((load_file(path), float(share)))
        made = mean(readers)
    except (OSError, SafetensorError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    options.out.write_bytes(save(made))
    sys.stdout.write(f"{options.out}: {options.out.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
