"""Text to token ids and back, piece by piece.

Knows: `tokenizer.json`, which ids end an answer, incremental decoding. Does not know: chat templates, models, torch.
"""

import re
from pathlib import Path
from typing import cast

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.api import spelled
from engine.locate import ModelNotFound, ModelSource

_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TURN = 256 + _SPECIALS.index("<|im_end|>")
BYTE_VOCABULARY = 256 + len(_SPECIALS)

_UNFINISHED = "\ufffd"
_SPACE = "\u2581"  # how SentencePiece writes it
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONGEST_CHARACTER = 4  # bytes, so tokens at most
_WINDOW = 64
_MOST_TOKENS = 2**31
_MOST_WORDS = 2**24  # as many as a model may have columns

_json = msgspec.json.Decoder(dict[str, object])


class TextTokenizer:
    """A model's tokenizer and the ids that end an answer."""

    def __init__(self, tokenizer: Tokenizer, eos: list[int]) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.eos = eos
        self._longest = max(map(len, tokenizer.get_vocab()), default=1)

    def encode(self, text: str, *, specials: bool) -> list[int]:
        """`specials`: add what the model expects around plain text (a chat template writes its own)."""
        try:
            return self._tokenizer.encode(text, add_special_tokens=specials).ids
        except TypeError:  # half a surrogate pair is no character: what UTF-8 cannot carry becomes "?"
            return self._tokenizer.encode(text.encode(errors="replace").decode(), add_special_tokens=specials).ids

    def hopeless(self, text: str, context: int) -> bool:
        """Whether `text` cannot fit whatever its words: spares tokenizing megabytes only to refuse them."""
        return len(text) > context * self._longest * _LONGEST_CHARACTER

    def decode(self, ids: list[int]) -> str:
        """Without special tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def read(self, ids: list[int]) -> str:
        """With them."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def contents(self) -> str:
        """What `tokenizer.json` says."""
        return self._tokenizer.to_str()

    def mark(self, text: str) -> int | None:
        """The id of the token that is this text, if there is one."""
        return self._tokenizer.token_to_id(text)

    def show(self, token: int) -> str:
        """One token by itself, special ones too."""
        return self._tokenizer.decode([token], skip_special_tokens=False)

    def spell(self, token: int) -> str:
        """The same for log probabilities, where pieces must add up to the text: with its space, or its bytes."""
        shown, piece = self.show(token), self._tokenizer.id_to_token(token) or ""
        if _UNFINISHED in shown and _UNFINISHED.encode() not in (raw := _raw(piece)) and raw:
            return spelled(raw)
        # Decoders of SentencePiece take the space off whatever they think begins a text.
        return f" {shown}" if piece.startswith(_SPACE) and not shown.startswith(" ") else shown


class Detokenizer:
    """Gives text as soon as it is certain: a character whose bytes are not all there yet is held back.

    Decoding depends on neighbours (spaces, multi-byte characters), so each piece is the growth of the decoded text of a
    short window that begins with the tokens of the piece before.
    """

    def __init__(self, tokenizer: TextTokenizer, before: list[int] | None = None) -> None:
        """`before`: the last tokens of a text that is continued, without which the first piece may lose its space."""
        self._tokenizer = tokenizer
        shown = tokenizer.decode(before) if before else ""
        known = before if before and not shown.endswith(_UNFINISHED) else []
        self._window = list(known)
        self._context = len(known)  # how many tokens of the window were given out before the current piece
        self._shown = shown if known else ""

    def push(self, token: int) -> str:
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        waiting = len(self._window) - self._context
        if text.endswith(_UNFINISHED) and waiting < _WINDOW:
            # Only the last mark can still become a character; bytes that never will must not hold back the rest.
            return self._grow(text[:-1]) if waiting > _LONGEST_CHARACTER else ""
        piece = self._grow(text)
        self._window = self._window[self._context :]
        self._context = len(self._window)
        self._shown = self._tokenizer.decode(self._window)
        return piece

    def flush(self) -> str:
        """What was held back, when nothing more will come: an unfinished character shows as U+FFFD."""
        return self._grow(self._tokenizer.decode(self._window)) if self._window else ""

    def _grow(self, text: str) -> str:
        piece = text[len(self._shown) :]
        self._shown = text
        return piece


def load_tokenizer(source: ModelSource) -> TextTokenizer:
    """Raises ModelNotFound when the tokenizer cannot be read."""
    if source.folder is None:
        return TextTokenizer(byte_tokenizer(), [END_OF_TURN])
    file = source.folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ModelNotFound(f"{file}: {error}") from error
    highest = max(tokenizer.get_vocab().values(), default=0)
    if highest >= _MOST_WORDS:  # tables are made up to the highest id: one that is absurd would take all memory
        raise ModelNotFound(f"{file}: a token has the id {highest:,}; {_MOST_WORDS:,} are the most that are read.")
    return TextTokenizer(tokenizer, _end_ids(source, tokenizer))


def _raw(piece: str) -> bytes:
    """The bytes of a vocabulary's entry that is no text by itself; none if it is written in an unknown way."""
    if found := _BYTE.fullmatch(piece):
        return bytes.fromhex(found[1])
    return bytes(_LETTERS[letter] for letter in piece) if all(letter in _LETTERS for letter in piece) else b""


def _letters() -> dict[str, int]:
    """Byte-level vocabularies write every byte as a letter: those that print as themselves, the others from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}


_LETTERS = _letters()


def byte_tokenizer() -> Tokenizer:
    """256 bytes and ChatML's three marks; every text survives the round trip."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in _SPECIALS])
    return tokenizer


def _end_ids(source: ModelSource, tokenizer: Tokenizer) -> list[int]:
    """Every id that any of the model's files calls the end. Instruction models often name more than one."""
    assert source.folder is not None
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = read_object(source.folder / name).get("eos_token_id")
        given = cast("list[object]", value) if isinstance(value, list) else [value]
        found.update(one for one in given if isinstance(one, int) and 0 <= one < _MOST_TOKENS)  # -1 says none
    mark = special_marks(source.folder).get("eos_token")
    token = tokenizer.token_to_id(mark) if mark else None
    return sorted(found if token is None else found | {token})


def special_marks(folder: Path) -> dict[str, str]:
    """`bos_token`, `eos_token` and the like as text, from `tokenizer_config.json` (plain or with a `content`)."""
    marks: dict[str, str] = {}
    for name, value in read_object(folder / "tokenizer_config.json").items():
        content = cast("dict[str, object]", value).get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            marks[name] = content
    return marks


def read_object(file: Path) -> dict[str, object]:
    """A JSON object; empty when there is no such file. Raises ModelNotFound when it is something else."""
    if not file.is_file():
        return {}
    try:
        return _json.decode(file.read_bytes())
    except (msgspec.DecodeError, RecursionError, OSError) as error:
        raise ModelNotFound(f"{file}: {error}") from error
