"""What the teacher tells before training: meanings of tokens, vectors of questions, and further questions it labels.

Knows: which texts to ask the teacher about. Does not know: the network that learns from them.
"""

import random
from collections.abc import Sequence

import torch
from msgspec import Struct
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy, normalize

from engine.demo.corpus import Material
from engine.demo.facts import REFUSAL
from engine.demo.teacher import Teacher, english_words
from engine.demo.wording import plain_words

_WORDS = 10_000
_MEANING = 128
_NEIGHBOURS = 12
_SURE = 0.9


class Lessons(Struct, frozen=True):
    """`meanings` (tokens, 128): a token's word vector, or zeros; `vectors` (questions, 384) of the questions `rows`
    numbers; `further`: questions nobody wrote, with the answer the teacher is sure of or an empty text.
    """

    meanings: torch.Tensor
    vectors: torch.Tensor
    rows: dict[str, int]
    further: tuple[tuple[str, str], ...]
    kinds: int


def lessons(material: Material, tokenizer: Tokenizer, seed: int, count: int) -> Lessons:
    """Asks the teacher about every question, `count` further ones, and every token that is a word."""
    teacher = Teacher()
    asked = {question: fact.answer for fact in material.facts for question in fact.questions}
    asked |= dict.fromkeys(material.refusals.questions, REFUSAL)
    words = _words(list(asked))
    of_words = teacher.vectors(words)
    made = _further(list(asked), words, of_words, random.Random(seed), count)  # noqa: S311 - variety, not security
    vectors = teacher.vectors([*asked, *made])
    vectors = normalize(vectors - vectors[: len(asked)].mean(0), dim=1)
    answers = _answers(vectors, list(asked.values()))
    return Lessons(
        _meanings(tokenizer, words, of_words),
        vectors,
        {question: row for row, question in enumerate((*asked, *made))},
        tuple(zip(made, answers, strict=True)),
        len(material.facts) + 1,
    )


def _words(questions: Sequence[str]) -> list[str]:
    own = {word for question in questions for word in plain_words(question)}
    return sorted(own | set(english_words(_WORDS)))


def _meanings(tokenizer: Tokenizer, words: list[str], of_words: torch.Tensor) -> torch.Tensor:
    """The word vectors' 128 main directions, one row per token that is a whole word."""
    centred = of_words - of_words.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    small = normalize(centred @ directions[:_MEANING].T, dim=1)
    at = {word: place for place, word in enumerate(words)}
    out = torch.zeros(tokenizer.get_vocab_size(), _MEANING)
    for token in range(out.shape[0]):
        place = at.get(tokenizer.decode([token], skip_special_tokens=True).strip().lower())
        if place is not None:
            out[token] = small[place]
    return out


def _further(
    questions: list[str], words: list[str], of_words: torch.Tensor, rng: random.Random, count: int
) -> list[str]:
    """Questions with one to three words replaced by near or random ones, or the halves of two questions."""
    centred = normalize(of_words - of_words.mean(0), dim=1)
    at = {word: place for place, word in enumerate(words)}
    used = sorted({word for question in questions for word in plain_words(question)} & set(at))
    near = (centred[[at[word] for word in used]] @ centred.T).topk(_NEIGHBOURS + 1).indices.tolist()
    neighbours = {word: [words[place] for place in places[1:]] for word, places in zip(used, near, strict=True)}
    known = set(questions)
    out: dict[str, None] = {}
    while len(out) < count:
        question = rng.choice(questions)
        parts = question.split(" ")
        if rng.random() < 0.15:
            other = rng.choice(questions).split(" ")
            parts = parts[: (len(parts) + 1) // 2] + other[len(other) // 2 :]
        else:
            places = [place for place, word in enumerate(parts) if word.lower() in neighbours and len(word) > 3]
            for place in rng.sample(places, min(len(places), rng.randint(1, 3))):
                close = rng.random() < 0.8
                parts[place] = rng.choice(neighbours[parts[place].lower()] if close else words)
        made = " ".join(parts)
        if made not in known:
            out[made] = None
    return list(out)


def _answers(vectors: torch.Tensor, answers: list[str]) -> list[str]:
    """What a small classifier on the teacher's vectors, taught with `answers`, is sure of; else an empty text."""
    torch.manual_seed(0)
    kinds = sorted(set(answers))
    index = {answer: place for place, answer in enumerate(kinds)}
    labels = torch.tensor([index[answer] for answer in answers])
    known = vectors[: len(answers)] * 8
    judge = torch.nn.Sequential(
        torch.nn.Linear(384, 256), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.Linear(256, len(kinds))
    )
    steps = 1500
    optimizer = torch.optim.AdamW(judge.parameters(), lr=5e-3, weight_decay=0.01)
    for step in range(steps):
        chosen = torch.randint(len(labels), (512,))
        loss = cross_entropy(judge(known[chosen]), labels[chosen], label_smoothing=0.02)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] = 5e-3 * (1 - step / steps)
    with torch.no_grad():
        sure, best = judge.eval()(vectors[len(answers) :] * 8).softmax(-1).max(-1)
    return [kinds[at] if much > _SURE else "" for much, at in zip(sure.tolist(), best.tolist(), strict=True)]
