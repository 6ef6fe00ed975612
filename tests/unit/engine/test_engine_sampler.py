"""From logits to tokens: each knob does what it says, and randomness is a function of its key."""

from typing import Any

import pytest
import torch

from engine.api import SamplingParams
from engine.sampler import Row, gumbel, sample

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
PROBABILITIES = LOGITS.softmax(-1)


def row(seed: int = 1, position: int = 0, generated: list[int] | None = None, **sampling: Any) -> Row:
    return Row(SamplingParams(max_tokens=1, **sampling), seed, position, generated or [])


def one(logits: torch.Tensor = LOGITS, **changes: Any) -> int:
    token = sample(logits[None], [row(**changes)])[0].token
    assert token is not None
    return token


def draws(count: int = 4000, logits: torch.Tensor = LOGITS, **sampling: Any) -> torch.Tensor:
    """How often each token was drawn, as parts of one."""
    rows = [row(position=at, **sampling) for at in range(count)]
    picks = sample(logits.expand(count, -1), rows)
    return torch.bincount(torch.tensor([pick.token for pick in picks]), minlength=len(logits)) / count


def test_greedy_takes_the_likeliest() -> None:
    """Temperature 0, and anything so cold that dividing by it would overflow."""
    assert one(temperature=0.0) == one(temperature=1e-9) == 0


def test_plain_sampling_follows_the_distribution() -> None:
    """Gumbel noise must draw exactly from the softmax, at any temperature."""
    for temperature in (0.5, 1.0, 2.0):
        expected = (LOGITS / temperature).softmax(-1)
        assert torch.allclose(draws(temperature=temperature), expected, atol=0.03)


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        ({"top_k": 2}, 2),
        ({"top_k": 1}, 1),
        ({"top_k": 100}, 6),
        ({"top_k": -1}, 6),
        ({"top_p": 0.0}, 1),
        ({"top_p": float(PROBABILITIES[0]) - 0.01}, 1),
        ({"top_p": float(PROBABILITIES[0]) + 0.01}, 2),
        ({"top_p": 1.0}, 6),
        ({"min_p": 1.0}, 1),
        ({"min_p": float(PROBABILITIES[2] / PROBABILITIES[0]) - 0.01}, 3),
        ({"top_k": 3, "top_p": 0.9, "min_p": 0.3}, 2),
    ],
)
def test_filters_keep_the_likely_and_their_proportions(sampling: dict[str, Any], allowed: int) -> None:
    """Everything outside is impossible; what remains keeps its relative weight."""
    kept = PROBABILITIES[:allowed] / PROBABILITIES[:allowed].sum()
    found = draws(temperature=1.0, **sampling)
    assert found[allowed:].sum() == 0
    assert torch.allclose(found[:allowed], kept, atol=0.03)


def test_filters_of_one_row_leave_others_alone() -> None:
    """All rows go through one sort; each must be cut at its own place."""
    rows = [row(position=9, top_k=1), row(position=9), row(position=9, top_p=0.0)]
    picks = sample(LOGITS.expand(3, -1), rows)
    assert picks[0].token == picks[2].token == 0
    assert picks[1].token == one(position=9)


def test_penalties_count_what_was_generated() -> None:
    """Presence once, frequency each time; the prompt is not looked at."""
    assert one(temperature=0.0, generated=[0], presence_penalty=0.9) == 0
    assert one(temperature=0.0, generated=[0], presence_penalty=1.1) == 1
    assert one(temperature=0.0, generated=[0, 0], frequency_penalty=0.6) == 1
    assert one(temperature=0.0, generated=[0], frequency_penalty=0.6) == 0
    assert one(temperature=0.0, generated=[4, 4], frequency_penalty=-2.0) == 4


def test_bias_bans_and_forces() -> None:
    """OpenAI's -100 and 100."""
    assert one(temperature=0.0, logit_bias={0: -100.0}) == 1
    assert draws(200, temperature=1.0, logit_bias={5: 100.0})[5] == 1


def test_logprobs_are_the_models_own() -> None:
    """Not changed by temperature, bias or penalties: a judge of certainty needs what the model thought."""
    [pick] = sample(LOGITS[None], [row(temperature=0.0, logprobs=3, logit_bias={4: 100.0})])
    assert pick.token == 4
    assert pick.choice is not None
    expected = LOGITS.log_softmax(-1)
    assert pick.choice.logprob == pytest.approx(float(expected[4]))
    assert [token for token, _ in pick.choice.top] == [0, 1, 2]
    assert [value for _, value in pick.choice.top] == pytest.approx(expected[:3].tolist())


def test_equally_likely_alternatives_come_in_the_order_of_their_ids() -> None:
    """In bfloat16 many are equal, and `topk` names some of them: others in another batch, and not the token chosen."""
    torch.manual_seed(0)
    rows = [(torch.randn(300) * 2).round() for _ in range(8)]
    for at, logits in enumerate(rows):
        right = sorted(range(300), key=lambda token: (-float(logits[token]), token))
        for most in (1, 4, 20):
            [alone] = sample(logits[None], [row(temperature=0.0, logprobs=most)])
            company = [row(temperature=0.0, logprobs=other) for other in (0, 2, 7, 1, 20, 3, 5, 4)]
            company[at] = row(temperature=0.0, logprobs=most)
            beside = sample(torch.stack(rows), company)[at]
            assert alone.choice == beside.choice
            assert alone.choice is not None
            assert [token for token, _ in alone.choice.top] == right[:most]
            assert alone.token == right[0]


def test_rows_that_are_not_finite_fail_alone() -> None:
    """A token made from nonsense would look like an answer."""
    logits = torch.stack([LOGITS, LOGITS * float("nan"), LOGITS])
    assert [pick.token for pick in sample(logits, [row(temperature=0.0)] * 3)] == [0, None, 0]


def test_noise_is_a_function_of_its_key() -> None:
    """Not of the batch, the order or the size of the vocabulary."""
    keys = [(5, 0), (5, 1), (6, 0), (2**63, 2**20)]
    together = gumbel(keys, 500)
    for at, key in enumerate(keys):
        assert torch.equal(gumbel([key], 500)[0], together[at])
        assert torch.equal(gumbel([key], 300)[0], together[at, :300])
    assert len({tuple(line[:5].tolist()) for line in together}) == len(keys)


def test_noise_is_gumbel_and_uncorrelated() -> None:
    """Neighbouring seeds, positions and tokens must look independent, or samples of one request would be alike."""
    noise = gumbel([(seed, position) for seed in range(20) for position in range(20)], 400)
    assert torch.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772, abs=0.02)
    assert noise.var() == pytest.approx(1.6449, abs=0.05)
    for first, second in ((noise[:-1], noise[1:]), (noise[:, :-1], noise[:, 1:]), (noise[:-20], noise[20:])):
        pair = torch.stack([first.flatten(), second.flatten()])
        assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.02
