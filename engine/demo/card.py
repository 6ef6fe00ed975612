"""Writes `card.json` and `CARD.md` from a fresh evaluation: `python -m engine.demo.card [--date D] [--minutes M]`.

Knows: what the card must say, the thresholds. Does not know: how to make a score better.
"""

import argparse
import hashlib
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Final

import torch
from msgspec import Struct, json
from safetensors import safe_open

from engine.demo.corpus import Material, load_material
from engine.demo.evaluate import TEST, Score, evaluate
from engine.demo.facts import DATA, FOLDER
from engine.demo.train import Recipe

WEIGHTS: Final = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
PAGE: Final = (FOLDER / "card_page.txt").read_text(encoding="utf-8")
THRESHOLDS: Final = {"unseen_frames": 0.97, "free_wordings": 0.85, "refusals": 0.95}


class Card(Struct, frozen=True):
    """What the shipped files are, where they come from and how well they do."""

    name: str
    licence: str
    architecture: str
    parameters: int
    date: str
    recipe: Recipe
    training_minutes: float
    torch: str
    transformers: str
    files: dict[str, str]
    bytes: dict[str, int]
    data: dict[str, int]
    data_sha256: str
    test_sha256: str
    thresholds: dict[str, float]
    missed: list[str]
    scores: dict[str, Score]


def sha256(path: Path) -> str:
    """The file's digest in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def data_digest() -> str:
    """One digest over the names and contents of all training data."""
    told = hashlib.sha256()
    for path in sorted(DATA.glob("*.txt")):
        told.update(f"{path.name} {sha256(path)}\n".encode())
    return told.hexdigest()


def data_counts(material: Material) -> dict[str, int]:
    """How much the project wrote, by kind."""
    facts, refusals, frames = material.facts, material.refusals, material.frames
    return {
        "facts": len(facts),
        "free_questions": sum(len(fact.questions) for fact in facts),
        "names": sum(len(fact.names) for fact in facts),
        "actions": sum(len(fact.actions) for fact in facts),
        "frames": len(frames.define) + len(frames.howto),
        "held_out_frames": len(frames.held_define) + len(frames.held_howto),
        "refused_names": len(refusals.names),
        "refused_actions": len(refusals.actions),
        "refused_questions": len(refusals.questions),
    }


def make_card(folder: Path, date: str, minutes: float) -> Card:
    """Evaluates `folder` and gathers everything the card states."""
    scores = evaluate(folder)
    with safe_open(folder / "model.safetensors", framework="pt") as tensors:
        count = sum(tensors.get_tensor(name).numel() for name in tensors.keys())  # noqa: SIM118 - no mapping
    return Card(
        name="nearhit demo model",
        licence="Apache-2.0",
        architecture="Qwen3ForCausalLM",
        parameters=count,
        date=date,
        recipe=Recipe(),
        training_minutes=minutes,
        torch=str(torch.__version__),
        transformers=version("transformers"),
        files={name: sha256(folder / name) for name in WEIGHTS},
        bytes={name: (folder / name).stat().st_size for name in WEIGHTS},
        data=data_counts(load_material()),
        data_sha256=data_digest(),
        test_sha256=sha256(TEST),
        thresholds=THRESHOLDS,
        missed=[name for name, least in THRESHOLDS.items() if scores[name].share < least],
        scores=scores,
    )


def page(card: Card) -> str:
    """The card as a page for people."""
    rows = "\n".join(
        f"| {name.replace('_', ' ')} | {score.right} of {score.asked} | {score.share:.1%} "
        f"| {format(card.thresholds[name], '.0%') if name in card.thresholds else ''} |"
        for name, score in card.scores.items()
    )
    data = card.data
    verdict = "Missed: " + ", ".join(card.missed) + "." if card.missed else "All wanted scores are met."
    return PAGE.format(
        card=card,
        data=data,
        megabytes=sum(card.bytes.values()) / 1e6,
        rows=rows,
        verdict=verdict,
        stages=" and ".join(f"{stage.steps:,}" for stage in card.recipe.stages),
    )


def main() -> None:
    """Evaluates the shipped folder and rewrites both cards."""
    asks = argparse.ArgumentParser(description="Measure the demo model and write its card.")
    asks.add_argument("--date", default=datetime.now(UTC).date().isoformat())  # noqa: TID251 - a card carries its date
    asks.add_argument("--minutes", type=float, required=True, help="how long the training took")
    given = asks.parse_args()
    card = make_card(FOLDER, given.date, given.minutes)
    (FOLDER / "card.json").write_bytes(json.format(json.encode(card), indent=2) + b"\n")
    (FOLDER / "CARD.md").write_text(page(card), encoding="utf-8")
    print(json.encode(card.scores).decode())  # noqa: T201 - the result


if __name__ == "__main__":
    main()
