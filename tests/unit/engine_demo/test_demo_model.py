"""The shipped demo checkpoint: it is ordinary and small, its card is true, and it answers and refuses as it says."""

from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from msgspec import json

from engine.demo.batches import Encoder
from engine.demo.card import WEIGHTS, Card, data_counts, data_digest, sha256
from engine.demo.corpus import load_material
from engine.demo.evaluate import DEVELOPMENT, TEST, evaluate, expected_answers, read_test, suites
from engine.demo.facts import FOLDER, REFUSAL, load_tails
from engine.demo.scoring import verdicts
from engine.demo.train import answers_of, load
from tests.proofs import wanted

CARD = json.decode((FOLDER / "card.json").read_bytes(), type=Card)
WANTED = {"unseen_frames": 0.97, "free_wordings": 0.85, "refusals": 0.95}
TRICKY_TEXTS = [
    "",
    " ",
    "héllo wörld",
    "你好世界。",
    "🙂👩‍👩‍👧",
    "tab\tline\n\r\nend  ",
    "\x00\x7f",
    "<|im_end|>-like",
    "ΑΒΓ 123,456.7",
]


def _transformers() -> Any:
    """It takes seconds to import, and a type checker the third part of its time to read."""
    return import_module("transformers")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The tokenizer as any Hugging Face program loads it."""
    return _transformers().AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    """The weights as any Hugging Face program loads them, in float32."""
    return _transformers().AutoModelForCausalLM.from_pretrained(FOLDER, dtype="float32").eval()


def reply(model: Any, tokenizer: Any, question: str, *before: dict[str, str]) -> str:
    """What greedy decoding writes, through nothing but transformers and the folder's own chat template."""
    messages = [*before, {"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    out = model.generate(**inputs, do_sample=False, max_new_tokens=128)
    text = tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=False)
    assert text.endswith("<|im_end|>"), text
    return text.removesuffix("<|im_end|>")


def test_the_folder_is_an_ordinary_small_checkpoint():
    """Other programs must be able to load it, and the repository must stay small."""
    config = json.decode((FOLDER / "config.json").read_bytes())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["tie_word_embeddings"] is True
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if "__pycache__" not in path.parts) <= 12_000_000
    settings = json.decode((FOLDER / "tokenizer_config.json").read_bytes())
    assert "<|im_start|>" in settings["chat_template"]
    assert (FOLDER / "CARD.md").is_file()


def test_the_weights_are_bf16(model: Any):
    """The size on disk is promised for two bytes per weight."""
    from safetensors import safe_open

    with safe_open(FOLDER / "model.safetensors", framework="pt") as tensors:
        assert {str(tensors.get_tensor(name).dtype) for name in tensors.keys()} == {"torch.bfloat16"}  # noqa: SIM118 - no mapping
    assert sum(p.numel() for p in model.parameters()) == CARD.parameters


@pytest.mark.parametrize("text", TRICKY_TEXTS)
def test_any_text_survives_the_tokenizer(tokenizer: Any, text: str):
    """A byte-level tokenizer loses nothing, whatever a client sends."""
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_the_card_describes_these_files_and_this_data():
    """A card about other weights or other data would be a lie."""
    assert CARD.files == {name: sha256(FOLDER / name) for name in WEIGHTS}
    assert CARD.bytes == {name: (FOLDER / name).stat().st_size for name in WEIGHTS}
    assert CARD.data_sha256 == data_digest()
    assert CARD.test_sha256 == sha256(TEST)
    assert CARD.data == data_counts(load_material())


def test_the_card_names_every_score_it_misses():
    """A missed score may ship only when the card says so."""
    assert CARD.thresholds == WANTED
    assert set(CARD.missed) == {name for name, least in WANTED.items() if CARD.scores[name].share < least}
    assert CARD.scores["free_wordings"].asked >= 100
    assert CARD.scores["refusals"].asked >= 100
    assert ("All wanted scores are met." in (FOLDER / "CARD.md").read_text(encoding="utf-8")) == (not CARD.missed)


@pytest.mark.parametrize("name", WANTED)
def test_the_card_meets_what_was_wanted(name: str):
    """The scores are the reason to ship these weights."""
    assert CARD.scores[name].share >= WANTED[name]


@pytest.mark.reduced
def test_the_card_tells_the_measured_scores():
    """The card's numbers come from these weights: measuring again agrees within a point (CPUs round).

    An ordinary run asks every third question, whose share is off by two points more.
    """
    names = ("free_wordings", "refusals")
    if wanted():
        measured = evaluate(FOLDER, only=names)
        asked = {name: score.asked for name, score in measured.items()}
        shares = {name: score.share for name, score in measured.items()}
    else:
        model, tokenizer = load(FOLDER)
        encoder = Encoder(tokenizer, answers_of(load_material()))
        questions = {name: found for name, found in suites().items() if name in names}
        asked = {name: len(found) for name, found in questions.items()}
        shares = {name: fmean(verdicts(model, encoder, found[2::3])) for name, found in questions.items()}
    assert asked == {name: CARD.scores[name].asked for name in names}
    for name, share in shares.items():
        assert abs(share - CARD.scores[name].share) <= (0.01 if wanted() else 0.03), name


@pytest.mark.parametrize(
    ("question", "key"),
    [
        ("What is time to first token?", "ttft"),
        ("what is the kv cache", "kv_cache"),
        ("How do I start nearhit?", "start"),
        ("How do I set a budget?", "budgets"),
        ("Which base URL do I use?", "base_url"),
        ("hello", "greeting"),
        ("Who are you?", "who_are_you"),
    ],
)
def test_a_newcomer_reads_a_sensible_answer(model: Any, tokenizer: Any, question: str, key: str):
    """These are the first things a newcomer types, and the model is there for them."""
    assert reply(model, tokenizer, question) == expected_answers()[key]


@pytest.mark.parametrize(
    "question", ["What is vLLM?", "Write me a poem", "Who won the world cup?", "What is the capital of France?"]
)
def test_the_model_refuses_what_it_does_not_know(model: Any, tokenizer: Any, question: str):
    """It must never pose as an assistant."""
    assert reply(model, tokenizer, question) == REFUSAL


def test_a_system_prompt_and_an_earlier_turn_do_not_confuse_it(model: Any, tokenizer: Any):
    """Real clients send both."""
    before = (
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": expected_answers()["greeting"]},
    )
    assert reply(model, tokenizer, "What is goodput?", *before) == expected_answers()["goodput"]


@pytest.mark.parametrize("path", [TEST, DEVELOPMENT])
def test_no_scored_wording_is_in_the_training_data(path: Path):
    """A test that was trained on measures nothing, and a development set that was trained on misleads."""
    material = load_material()
    known: set[str] = set()
    for fact in material.facts:
        known.update(plain(text) for text in (*fact.questions, *fact.names, *fact.actions))
        known.update(plain(frame.replace("{}", name)) for frame in material.frames.define for name in fact.names)
        known.update(plain(frame.replace("{}", action)) for frame in material.frames.howto for action in fact.actions)
    refusals = material.refusals
    known.update(plain(text) for text in (*refusals.questions, *refusals.names, *refusals.actions))
    known.update(plain(frame.replace("{}", name)) for frame in material.frames.define for name in refusals.names)
    known.update(plain(frame.replace("{}", task)) for frame in material.frames.howto for task in refusals.actions)
    tails = load_tails()
    names = [*refusals.names, *(name for fact in material.facts for name in fact.names)]
    known.update(plain(frame.replace("{}", name)) for frame in (*tails.beside, *tails.foreign) for name in names)
    assert [line.question for line in read_test(path) if plain(line.question) in known] == []


def test_every_test_line_expects_something_known_and_no_question_comes_twice():
    """A typing error in the test file must not count as a wrong answer."""
    answers = expected_answers()
    lines = read_test()
    assert [line.expected for line in lines if line.expected not in answers] == []
    assert len({plain(line.question) for line in lines}) == len(lines)


def test_no_question_is_trained_towards_two_answers():
    """Contradictory data would cap the scores unseen."""
    material = load_material()
    owners: dict[str, set[str]] = {}
    for fact in material.facts:
        assert fact.answer, fact.key
        for text in (*fact.questions, *fact.names, *fact.actions):
            owners.setdefault(plain(text), set()).add(fact.key)
    refusals = material.refusals
    for text in (*refusals.questions, *refusals.names, *refusals.actions):
        owners.setdefault(plain(text), set()).add("refused")
    assert {text: keys for text, keys in owners.items() if len(keys) > 1} == {}


def plain(text: str) -> str:
    """A question without case, final marks and spaces around, for comparing."""
    return text.lower().strip(" ?!.")


def test_the_data_files_are_text_without_tabs_or_empty_answers(tmp_path: Path):
    """The loader is line based; a stray tab or an empty mark would silently become a question."""
    for path in (FOLDER / "data").glob("*.txt"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert "\t" not in line, (path.name, line)
            assert line == line.strip(), (path.name, line)
            assert line not in {"@", "=", "~", "!"}, path.name
