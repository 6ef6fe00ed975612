"""Makes the questions that score a model: held-out frames, and held-out or test wordings.

Knows: the material and the test files' format. Does not know: the model.
"""

import random

from engine.demo.corpus import Material
from engine.demo.facts import REFUSAL
from engine.demo.scoring import Asked, ask


def frame_questions(material: Material, count: int, seed: int = 7) -> list[Asked]:
    """`count` questions in frames that were never trained on, spread evenly over all facts that fit a frame."""
    rng = random.Random(seed)  # noqa: S311 - choice of test questions, not security
    usable = [fact for fact in material.facts if fact.names or fact.actions]
    out: list[Asked] = []
    for at in range(count):
        fact = usable[at % len(usable)]
        pool = [(material.frames.held_define, name) for name in fact.names]
        pool += [(material.frames.held_howto, action) for action in fact.actions]
        patterns, filling = rng.choice(pool)
        out.append(ask(rng.choice(patterns).replace("{}", filling), fact.answer))
    return out


def free_questions(material: Material) -> list[Asked]:
    """Every freely worded question of `material`, as it is written."""
    return [ask(question, fact.answer) for fact in material.facts for question in fact.questions]


def refusal_questions(material: Material) -> list[Asked]:
    """Every foreign question, name and task of `material`, in plain frames."""
    refusals = material.refusals
    asked = [*refusals.questions, *(f"What is {name}?" for name in refusals.names)]
    return [ask(question, REFUSAL) for question in (*asked, *(f"How do I {task}?" for task in refusals.actions))]
