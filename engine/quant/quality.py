"""What fewer bits cost: `python -m engine quality MODEL --quant int8 --kv-dtype fp8`, or `measure(MODEL, ...)`.

Knows: two decoders of the same model, a text, the clock it is given. Does not know: how weights are rounded, benchmarks
of tasks.

Both read the same tokens: a plain text in windows of `WINDOW`, or, for the demo model, its test questions, of which the
answers alone are scored. Printed side by side: perplexity and its change, how often the likeliest next token is equal,
how far the distributions are apart (mean Kullback-Leibler divergence in nats), how many answers greedy decoding would
write to the last token, what is read from memory, and how long a token takes. The reference is the model in
its ordinary types. The shipped text was written for this and is small: it shows damage, it does not rank models.
"""

import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec import Struct

from engine.api import InvalidRequest, SamplingParams
from engine.attention import KVCache, pack
from engine.blocks import BLOCK, blocks_for
from engine.locate import ModelSource, locate
from engine.models import loader
from engine.models.decoder import Decoder
from engine.scheduler import Work
from engine.sequence import Sequence
from engine.template import load_template
from engine.tokenizer import load_tokenizer

WINDOW = 512
_CHUNK = 128
_DECODES = 32
TEXT = Path(__file__).with_name("quality.txt")


class _Kept(NamedTuple):
    """A decoder and the type of its cache."""

    decoder: Decoder
    kv_dtype: str


class Passage(NamedTuple):
    """Tokens to read; those from `scored` on are scored."""

    ids: list[int]
    scored: int


class _Sums(Struct):
    """Over all scored tokens: minus the log probability by both, equal first choices, divergence.

    `right`: passages of which greedy decoding would write every scored token, by both.
    """

    tokens: int = 0
    reference: float = 0.0
    reduced: float = 0.0
    same: int = 0
    divergence: float = 0.0
    right: tuple[int, int] = (0, 0)


def measure(
    model: str,
    *,
    quant: str = "none",
    kv_dtype: str = "auto",
    dtype: str = "auto",
    text: Path | None = None,
    monotonic: Callable[[], float],
) -> dict[str, Any]:
    """Compare `model` as it is with `quant` weights and a `kv_dtype` cache, on `text`. Holds both in memory.

    Raises EngineError; InvalidRequest when the text is too short to say anything.
    """
    source = locate(model)
    asked = model == "demo" and text is None
    passages = _demo(source) if asked else _windows(source, text or TEXT)
    context = max(len(passage.ids) for passage in passages)
    reference = _Kept(loader.load(source, dtype, context), "float32")
    reduced = _Kept(loader.load(source, dtype, context, quant), "float32" if kv_dtype == "auto" else kv_dtype)
    sums = _Sums()
    for passage in passages:
        _compare(reference, reduced, passage, sums)
    longest = max(passages, key=lambda passage: len(passage.ids)).ids
    before, after = math.exp(sums.reference / sums.tokens), math.exp(sums.reduced / sums.tokens)
    return {
        "model": model,
        "text": "the demo model's test questions" if asked else (text or TEXT).name,
        "scored_tokens": sums.tokens,
        "quant": quant,
        "kv_dtype": reduced.kv_dtype,
        "dtype": {"reference": reference.decoder.dtype, "reduced": reduced.decoder.dtype},
        "perplexity": {"reference": round(before, 4), "reduced": round(after, 4)},
        "perplexity_change_percent": round((after / before - 1) * 100, 3),
        **({"whole_answers_right": dict(zip(("reference", "reduced"), sums.right, strict=True))} if asked else {}),
        "same_first_choice": round(sums.same / sums.tokens, 4),
        "divergence_nats": round(sums.divergence / sums.tokens, 6),
        "weights_bytes_per_step": _pair(reference, reduced, lambda kept: kept.decoder.bytes),
        "cache_bytes_per_token": _pair(reference, reduced, _cache_bytes),
        "decode_ms_per_token": _pair(reference, reduced, lambda kept: _decode_ms(kept, longest, monotonic)),
        "notes": list(reduced.decoder.notes),
    }


def change_from_float32(model: str, dtype: str, quant: str) -> float:
    """Percent by which the perplexity of the shipped text changes when float32 weights become these."""
    source = locate(model)
    passages = _windows(source, TEXT)
    context = max(len(passage.ids) for passage in passages)
    reference = _Kept(loader.load(source, "float32", context), "float32")
    reduced = _Kept(loader.load(source, dtype, context, quant), "float32")
    sums = _Sums()
    for passage in passages:
        _compare(reference, reduced, passage, sums)
    return round((math.exp((sums.reduced - sums.reference) / sums.tokens) - 1) * 100, 3)


def _windows(source: ModelSource, text: Path) -> list[Passage]:
    try:
        written = text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{text}: {error}") from error
    ids = load_tokenizer(source).encode(written, specials=True)
    if len(ids) < 2 * BLOCK:
        raise InvalidRequest(f"{text} has {len(ids)} tokens; give at least {2 * BLOCK}.")
    window = min(WINDOW, loader.read_spec(loader.read_config(source)).context)
    return [Passage(ids[at : at + window], 1) for at in range(0, len(ids) - 1, window)]


def _demo(source: ModelSource) -> list[Passage]:
    """The demo model knows only its own subject, as a conversation: questions it never saw, their answers scored."""
    from engine.demo.evaluate import expected_answers, read_test

    tokenizer, template = load_tokenizer(source), load_template(source, time.time)
    assert template is not None, "the demo model comes with one"
    answers = expected_answers()
    found: list[Passage] = []
    for line in read_test():
        prompt = tokenizer.encode(template.render([{"role": "user", "content": line.question}]), specials=False)
        answer = tokenizer.encode(answers[line.expected], specials=False) + tokenizer.eos[-1:]
        found.append(Passage(prompt + answer, len(prompt)))
    return found


def _pair(reference: _Kept, reduced: _Kept, of: Callable[[_Kept], float]) -> dict[str, float]:
    return {"reference": of(reference), "reduced": of(reduced)}


def _cache_bytes(kept: _Kept) -> int:
    spec = kept.decoder.spec
    return KVCache.token_bytes(spec.layers, spec.kv_heads, spec.head, kept.kv_dtype)


def _compare(reference: _Kept, reduced: _Kept, passage: Passage, sums: _Sums) -> None:
    """Score one passage: every token from `scored` on, given those before it."""
    ids, first = passage
    at = 0
    right = [True, True]
    for one, other in zip(_logprobs(reference, ids), _logprobs(reduced, ids), strict=True):
        begin, end = max(first - 1 - at, 0), min(len(one), len(ids) - 1 - at)  # row i predicts token at + i + 1
        targets = torch.tensor(ids[at + begin + 1 : at + end + 1])
        at += len(one)
        if begin >= end:
            continue
        one, other = one[begin:end], other[begin:end]
        sums.tokens += len(targets)
        sums.reference -= float(one.gather(1, targets[:, None]).double().sum())
        sums.reduced -= float(other.gather(1, targets[:, None]).double().sum())
        choices = one.argmax(-1), other.argmax(-1)
        right = [so_far and torch.equal(choice, targets) for so_far, choice in zip(right, choices, strict=True)]
        sums.same += int((choices[0] == choices[1]).sum())
        sums.divergence += float((one.exp() * (one - other)).double().sum())
    sums.right = sums.right[0] + right[0], sums.right[1] + right[1]


def _logprobs(kept: _Kept, ids: list[int]) -> Iterator[torch.Tensor]:
    """Log probabilities [rows, V] after each token, a chunk at a time: a whole window of them would be gigabytes."""
    cache, sequence = _begin(kept, ids, len(ids))
    edges = [*range(0, len(ids), _CHUNK), len(ids)]
    for begin, end in pairwise(edges):
        batch = pack([Work(sequence, end - begin)], kept.decoder.multiple)
        batch.rows = torch.arange(end - begin)
        yield kept.decoder.forward(batch, cache).log_softmax(-1)
        sequence.computed = end


def _decode_ms(kept: _Kept, ids: list[int], monotonic: Callable[[], float]) -> float:
    """Milliseconds for one token of one sequence, the median of a few; the first chunk of the text is its prompt."""
    prompt = min(_CHUNK, len(ids) - 1, kept.decoder.spec.context - 1)
    steps = min(_DECODES, len(ids) - prompt, kept.decoder.spec.context - prompt)
    cache, sequence = _begin(kept, ids[: prompt + steps], prompt)
    kept.decoder.forward(pack([Work(sequence, prompt)], kept.decoder.multiple), cache)
    times: list[float] = []
    for at in range(prompt, prompt + steps):
        sequence.computed = at
        began = monotonic()
        kept.decoder.forward(pack([Work(sequence, 1)], kept.decoder.multiple), cache)
        times.append(monotonic() - began)
    return round(sorted(times)[len(times) // 2] * 1000, 3)


def _begin(kept: _Kept, ids: list[int], prompt: int) -> tuple[KVCache, Sequence]:
    spec = kept.decoder.spec
    blocks = blocks_for(len(ids))
    sequence = Sequence(
        key=0,
        tokens=ids,
        prompt=prompt,
        sampling=SamplingParams(max_tokens=1),
        seed=0,
        eos=frozenset(),
        salt="",
        priority=0,
        arrival=0,
        submitted=0.0,
        blocks=list(range(1, blocks + 1)),
    )
    return KVCache(spec.layers, blocks, spec.kv_heads, spec.head, kept.kv_dtype), sequence
