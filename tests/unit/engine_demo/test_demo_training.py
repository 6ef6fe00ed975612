"""What training adds around the model: samples without an answer, further questions, and a merge that loses nothing."""

from itertools import islice

import pytest
import torch

from engine.demo.batches import NO_LABEL, Encoder, pad
from engine.demo.corpus import Corpus, Sample, load_material
from engine.demo.facts import FOLDER, REFUSAL
from engine.demo.lessons import Lessons
from engine.demo.train import Network, Recipe, answers_of, load
from engine.demo.wording import plain_words

QUESTION = "what is a kv cache"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """Encodes with the shipped tokenizer."""
    return Encoder(load(FOLDER)[1], answers_of(load_material()))


def test_a_question_without_an_answer_teaches_no_token(encoder: Encoder):
    """The teacher is not sure of every question; a made-up answer must not be learned."""
    item = encoder.encode(Sample((("user", QUESTION),), ""), whole=True)
    assert item.label == NO_LABEL
    assert not any(item.weights)
    assert len(item.weights) == len(item.tokens)
    assert item.end == len(item.tokens) - 2, "one filler follows, as the last token is never read"


def test_a_batch_marks_the_last_token_of_each_question(encoder: Encoder):
    """The heads must read the question where the model starts to answer, whatever the padding."""
    items = [encoder.encode(Sample((("user", text),), REFUSAL), whole=False) for text in (QUESTION, "hi")]
    batch = pad(items, encoder.pad)
    for row, item in enumerate(items):
        assert batch.ends[row] == item.end
        assert batch.weights[row, item.end] == 0 < batch.weights[row, item.end + 1]
        assert batch.labels[row] == len(answers_of(load_material())) - 1


def test_further_questions_come_with_the_question_as_it_was_made():
    """The teacher's vector is found by the text before typing errors and other letter cases."""
    made = (("what is a warm cache", ""), ("why is a key cached", REFUSAL))
    drawn = [
        sample for sample in islice(Corpus(load_material(), 5, made), 400) if (sample.source, sample.answer) in made
    ]
    assert 60 < len(drawn) < 140
    assert any(sample.turns[-1][1] != sample.source for sample in drawn)


def test_merging_keeps_what_the_network_computes():
    """What is saved must be the model that was trained, with letters and meanings inside its plain embedding."""
    tokenizer = load(FOLDER)[1]
    tokens = tokenizer.get_vocab_size()
    torch.manual_seed(3)
    told = Lessons(torch.randn(tokens, 5), torch.randn(4, 7), {}, (), 3)
    network = Network(
        Recipe(hidden=16, feed_forward=16, layers=2, heads=2, kv_heads=1, head_dim=8), tokenizer, None, told
    )
    before = network.embeddings().detach().clone()
    plain = network.merge()
    assert torch.equal(plain.model.embed_tokens.weight, before)
    assert torch.equal(network.embeddings(), before)
    assert not torch.equal(before[5], torch.zeros(16))


def test_plain_words_leaves_numbers_and_short_words():
    """Only words that mean something alone are worth asking the teacher about."""
    assert plain_words("What's a KV-cache in fp16?") == ["what", "cache"]
