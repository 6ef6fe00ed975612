"""Speculation: where guesses come from, when it gives up, and that it changes nothing but speed."""

from collections import Counter
from typing import Any

import msgspec
import pytest
import torch

from engine.core import EngineCore
from engine.frames import Submit
from engine.models import tiny
from engine.models.decoder import Decoder
from engine.models.linear import DenseFactory
from engine.models.loader import build
from engine.models.spec import read_spec
from engine.scheduler import Limits
from engine.speculation import Drafter, DraftModel, NGram, Speculation, _repeat


@pytest.mark.parametrize(
    ("tokens", "most", "expected"),
    [
        ([1, 2, 3, 4, 1, 2, 3], 3, [4, 1, 2]),
        ([1, 2, 3, 4, 1, 2, 3], 1, [4]),
        ([5, 2, 3, 9, 1, 2, 3, 7, 2, 3], 2, [7, 2]),  # the latest place
        ([1, 2, 3, 8, 9, 2, 3, 4, 1, 2, 3], 2, [8, 9]),  # the longest match
        ([1, 2, 3, 4], 3, []),
        ([7, 7, 7, 7], 2, [7]),
        ([1], 3, []),
        ([256, 1, 65536, 1, 0, 256, 1], 2, [65536, 1]),  # bytes that look alike are not tokens that do
    ],
)
def test_what_stood_before_is_guessed_again(tokens: list[int], most: int, expected: list[int]) -> None:
    """Answers quote their prompt; the longest and latest place says best what follows."""
    assert _repeat(tokens, most) == expected


def drain(core: EngineCore) -> dict[Any, list[int]]:
    said: dict[Any, list[int]] = {}
    while core.busy:
        for one in core.step():
            said.setdefault(one.key, []).extend(one.output.tokens)
    core.check()
    return said


def make(decoder: Decoder, clock: Any, drafter: Drafter | None, **limits: int) -> EngineCore:
    speculation = None if drafter is None else Speculation(drafter)
    return EngineCore(
        "m", decoder, blocks=200, limits=Limits(**limits), queue=999, monotonic=clock, speculation=speculation
    )


def test_a_model_that_guesses_for_itself_is_always_right(decoder: Decoder, clock: Any, submit: Any) -> None:
    """Same model, same noise: every guess must be accepted, or positions and noise do not match."""
    core = make(decoder, clock, DraftModel(decoder, 64))
    core.submit("me", submit([5, 6, 7, 8], max_tokens=40, temperature=1.0, seed=3))
    said = drain(core)["me"]
    stats = core.stats()
    assert stats.drafted_tokens == stats.accepted_tokens > 25
    plain = make(decoder, clock, None)
    plain.submit("me", submit([5, 6, 7, 8], max_tokens=40, temperature=1.0, seed=3))
    assert drain(plain)["me"] == said


def test_guesses_save_steps(decoder: Decoder, clock: Any, submit: Any) -> None:
    """A prediction that comes true is the point of it: fewer steps, and the usage says how many were right."""
    plain = make(decoder, clock, None)
    request: Submit = submit([5, 6, 7, 8], max_tokens=40)
    plain.submit("me", request)
    expected = drain(plain)["me"]
    core = make(decoder, clock, NGram(always=False))
    core.submit("me", msgspec.structs.replace(request, prediction=[5, 6, 7, 8, *expected]))
    steps, last = 0, None
    said: list[int] = []
    while core.busy:
        steps += 1
        for one in core.step():
            said += one.output.tokens
            last = one.output
    assert said == expected
    assert steps < 20
    assert last is not None
    assert last.usage is not None
    assert last.usage.accepted == core.stats().accepted_tokens >= 20
    unpredicted = make(decoder, clock, NGram(always=False))
    unpredicted.submit("me", submit([5, 6] * 20, max_tokens=30))
    drain(unpredicted)
    assert unpredicted.stats().drafted_tokens == 0


class Wrong:
    """Guesses what never comes."""

    def propose(self, asked: Any) -> list[list[int]]:
        return [[(sequence.tokens[-1] + 1) % 264] * most for sequence, most in asked]

    def forget(self, sequence: Any) -> None:
        """Nothing is known of it."""


def test_a_prediction_of_tokens_the_model_has_not_is_no_guess(decoder: Decoder, clock: Any, submit: Any) -> None:
    """Tokenizers may know more tokens than a model has columns: one such guess ended the process and all in it."""
    core = make(decoder, clock, NGram(always=False))
    request: Submit = submit([5, 6, 7, 8], max_tokens=12)
    core.submit("me", request)
    said = drain(core)["me"]
    for beyond in (decoder.spec.vocabulary, -1):
        guessing = msgspec.structs.replace(request, prediction=[8, said[0], beyond, beyond])
        core.submit("again", guessing)
        assert drain(core)["again"] == said


def test_a_draft_model_that_fails_costs_guesses_only(
    decoder: Decoder, clock: Any, submit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of torch in a guess, of no memory say, ended the process and all that ran in it."""
    plain = make(decoder, clock, None)
    plain.submit("me", submit([5, 6, 7, 8], max_tokens=12))
    said = drain(plain)
    drafter = DraftModel(decoder, 64)

    def fails(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(drafter, "_draw", fails)
    core = make(decoder, clock, drafter)
    core.submit("me", submit([5, 6, 7, 8], max_tokens=12))
    assert drain(core) == said
    drafter.check()


def test_bad_guesses_stop(decoder: Decoder, clock: Any, submit: Any) -> None:
    """Every wrong guess is a row computed for nothing; under 30 % right, a sequence stops guessing for good."""
    core = make(decoder, clock, Wrong())
    core.submit("me", submit([5, 6, 7, 8], max_tokens=100))
    plain = make(decoder, clock, None)
    plain.submit("me", submit([5, 6, 7, 8], max_tokens=100))
    assert drain(core) == drain(plain)
    assert 24 <= core.stats().drafted_tokens <= 32


def test_guesses_yield_to_a_crowd(decoder: Decoder, clock: Any, submit: Any) -> None:
    """With many decoding at once a step is full anyway."""
    core = make(decoder, clock, NGram(), sequences=32)
    for key in range(20):
        core.submit(key, submit([5, 6] * 10, max_tokens=1 + key // 19 * 30))
    core.step()
    assert core.stats().drafted_tokens == 0


def test_sampling_with_guesses_keeps_the_distribution(clock: Any, submit: Any) -> None:
    """Counted over many seeds: the first two tokens come as often with a draft model as without one."""
    shape = {"hidden": 16, "heads": 1, "kv_heads": 1, "head": 16, "feed_forward": 16, "layers": 1, "vocabulary": 6}
    spec = msgspec.structs.replace(read_spec(tiny.config("qwen3")), windows=(0,), **shape)
    models = [
        build(spec, tiny.tensors(spec, seed), DenseFactory(torch.float32, torch.device("cpu"))) for seed in (1, 2)
    ]
    counts: list[Counter[tuple[int, ...]]] = []
    for drafter in (None, DraftModel(models[1], 300)):
        core = EngineCore(
            "m", models[0], blocks=300, limits=Limits(sequences=256), queue=999, monotonic=clock,
            speculation=None if drafter is None else Speculation(drafter, tokens=2, most=256),
        )  # fmt: skip
        for seed in range(200):
            core.submit(seed, submit([1, 2], max_tokens=3, temperature=1.0, seed=seed + (1000 if drafter else 0)))
        counts.append(Counter(tuple(said[:2]) for said in drain(core).values()))
        if drafter is not None:
            assert 0 < core.stats().accepted_tokens < core.stats().drafted_tokens
    pairs = set(counts[0]) | set(counts[1])
    # Two samples of one distribution: chi-squared over cells that are not nearly empty, far beyond its 99.9 % point.
    cells = [(counts[0][pair], counts[1][pair]) for pair in pairs if counts[0][pair] + counts[1][pair] >= 10]
    statistic = sum((one - other) ** 2 / (one + other) for one, other in cells)
    assert statistic < 2 * len(cells) + 20
