"""`python -m cache.training.reading`: teach the bundled encoder to read two texts together (`cache.reader`).

Learns from groups of the project's own writing (`data/groups/*.jsonl`): a wording, three or four others for which the
same answer is right, four near misses; and from pairs of its own (`--pairs`: a, b, label, tag by tabs). What is learned
are low-rank changes of every layer, its biases and norms, and a small head, by cross-entropy. By the times of its
passes seven hours of one core. The same seed gives the same file but for what threads round otherwise. What ships is
the mean of some of its passes (`cache.training.reading_mean`).
Knows the data and the recipe. Does not know what a reading is used for.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import torch
from msgspec import Struct
from safetensors.torch import load_file, save
from tokenizers import Tokenizer
from torch.nn.functional import binary_cross_entropy_with_logits

from cache import priors, weights
from cache.bench.data import Unreadable, read_pairs
from cache.bench.vectors import Embedder
from cache.training.reading_form import Reader, artefact, restore
from cache.training.reading_left import Labelled, Remaining, Texts

_BATCH, _SORTED = 32, 1_024
_CLIP = 1.0


class Group(Struct, frozen=True):
    """`base` and `same` share an answer; `other`: (kind, wording) that share it with none of them."""

    base: str
    same: list[str]
    other: list[tuple[str, str]]

    def pairs(self) -> tuple[list[Texts], list[Texts]]:
        """All that are alike, and all that are not."""
        texts = [self.base, *self.same]
        alike = [(texts[i], texts[j]) for i in range(len(texts)) for j in range(i)]
        return alike, [(wording, text) for _, wording in self.other for text in texts]


class Pass(Struct, frozen=True, kw_only=True):
    """Once through the recipe: `files` of groups (empty: all), so many `alike` and `unlike` pairs of each per epoch,
    near ones oftener where `chosen`; `left`: of those that rules leave to the reader (`cache.training.reading_left`).
    `smooth`: how far labels are taken from certain; `weighed`: how much more a near miss counts, the more it is taken
    for the same. A file named twice is gone through twice."""

    files: tuple[str, ...] = ()
    epochs: int
    rate: float
    alike: int
    unlike: int
    chosen: bool = False
    left: bool = False
    smooth: float = 0.0
    weighed: float = 0.0
    drop: float = 0.1
    decay: float = 0.01


# Groups by other authors, from which nothing is learned here: they chose the bounds, and teach the prior.
UNSEEN = ("w16", "w17", "w18", "w25", "w32")
_FIRST = ("w1", "w2", "w5", "w6", "w7")
_SECOND = (*_FIRST, "w3", "w4", "w8", "w9", "w10", "w12")
_THIRD = (*_SECOND, "w11", "w13", "w14", "w15")
_FOURTH = (*_THIRD, "w19", "w20", "w21", "w22", "w23", "w24")
_FIFTH = (*_FOURTH, "roles")
_SIXTH = (*_FIFTH, "w26", "w27", "w28", "w29", "w30")
_EXCHANGED = ("w34", "w35", "w36", "w37")
_SEVENTH = (*_SIXTH, "roles", "roles", *_EXCHANGED, *_EXCHANGED)
_EIGHTH = (*_SIXTH, *_EXCHANGED)
_NINTH = (*_EIGHTH, *("w41", "w43", "w44", "w45") * 2)
_BEFORE = (*_EIGHTH, "w41", "w43", "w44", "w45")
_TENTH = ("w48", "w49", "w51")
_ELEVENTH = (*_TENTH, "w54", "w55", "w56", "w57", "w58", "w59")
_TWELFTH = ("w60", "w61", "w62", "w63", "w64", "w65")
# Each goes on from the one before, when more had been written; of the eighth and ninth only a half and a third of the
# groups up to w24. The tenth and the eleventh both went on from the mean that shipped, the twelfth from the tenth; of
# older groups they had a third, a tenth (of those up to w24) and a fourteenth. The last went on from the mean of that
# mean, the eleventh and the twelfth, with 350 other groups (docs/decisions.md).
RECIPE = (
    Pass(files=_FIRST, epochs=3, rate=1e-3, alike=5, unlike=7),
    Pass(files=_SECOND, epochs=2, rate=7e-4, alike=4, unlike=6, chosen=True, smooth=0.02),
    Pass(files=_THIRD, epochs=1, rate=6e-4, alike=5, unlike=8, chosen=True, smooth=0.02),
    Pass(files=_FOURTH, epochs=2, rate=7e-4, alike=4, unlike=5, chosen=True, smooth=0.02),
    Pass(files=_FIFTH, epochs=4, rate=4e-4, alike=10, unlike=10, left=True, smooth=0.02),
    Pass(files=_SIXTH, epochs=3, rate=5e-4, alike=5, unlike=9, left=True),
    Pass(files=_SEVENTH, epochs=2, rate=5e-4, alike=5, unlike=9, left=True, weighed=1.0),
    Pass(files=_EIGHTH, epochs=1, rate=3e-4, alike=5, unlike=9, left=True, weighed=1.0),
    Pass(files=_NINTH, epochs=1, rate=4e-4, alike=5, unlike=9, left=True, weighed=1.0),
    Pass(files=(*_BEFORE, *_TENTH * 2), epochs=1, rate=4e-4, alike=5, unlike=9, left=True, weighed=1.0),
    Pass(files=(*_BEFORE, *_ELEVENTH * 2), epochs=1, rate=4e-4, alike=5, unlike=9, left=True, weighed=1.0),
    Pass(files=(*_BEFORE, *_TWELFTH), epochs=1, rate=3.5e-4, alike=5, unlike=9, left=True, weighed=1.0),
    Pass(files=(*_BEFORE, *("w66",) * 3), epochs=1, rate=2e-4, alike=5, unlike=9, left=True, weighed=1.0),
)
RANK = 16


def groups(names: Sequence[str] = ()) -> list[Group]:
    """Those of the named files, as often as each is named; without names all."""
    folder = files("cache.training") / "data" / "groups"
    found: list[Group] = []
    for file in sorted(folder.iterdir(), key=lambda item: item.name):
        times = names.count(file.name.removesuffix(".jsonl")) if names else 1
        if file.name.endswith(".jsonl") and times:
            lines = file.read_bytes().splitlines()
            found += [msgspec.json.decode(line, type=Group) for line in lines if line.strip()] * times
    return found


class Sampler:
    """An epoch's pairs. Near ones are chosen oftener, since far ones are no question to a cache."""

    def __init__(self, held: Sequence[Group], pairs: Sequence[Labelled], embedder: Embedder | None, seed: int) -> None:
        self._groups = [group.pairs() for group in held]
        self._pairs = pairs
        self._drawn = random.Random(seed)  # noqa: S311 - which pairs an epoch has
        self._cosines: dict[Texts, float] = {}
        if embedder is not None:
            every = [pair for alike, unlike in self._groups for pair in (*alike, *unlike)]
            first, second = (embedder.embed([pair[side] for pair in every]) for side in (0, 1))
            self._cosines = dict(zip(every, (first * second).sum(axis=1).tolist(), strict=True))

    def epoch(self, alike: int, unlike: int) -> list[Labelled]:
        """In random order, each pair in either direction."""
        found = list(self._pairs)
        for good, bad in self._groups:
            found += [(pair, True) for pair in self._chosen(good, alike)]
            found += [(pair, False) for pair in self._chosen(bad, unlike)]
        self._drawn.shuffle(found)
        return [((b, a) if self._drawn.random() < 0.5 else (a, b), same) for (a, b), same in found]

    def _chosen(self, pairs: Sequence[Texts], count: int) -> list[Texts]:
        """Without replacement, by weight (Efraimidis and Spirakis 2006)."""
        keys = [self._drawn.random() ** (1.0 / self._weight(pair)) for pair in pairs]
        return [pairs[i] for i in np.argsort(keys)[::-1][:count]]

    def _weight(self, pair: Texts) -> float:
        cosine = self._cosines.get(pair, 0.8)
        return 3.0 if cosine >= 0.85 else 1.5 if cosine >= 0.7 else 0.5


class Batches:
    """Pairs as token ids, pairs of like length beside each other."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._drawn = random.Random(0)  # noqa: S311 - the order of batches

    def of(self, pairs: Sequence[Labelled]) -> Iterator[tuple[list[tuple[list[int], list[int]]], torch.Tensor]]:
        made = self._tokenizer.encode_batch([texts for texts, _ in pairs])
        for start in range(0, len(pairs), _SORTED):
            order = sorted(range(start, min(start + _SORTED, len(pairs))), key=lambda i: len(made[i].ids))
            batches = [order[at : at + _BATCH] for at in range(0, len(order), _BATCH)]
            self._drawn.shuffle(batches)
            for chosen in batches:
                rows = [(made[i].ids, made[i].type_ids) for i in chosen]
                yield rows, torch.tensor([float(pairs[i][1]) for i in chosen])


class Samples(Protocol):
    """What an epoch is made of."""

    def epoch(self, alike: int, unlike: int) -> list[Labelled]: ...


def samples(plan: Pass, pairs: Sequence[Labelled], embedder: Embedder, seed: int) -> Samples:
    """The pairs of one pass of the recipe, and the given ones besides."""
    held = groups(plan.files)
    if not plan.left:
        return Sampler(held, pairs, embedder if plan.chosen else None, seed)
    whole = [
        [(texts, same) for kind, same in zip(group.pairs(), (True, False), strict=True) for texts in kind]
        for group in held
    ]
    return Remaining([*whole, *([pair] for pair in pairs)], embedder, seed)


def weight(said: torch.Tensor, same: torch.Tensor, weighed: float) -> torch.Tensor:
    """What each pair counts in the loss: 1, near misses `weighed` / 2 less to as much more, by what is said of them.

    They are few among the pairs, and those that are taken for the same are what a cache gets wrong.
    """
    missed = 1.0 + weighed * (torch.sigmoid(said) - 0.5)
    return torch.where(same > 0.5, torch.ones_like(said), missed)


def teach(reader: Reader, sampler: Samples, batches: Batches, plan: Pass) -> None:
    """One pass of the recipe; tells how it goes on standard error."""
    steps = plan.epochs * len(list(batches.of(sampler.epoch(plan.alike, plan.unlike))))
    learned = [parameter for parameter in reader.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=plan.rate, weight_decay=plan.decay, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100) * max(0.02, 1.0 - step / steps)
    )
    began, done, loss_of_late = time.monotonic(), 0, 0.0
    reader.train()
    for _ in range(plan.epochs):
        for rows, same in batches.of(sampler.epoch(plan.alike, plan.unlike)):
            said = reader(rows, plan.drop)  # in float32: a core without bfloat16 of its own takes eight times as long
            wanted = same * (1.0 - 2.0 * plan.smooth) + plan.smooth
            loss = binary_cross_entropy_with_logits(said, wanted, weight=weight(said.detach(), same, plan.weighed))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learned, _CLIP)
            optimizer.step()
            schedule.step()
            done, loss_of_late = done + 1, 0.98 * loss_of_late + 0.02 * loss.item()
            if done % 100 == 0:
                sys.stderr.write(f"{done}/{steps} loss {loss_of_late:.3f} {time.monotonic() - began:.0f} s\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit codes: 0 written, 1 the data cannot be used (the message says why), 2 usage."""
    parser = argparse.ArgumentParser(prog="python -m cache.training.reading", description="Teach the reader.")
    parser.add_argument("--pairs", type=Path, nargs="*", default=[], help="files of labelled pairs to learn from too")
    parser.add_argument("--from", type=Path, dest="held", help="go on from this file: only the recipe's last pass")
    parser.add_argument("--out", type=Path, help="file to write; default: beside cache/priors")
    parser.add_argument("--cache", type=Path, required=True, help="folder that keeps embeddings")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    out: Path = options.out or Path(priors.__file__).parent / priors.READER
    try:
        pairs = [((pair.a, pair.b), pair.same) for path in options.pairs for pair in read_pairs(path)]
    except Unreadable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    folder = weights.locate(weights.BUNDLED).folder
    torch.manual_seed(options.seed)
    reader = Reader(load_file(folder / "model.safetensors"), RANK)
    if options.held:
        restore(reader, load_file(options.held))
    embedder, batches = Embedder(options.cache), Batches(folder)
    for plan in RECIPE[-1:] if options.held else RECIPE:
        teach(reader, samples(plan, pairs, embedder, options.seed), batches, plan)
    out.write_bytes(save(artefact(reader)))
    sys.stdout.write(f"{out}: {out.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
