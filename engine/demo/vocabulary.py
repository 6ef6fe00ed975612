"""Trains the byte-level BPE tokenizer, and relates its tokens to the letters they are made of.

Knows: tokenizers, character n-grams. Does not know: facts, the network.
"""

import zlib
from collections.abc import Iterable
from typing import Any, Final

import torch
from msgspec import json
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

PAD: Final = "<|endoftext|>"
START: Final = "<|im_start|>"
END: Final = "<|im_end|>"
TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim"
    " + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_WORDS = r"'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str], size: int) -> Tokenizer:
    """A byte-level BPE of `size` tokens, the three specials included; any text survives encode and decode."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The number of a token that must exist; `LookupError` when it does not."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise LookupError(f"the tokenizer has no {token}")
    return found


def with_dropout(tokenizer: Tokenizer, share: float) -> Tokenizer:
    """A copy that skips a random `share` of its merges, so that training sees words in several cuts."""
    told: dict[str, Any] = json.decode(tokenizer.to_str())
    told["model"]["dropout"] = share
    return Tokenizer.from_str(json.encode(told).decode())


def letter_sharing(tokenizer: Tokenizer, buckets: int) -> torch.Tensor:
    """A sparse (tokens, buckets) matrix: row t sums the hashed 3- to 5-grams of token t in lower case.

    Added to the free embedding while training (Bojanowski et al., "Enriching Word Vectors with Subword Information",
    arXiv 1607.04606) it lets " Quantize", "QUANTIZE" and "quantization" start alike; the sum is what gets saved.
    """
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for token in range(tokenizer.get_vocab_size()):
        grams = _grams(tokenizer.decode([token], skip_special_tokens=True).strip().lower())
        for gram in grams:
            rows.append(token)
            columns.append(zlib.crc32(gram.encode()) % buckets)
            values.append(1.0 / len(grams) ** 0.5)
    shape = (tokenizer.get_vocab_size(), buckets)
    places = torch.tensor([rows, columns])
    return torch.sparse_coo_tensor(places, torch.tensor(values), shape, check_invariants=True).coalesce()


def _grams(word: str) -> list[str]:
    if not word:
        return []
    marked = f"<{word}>"
    found = {marked[at : at + size] for size in (3, 4, 5) for at in range(len(marked) - size + 1)}
    return sorted(found | {marked})
