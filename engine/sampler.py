"""From logits to one token per row: penalties, bias, temperature, min-p, top-k, top-p, and reproducible noise.

Knows: logits, sampling parameters, what a row has generated so far. Does not know: text, scheduling, other requests.

A row's noise is a pure function of (seed, position, token id), so the same request draws the same tokens in any batch,
after a preemption and after a restart. Adding Gumbel noise to log probabilities and taking the maximum draws exactly
from the distribution (Gumbel 1954; Maddison et al., arXiv 1411.0030).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from engine.api import SamplingParams
from engine.frames import Choice

GREEDY_BELOW = 1e-4  # colder than this is greedy: dividing by less would overflow float32
_MASK = 0xFFFFFFFF
_NEVER = float("-inf")


class Row(NamedTuple):
    """What the sampler must know about one sequence. `position`: index of the token to be drawn.

    `generated` may be empty when there is no penalty.
    """

    sampling: SamplingParams
    seed: int
    position: int
    generated: list[int]


class Pick(NamedTuple):
    """`token` is None when the row's logits were not finite: the request must fail, its neighbours need not."""

    token: int | None
    choice: Choice | None


@torch.inference_mode()
def sample(logits: Tensor, rows: list[Row]) -> list[Pick]:
    """One pick per row of `logits` [rows, V] (float32). Log probabilities are the model's own, before any change."""
    logits = logits[: len(rows)]
    finite = torch.isfinite(logits).all(-1).tolist()
    adjusted = _adjust(logits, rows)
    tokens = adjusted.argmax(-1)
    drawn = [at for at, row in enumerate(rows) if row.sampling.temperature >= GREEDY_BELOW]
    if drawn:
        chosen = [rows[at] for at in drawn]
        tokens[drawn] = _draw(adjusted[drawn], chosen)
    picked: list[int] = tokens.tolist()
    return [
        Pick(token, _choice(logits[at], token, row.sampling.logprobs)) if finite[at] else Pick(None, None)
        for at, (token, row) in enumerate(zip(picked, rows, strict=True))
    ]


def _adjust(logits: Tensor, rows: list[Row]) -> Tensor:
    """Penalties count generated tokens only, as OpenAI defines them: presence once, frequency each time. Then bias."""
    changed: Tensor | None = None
    for at, (sampling, _, _, generated) in enumerate(rows):
        penalised = generated and (sampling.presence_penalty or sampling.frequency_penalty)
        if not penalised and not sampling.logit_bias:
            continue
        changed = logits.clone() if changed is None else changed
        if penalised:
            seen, counts = torch.tensor(generated).unique(return_counts=True)
            changed[at, seen] -= sampling.presence_penalty + sampling.frequency_penalty * counts
        if sampling.logit_bias:
            changed[at, list(sampling.logit_bias)] += torch.tensor(list(sampling.logit_bias.values()))
    return logits if changed is None else changed


def _draw(logits: Tensor, rows: list[Row]) -> Tensor:
    """Token ids [rows]."""
    scaled = logits / torch.tensor([[row.sampling.temperature] for row in rows])
    scaled = _filter(scaled, [row.sampling for row in rows])
    return (scaled.double() + gumbel([(row.seed, row.position) for row in rows], logits.shape[1])).argmax(-1)


def _filter(scaled: Tensor, samplings: list[SamplingParams]) -> Tensor:
    """Rule out all but the likely tokens: min-p first, then top-k, then top-p. The likeliest token always stays."""
    if any(s.min_p > 0 for s in samplings):
        floor = torch.tensor([[s.min_p] for s in samplings]).log() + scaled.max(-1, keepdim=True).values
        scaled = scaled.masked_fill(scaled < floor, _NEVER)
    if all(s.top_k == 0 and s.top_p >= 1 for s in samplings):
        return scaled
    vocabulary = scaled.shape[1]
    ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
    place = torch.arange(vocabulary)
    ordered = ordered.masked_fill(place >= torch.tensor([[s.top_k or vocabulary] for s in samplings]), _NEVER)
    before = ordered.softmax(-1).cumsum(-1).roll(1, -1)  # probability of all likelier tokens
    out = before >= torch.tensor([[s.top_p if s.top_p < 1 else 2.0] for s in samplings])
    out[:, 0] = False
    ordered = ordered.masked_fill(out, _NEVER)
    return torch.empty_like(scaled).scatter_(-1, order, ordered)


def _choice(logits: Tensor, token: int, wanted: int | None) -> Choice | None:
    if wanted is None:
        return None
    logprobs = logits.log_softmax(-1)
    values, ids = logprobs.topk(min(wanted, len(logprobs)))
    return Choice(float(logprobs[token]), list(zip(ids.tolist(), values.tolist(), strict=True)))


def gumbel(keys: list[tuple[int, int]], vocabulary: int) -> Tensor:
    """Standard Gumbel noise [keys, vocabulary] (float64): a function of (seed, position) and token id alone."""
    words = torch.tensor([_words(seed, position) for seed, position in keys], dtype=torch.int64)
    mixed = _scramble(torch.arange(vocabulary, dtype=torch.int64) * 0x9E3779B1 & _MASK ^ words[:, :1])
    mixed = _scramble(mixed ^ words[:, 1:])
    uniform = (mixed.double() + 0.5) / 2**32  # never 0 or 1
    return -(-uniform.log()).log()


def _words(seed: int, position: int) -> tuple[int, int]:
    """Two 32-bit words from a seed and a position (splitmix64's finalizer, Steele et al. 2014)."""
    mask = 0xFFFFFFFFFFFFFFFF
    z = (seed + (position + 1) * 0x9E3779B97F4A7C15) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    z ^= z >> 31
    return z >> 32, z & _MASK


def _scramble(x: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finalizer, on 32-bit values held in int64."""
    x = (x ^ x >> 16) * 0x85EBCA6B & _MASK
    x = (x ^ x >> 13) * 0xC2B2AE35 & _MASK
    return x ^ x >> 16
