"""The model that reads two texts together: its artefact, its arithmetic, and what the cache does with its word."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load, load_file, save

from cache import encoder, priors, weights, wire
from cache.embedder import EncoderDown, HashEncoder, Read
from cache.encoder import Model
from cache.reader import MOVED, ONLY_HERE, Reader, carried, changed, differing, pooled
from cache.semantic import SemanticCache
from cache.store.memory import MemoryStore
from cache.training import reading, reading_form, reading_mean
from cache.types import CacheConfig, Embedding, Entry, Hit, Kept, Miss
from cache.weights import PINNED
from gateway.keeping import with_before
from policies.reuse import Budget, learned
from tests.clock import FrozenClock
from tests.unit.cache.asking import query

FOLDER = weights.locate(weights.BUNDLED).folder
PAIRS = [
    ("How do I reset my password?", "How can I reset my password?"),
    ("How do I transfer my credits to another university?", "How do I transfer my credits from another university?"),
    ("What is time to first token?", "x" * 40_000),
    ("", ""),
]


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(FOLDER, priors.reader_artefact(), torch.float32)


def test_it_tells_a_paraphrase_from_a_near_miss(reader: Reader) -> None:
    """What it is for: both pairs are all but one point to the sentence encoder (cosine .99)."""
    alike, unlike = reader.read(PAIRS[:2])
    assert alike > unlike + 1.0


def test_a_pass_of_many_says_what_passes_of_one_say(reader: Reader) -> None:
    """Whoever asks at the same moment must not change a verdict, and nothing is too long or too short to be read."""
    together = reader.read(PAIRS)
    alone = [reader.read([pair])[0] for pair in PAIRS]
    assert np.isfinite(together).all()
    assert np.allclose(together, alone, atol=1e-3)


def test_many_pairs_are_several_passes(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of long pairs in one pass would take memory without a limit; each answer stays with its pair."""
    pairs = [PAIRS[i % len(PAIRS)] for i in range(10)]
    whole = reader.read(pairs)
    monkeypatch.setattr("cache.reader._MAX_PAIRS", 3)
    assert np.allclose(whole, reader.read(pairs), atol=1e-3)
    assert reader.read([]) == []


def test_the_last_word_that_the_encoder_sees_is_read(reader: Reader) -> None:
    """A text as long as the window can be served, so what only its end says must be seen, too."""
    start = "how " * 253
    alike, unlike = reader.read([(start + "cat", start + "cat"), (start + "cat", start + "dog")])
    assert alike != unlike


def test_what_cannot_be_read_fails_nobody_else() -> None:
    """Look-ups of all tenants share a pass: one ask that a model chokes on must not cost the others their vectors."""
    model = Model(weights.locate(weights.BUNDLED), "fp32", reads=False)
    asks = [wire.Ask(id=1, texts=["a question"]), wire.Ask(id=2, pairs=[("a", "b")])]
    good, bad = encoder._answer(model, asks)
    assert (good.id, good.error, len(good.tokens)) == (1, None, 1)
    assert (bad.id, bad.error) == (2, "failed")


def test_the_artefact_belongs_to_the_prior_and_is_small() -> None:
    """A prior made with another reader promises what this one may not keep."""
    prior = priors.shipped(PINNED["model.safetensors"])
    assert prior is not None
    assert prior.reader == priors.digest(priors.reader_artefact())
    assert len(priors.reader_artefact()) < 2 << 20


def test_the_encoder_keeps_one_reader_for_its_own_weights() -> None:
    """The changes fit no other weights: another model must say that it cannot read."""
    model = Model(weights.locate(weights.BUNDLED), "fp32")
    assert model.reader is not None
    assert Model(weights.Source("other", FOLDER, "0" * 64), "fp32").reader is None
    assert Model(weights.locate(weights.BUNDLED), "fp32", reads=False).reader is None


def test_what_is_taught_is_what_is_read() -> None:
    """The form that learns and the one that serves must be one arithmetic, or the artefact is not what was measured."""
    held = load_file(FOLDER / "model.safetensors")
    torch.manual_seed(1)
    taught = reading_form.Reader(held, rank=2)
    with torch.no_grad():
        for layer in taught.layers:
            assert isinstance(layer, reading_form.Layer)
            layer.up.up.normal_(std=0.02)
        taught.types.normal_(std=0.02)
        taught.marks.normal_(std=0.02)
        taught.marked.weight.normal_(std=0.02)
    rows = [row for found, _ in reading.Batches(FOLDER).of([(pair, True) for pair in PAIRS[:2]]) for row in found]
    with torch.inference_mode():
        said = sorted(taught.eval()(rows).tolist())
    served = Reader(FOLDER, save(reading_form.artefact(taught)), torch.float32)
    assert np.allclose(said, sorted(served.read(PAIRS[:2])), atol=0.02)


def test_teaching_goes_on_from_what_ships() -> None:
    """What one pass more starts from must be the reader that serves, or the pass begins by forgetting."""
    shipped = load(priors.reader_artefact())
    reader = reading_form.Reader(load_file(FOLDER / "model.safetensors"), reading.RANK)
    reading_form.restore(reader, shipped)
    again = reading_form.artefact(reader)
    assert again.keys() == shipped.keys()
    assert all(torch.allclose(again[name].float(), shipped[name].float(), rtol=1e-3, atol=1e-6) for name in shipped)


def test_what_only_one_text_has_and_what_moved_is_marked() -> None:
    """What decides between near texts is what differs; start, ends and padding are of no text."""
    start, end, cat, dog, eats, now = 101, 102, 1, 2, 3, 4
    rows = [[start, cat, eats, dog, end, dog, eats, cat, now, end], [start, cat, end, cat, end]]
    marked = differing(rows, [5, 3]).tolist()
    assert marked[0] == [0, 0, MOVED, MOVED, 0, MOVED, MOVED, 0, ONLY_HERE, 0]
    assert marked[1] == [0] * 10


def test_marks_tell_the_two_texts_apart() -> None:
    """A word that the question has more is another thing than one that only the kept text has."""
    marks = torch.arange(1.0, 5.0)[:, None]
    first = torch.tensor([[True, True, False, False, False]])
    marked = torch.tensor([[ONLY_HERE, MOVED, ONLY_HERE, MOVED, 0]])
    assert carried(marks, first, marked).flatten().tolist() == [1.0, 3.0, 2.0, 4.0, 0.0]


def test_without_a_difference_nothing_is_pooled() -> None:
    """A mean over no words would be no number, and would spread over the whole answer."""
    x = torch.randn(1, 4, 3)
    seen, first = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[True, True, False, False]])
    whole, apart = pooled(x, seen, first, torch.zeros(1, 4, dtype=torch.long))
    assert torch.equal(apart, torch.zeros(1, 12))
    assert torch.isfinite(whole).all()
    _, apart = pooled(x, seen, first, torch.tensor([[0, ONLY_HERE, ONLY_HERE, 0]]))
    assert torch.allclose(apart[0, :3], x[0, 1] + x[0, 2])
    assert torch.allclose(apart[0, 3:6], (x[0, 1] - x[0, 2]).abs())
    assert torch.equal(apart[0, 6:], torch.zeros(6))


def test_near_misses_that_are_taken_for_the_same_count_more() -> None:
    """They are few, and what a cache gets wrong; paraphrases count as before."""
    said, same = torch.tensor([4.0, -4.0, 4.0]), torch.tensor([0.0, 0.0, 1.0])
    taken, refused, alike = reading.weight(said, same, 1.0).tolist()
    assert alike == 1.0
    assert 1.4 < taken < 1.5
    assert 0.5 < refused < 0.6
    assert reading.weight(said, same, 0.0).tolist() == [1.0, 1.0, 1.0]


def test_a_mean_of_readers_is_in_between_and_takes_what_an_older_one_lacks_for_zero() -> None:
    """What ships is one; readers of another shape or without a share must not be mixed silently."""
    older = {"a.weight": torch.ones(2, 2, dtype=torch.float16)}
    newer = {"a.weight": torch.zeros(2, 2, dtype=torch.float16), "marks.weight": torch.ones(1, dtype=torch.float16)}
    made = reading_mean.mean([(older, 1.0), (newer, 3.0)])
    assert made["a.weight"].tolist() == [[0.25, 0.25], [0.25, 0.25]]
    assert made["marks.weight"].tolist() == [0.75]
    with pytest.raises(ValueError, match=r"a\.weight"):
        reading_mean.mean([(older, 1.0), ({"a.weight": torch.ones(3)}, 1.0)])
    with pytest.raises(ValueError, match="shares"):
        reading_mean.mean([(older, 0.0)])


def test_the_command_that_mixes_writes_an_artefact_or_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever makes the next reader uses this."""
    held = Path(priors.__file__).parent / priors.READER
    assert reading_mean.main([str(tmp_path / "made"), f"{held}=1", f"{held}=2"]) == 0
    made, shipped = load_file(tmp_path / "made"), load(priors.reader_artefact())
    assert all(torch.allclose(made[name].float(), shipped[name].float(), rtol=1e-3) for name in shipped)
    assert reading_mean.main([str(tmp_path / "made"), f"{tmp_path / 'none'}=1"]) == 1
    assert "none" in capsys.readouterr().err


def test_a_few_steps_teach_something() -> None:
    """Gradients must reach what is learned, and nothing else: after some steps the same pairs are told apart better."""
    torch.manual_seed(0)
    reader = reading_form.Reader(load_file(FOLDER / "model.safetensors"), rank=2)
    before = reader.get_buffer("words").clone()
    known = [(pair, same) for pair, same in zip(PAIRS[:2], (True, False), strict=True)] * 8
    sampler = reading.Sampler([], known, None, seed=0)
    batches = reading.Batches(FOLDER)
    ((rows, same),) = batches.of(known[:2])
    with torch.inference_mode():
        first = torch.nn.functional.binary_cross_entropy_with_logits(reader(rows), same)
    plan = reading.Pass(epochs=4, rate=2e-2, alike=0, unlike=0, drop=0.0)
    reading.teach(reader, sampler, batches, plan)
    with torch.inference_mode():
        last = torch.nn.functional.binary_cross_entropy_with_logits(reader.eval()(rows), same)
    assert last < first
    assert torch.equal(before, reader.get_buffer("words"))


def test_groups_are_whole_and_give_both_kinds_of_pairs() -> None:
    """A wrong line would teach something wrong, silently."""
    held = reading.groups()
    assert len(held) > 2_000
    assert all(len(group.same) in range(3, 7) and len(group.other) in range(4, 8) for group in held)
    assert len(reading.groups(("w1", "w1"))) == 2 * len(reading.groups(("w1",)))
    first = reading.groups(["w1"])[0]
    alike, unlike = first.pairs()
    assert (len(alike), len(unlike)) == (6, 16)
    assert {text for pair in alike for text in pair} == {first.base, *first.same}


def test_near_pairs_are_chosen_oftener() -> None:
    """Far ones are no question to a cache."""
    sampler = reading.Sampler(reading.groups(("w1",))[:40], [], None, seed=0)
    epoch = sampler.epoch(2, 3)
    assert len(epoch) == 40 * 5
    assert sum(same for _, same in epoch) == 80


def test_changes_are_added_or_put_in_place() -> None:
    """A matrix takes its low-rank change on top, a bias or norm gives way."""
    held = {"a.weight": torch.zeros(2, 3), "a.bias": torch.zeros(2)}
    ones = {"a.weight.down": torch.ones(1, 3), "a.weight.up": torch.ones(2, 1), "a.bias": torch.ones(2)}
    found = changed(held, ones)
    assert torch.equal(found["a.weight"], torch.ones(2, 3))
    assert torch.equal(found["a.bias"], torch.ones(2))
    assert torch.equal(held["a.weight"], torch.zeros(2, 3))


class Reading(HashEncoder):
    """Says of every pair what it was told to, and keeps count."""

    def __init__(self, odds: float) -> None:
        super().__init__()
        self.odds = odds
        self.asked: list[tuple[str, str]] = []
        self.trouble: Exception | None = None

    async def read(self, pairs: Sequence[tuple[str, str]]) -> Read:
        self.asked += pairs
        if self.trouble is not None:
            raise self.trouble
        return Read([self.odds for _ in pairs], seconds=0.25)


BUDGET = Budget(max_error_rate=0.05, max_wrong_hit_rate=0.2)
KEPT, ASKED = "how do i reset my password", "tell me how do i reset my password"


async def cached(reads: Reading, clock: FrozenClock) -> SemanticCache:
    policy = learned.Policy(prior=priors.shipped(PINNED["model.safetensors"]))
    config = CacheConfig(
        max_error_rate=BUDGET.max_error_rate, max_wrong_hit_rate=BUDGET.max_wrong_hit_rate, embed_timeout=5.0
    )
    cache = SemanticCache(
        MemoryStore(), reads, policy, config=config, now=clock.now, monotonic=clock.monotonic, random=lambda: 1.0
    )
    await cache.start()
    assert await cache.keep(query(KEPT), Kept(answer=b'{"choices":[]}')) is not None
    return cache


@pytest.mark.parametrize(("odds", "hit"), [(9.0, True), (-9.0, False)])
async def test_its_word_decides(odds: float, hit: bool, clock: FrozenClock) -> None:
    """The same question and the same kept text: served where they were read as alike, and the explanation says so."""
    reads = Reading(odds)
    cache = await cached(reads, clock)
    vector, kept = (await reads.embed([ASKED, KEPT]))[:2]
    assert await cache.would_serve(query(ASKED), vector, KEPT, float(vector @ kept), BUDGET) == hit
    told = await cache.find(query(ASKED))
    assert isinstance(told, Hit) == hit
    assert reads.asked == [(KEPT, ASKED)] * 2
    assert told.looked[0].features["reading"] == odds
    assert told.embedded is not None
    assert told.embedded.read is not None
    assert told.embedded.computed == 0.25
    await cache.close()


@pytest.mark.parametrize("trouble", [EncoderDown("encoder-down"), TimeoutError()])
async def test_what_could_not_be_read_is_a_miss(trouble: Exception, clock: FrozenClock) -> None:
    """A reader that is away or late must never make the cache less careful."""
    reads = Reading(9.0)
    reads.trouble = trouble
    cache = await cached(reads, clock)
    told = await cache.find(query(ASKED))
    assert isinstance(told, Miss)
    assert told.reason == "unread"
    assert told.embedded is not None
    assert told.embedded.read is not None, "the wait for it is part of the look-up, and of its trace"
    await cache.close()


async def test_what_is_deleted_while_it_is_read_is_not_served(clock: FrozenClock) -> None:
    """A deletion that has returned is final, also for a question that was being read just then."""
    encoder = Reading(9.0)
    cache = await cached(encoder, clock)
    read = encoder.read

    async def slowly(pairs: Sequence[tuple[str, str]]) -> Read:
        await cache.purge(team="acme")
        return await read(pairs)

    encoder.read = slowly
    told = await cache.find(query(ASKED))
    assert isinstance(told, Miss)
    assert told.reason == "gone"
    await cache.close()


def test_readings_are_kept_by_their_texts(tmp_path: Path) -> None:
    """A benchmark of five orders reads each pair once, and another reader's words are never taken for this one's."""
    from cache.bench.readings import Readings

    first = Readings(tmp_path)
    said = first.read(PAIRS[:2])
    first.save()
    again = Readings(tmp_path)
    again._compute = lambda pairs: pytest.fail("read again")
    assert again.read([PAIRS[1], PAIRS[0]]) == [said[1], said[0]]
    assert Readings(tmp_path, priors.reader_artefact() + b" ").digest != first.digest


@pytest.mark.parametrize("hit", [True, False])
def test_a_second_look_up_keeps_what_the_first_one_computed(hit: bool) -> None:
    """Who waited for another's answer in vain has asked the encoder twice, and the row must say what both took."""
    first = Miss(reason="guard", lookup_ms=1.0, embedded=Embedding(1.0, 1.1, 0.5, (1.1, 1.2)))
    entry = Entry(
        id=1, scope=b"", exact=b"", text="", answer=b"", prompt_tokens=0, completion_tokens=0, cost_nano=0,
        latency_ms=0.0, created=0.0, expires=1.0,
    )  # fmt: skip
    again = Embedding(2.0, 2.1, 0.25)
    second = (
        Hit(entry=entry, tier="semantic", similarity=0.9, confidence=0.9, lookup_ms=1.0, embedded=again)
        if hit
        else Miss(reason="far", lookup_ms=1.0, embedded=again)
    )
    both = with_before(second, first)
    assert both.embedded == Embedding(2.0, 2.1, 0.75, (1.1, 1.2))
    assert with_before(second, None) is second
    assert with_before(msgspec.structs.replace(second, embedded=None), first).embedded == first.embedded
