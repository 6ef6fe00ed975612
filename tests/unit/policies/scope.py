"""A scope of made-up traffic for learning policies: questions about topics, a judge who knows the topic."""

import random
from collections.abc import Iterator

from policies.reuse import Neighbour

VERBS = ("reset", "renew", "cancel", "track", "change", "print", "freeze", "verify", "upload", "rename")
THINGS = ("password", "invoice", "parcel", "licence", "address", "ticket", "account", "photo", "printer", "report")


def asked(number: int) -> str:
    return f"How do I {VERBS[number % 10]} my {THINGS[number // 10 % 10]}?"


def reworded(number: int) -> str:
    return f"Please tell me how I can {VERBS[number % 10]} my {THINGS[number // 10 % 10]}"


def traffic(seed: int, *, right: float, count: int) -> Iterator[tuple[str, Neighbour, bool]]:
    """A question, its nearest kept text at a cosine that says little, and whether that one's answer is right.

    Whoever read both texts took them for alike, so that the boundary itself must tell them apart.
    """
    drawn = random.Random(seed)
    for i in range(count):
        number = drawn.randrange(100)
        same = drawn.random() < right
        kept = reworded(number) if same else asked((number + 1) % 100)
        near = Neighbour(entry_id=i % 50, text=kept, similarity=drawn.uniform(0.85, 0.99), reading=9.0)
        yield asked(number), near, same
