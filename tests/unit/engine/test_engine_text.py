"""Stop strings, incremental decoding, and the deltas made of them."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.api import EngineUsage, InvalidRequest, SamplingParams, spelled_bytes
from engine.frames import Choice, Output
from engine.locate import ModelNotFound, locate
from engine.stops import StopMatcher
from engine.testing import write_checkpoint
from engine.text import Answer, Reading
from engine.tokenizer import END_OF_TURN, Detokenizer, TextTokenizer, byte_tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(byte_tokenizer(), [END_OF_TURN])


def marked() -> TextTokenizer:
    """The other kind: words with a mark for the space before them, and bytes for what is unknown."""
    vocabulary = [f"<0x{byte:02X}>" for byte in range(256)] + ["▁", "a", "b", "▁a", "ab", "▁ab"]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    made = Tokenizer(
        models.BPE(vocab={name: at for at, name in enumerate(vocabulary)}, merges=merges, byte_fallback=True)
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return TextTokenizer(made, [])


MARKED = marked()


@given(st.text())
def test_scored_tokens_add_up_to_the_text(text: str) -> None:
    """Clients put characters of several tokens together by their bytes: each was told as the bytes of a U+FFFD."""
    made = TextTokenizer(byte_tokenizer(), [])
    ids = made.encode(text, specials=False)
    assert b"".join(spelled_bytes(made.spell(one)) for one in ids).decode() == text


@given(st.text(alphabet="ab é漢😀\n", max_size=40))
def test_scored_tokens_of_marked_words_keep_their_space(text: str) -> None:
    """SentencePiece's words were told without the space before them, so that they did not add up to the answer."""
    ids = MARKED.encode(text, specials=False)
    told = b"".join(spelled_bytes(MARKED.spell(one)) for one in ids).decode()
    assert told == f" {MARKED.decode(ids)}" if ids else not told


@pytest.mark.parametrize("token", ["a", "bytes:", "bytes:\\xc3x", "\ufffd", "ä", ""])
def test_only_parts_of_characters_are_read_as_bytes(token: str) -> None:
    """An answer may well speak of bytes."""
    assert spelled_bytes(token) == token.encode()


def pieces(tokenizer: TextTokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [detokenizer.push(token) for token in ids] + [detokenizer.flush()]


@given(st.text())
def test_text_survives_in_pieces(text: str) -> None:
    """Every character of every script, cut at every byte, must come out whole."""
    made = TextTokenizer(byte_tokenizer(), [])
    ids = made.encode(text, specials=False)
    assert "".join(pieces(made, ids)) == text


@given(st.text(alphabet="ab é漢😀\n", max_size=40))
def test_marked_spaces_and_byte_fallback_survive(text: str) -> None:
    """Here decoding a token alone loses its space, and unknown characters come as single bytes."""
    ids = MARKED.encode(text, specials=False)
    assert "".join(pieces(MARKED, ids)) == MARKED.decode(ids)


def test_a_text_goes_on_with_its_space() -> None:
    """Where a space belongs to the word after it, an answer by itself would lose it: "a" and "b" became "ab"."""
    before, after = MARKED.encode("ab a", specials=False), MARKED.encode("ab", specials=False)
    for known in (before, []):
        answer = Answer(MARKED, SamplingParams(max_tokens=5), Reading(frozenset(), before=known))
        assert answer.push(Output(handle=0, tokens=after)).text == (" ab" if known else "ab")


@given(st.lists(st.integers(0, 258), max_size=200))
def test_noise_never_raises_and_is_never_held_for_long(ids: list[int]) -> None:
    """Random models make bytes that are no text; a reader must still see progress."""
    made = TextTokenizer(byte_tokenizer(), [])
    detokenizer = Detokenizer(made)
    since = 0
    for token in ids:
        shown = detokenizer.push(token)
        since = 0 if shown or token >= 256 else since + 1
        assert since <= 70
    detokenizer.flush()


def test_a_character_comes_when_it_is_complete(tokenizer: TextTokenizer) -> None:
    """Half a character must never be shown as a replacement mark."""
    ids = tokenizer.encode("é漢", specials=False)
    assert pieces(tokenizer, ids) == ["", "é", "", "", "漢", ""]
    assert pieces(tokenizer, ids[:-1])[-1] == "\ufffd"


def test_trained_tokenizer_in_pieces(tmp_path: Path) -> None:
    """A real byte-level BPE merges across characters; pieces must still add up."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    text = "Grüße aus Köln 👋🏽 — naïve café, 漢字かな交じり文。 " * 3
    made.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer = TextTokenizer(made, [])
    assert "".join(pieces(tokenizer, tokenizer.encode(text, specials=False))) == text


def test_hopeless_is_never_wrong(tokenizer: TextTokenizer) -> None:
    """It may only refuse what could not fit in any way."""
    assert not tokenizer.hopeless("x" * 100, 100)
    assert tokenizer.hopeless("x" * 100_000, 100)


@given(
    st.lists(st.text(alphabet="ab", max_size=4), max_size=12),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3),
)
def test_stops_equal_a_search_of_the_whole(parts: list[str], stops: list[str]) -> None:
    """However the text is cut, the result is what a search of the whole text gives, as soon as a match is complete."""
    matcher = StopMatcher(tuple(stops))
    shown = "".join(matcher.push(part) for part in parts)
    so_far = ""
    for part in parts:
        so_far += part
        starts = [so_far.find(stop) for stop in stops if stop in so_far]
        if starts:
            assert matcher.found
            assert shown == so_far[: min(starts)]
            return
    assert not matcher.found
    assert shown + matcher.flush() == so_far


def test_nothing_of_a_stop_is_shown_early() -> None:
    """A reader of a stream cannot unsee its beginning."""
    matcher = StopMatcher(("</done>",))
    assert matcher.push("text</do") == "text"
    assert matcher.push("or>") == "</door>"
    assert matcher.push("x</done>y") == "x"
    assert matcher.push("more") == ""
    assert matcher.flush() == ""


def answer(tokenizer: TextTokenizer, **sampling: object) -> Answer:
    params = msgspec.convert({"max_tokens": 99, **sampling}, SamplingParams)
    return Answer(tokenizer, params, Reading(frozenset(tokenizer.eos)))


def test_tokens_past_the_stop_are_neither_shown_nor_billed(tokenizer: TextTokenizer) -> None:
    """How far the engine was ahead of the reader depends on how busy both were: the bill of a request must not."""
    ids = tokenizer.encode("Hi! there", specials=False)
    for ahead in (3, 5, 9):
        made = answer(tokenizer, stop=("!",), logprobs=0)
        delta = made.push(Output(handle=1, tokens=ids[:ahead], choices=[Choice(-0.5, [])] * ahead))
        assert made.stopped
        assert (delta.text, delta.token_ids, delta.finish_reason) == ("Hi", ids[:3], None)
        assert delta.logprobs is not None
        assert [one.token for one in delta.logprobs] == ["H", "i", "!"]
        used = EngineUsage(prompt=7, completion=ahead + 1, drafted=8, accepted=5)
        last = made.push(Output(handle=1, tokens=ids[:1], choices=[Choice(-0.5, [])], finish="abort", usage=used))
        assert (last.text, last.token_ids, last.finish_reason, last.stopped_by) == ("", [], "stop", "!")
        assert last.usage == EngineUsage(prompt=7, completion=3, drafted=8, accepted=3)


def test_end_token_is_not_text_and_held_text_comes_out(tokenizer: TextTokenizer) -> None:
    """At the end nothing may stay behind: neither half a character nor what might have become a stop string."""
    made = answer(tokenizer, stop=("!!!",))
    ids = tokenizer.encode("so!!", specials=False)
    assert made.push(Output(handle=1, tokens=ids)).text == "so"
    last = made.push(Output(handle=1, tokens=[END_OF_TURN], finish="stop"))
    assert (last.text, last.finish_reason) == ("!!", "stop")


def test_an_ordinary_end_token_is_not_text_either() -> None:
    """Some models end with a token their tokenizer does not call special."""
    made = TextTokenizer(byte_tokenizer(), byte_tokenizer().encode("\n").ids)
    delta = answer(made).push(Output(handle=1, tokens=made.encode("yes\n", specials=False), finish="stop"))
    assert delta.text == "yes"
    ignoring = Answer(made, SamplingParams(max_tokens=9), Reading(frozenset()))
    assert ignoring.push(Output(handle=1, tokens=made.encode("a\n", specials=False), finish="length")).text == "a\n"


def test_folder_gives_tokenizer_and_every_end(tmp_path: Path) -> None:
    """Instruction models name their end in up to three files; missing one makes answers run on."""
    write_checkpoint(tmp_path, "tiny-random:llama")
    made = load_tokenizer(locate(str(tmp_path)))
    assert made.eos == [END_OF_TURN]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4, -1, null, "x", 1e30, 10000000000]}')
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|endoftext|>"}}')
    assert load_tokenizer(locate(str(tmp_path))).eos == sorted({3, 4, END_OF_TURN, 256})
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelNotFound):
        load_tokenizer(locate(str(tmp_path)))


def test_an_absurd_token_id_is_refused(tmp_path: Path) -> None:
    """Tables of words are as long as the highest id: two thousand million took half a minute and all memory."""
    write_checkpoint(tmp_path, "tiny-random:llama")
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace('"a":', '"a":2147483648,"aa":', 1))
    with pytest.raises(ModelNotFound, match="2,147,483,648"):
        load_tokenizer(locate(str(tmp_path)))


def test_unknown_models_name_the_known(tmp_path: Path) -> None:
    """A typo should be answered with what would have worked."""
    for name in (str(tmp_path), "tiny-random:gpt", "tiny-random:llama?x=1", "nothing"):
        with pytest.raises(ModelNotFound, match=r"qwen3|seed"):
            locate(name)
    assert locate("tiny-random:llama?seed=7").seed == 7
    assert issubclass(ModelNotFound, Exception)
    assert not issubclass(ModelNotFound, InvalidRequest)
