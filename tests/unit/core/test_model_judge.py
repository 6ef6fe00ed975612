"""A configured model as the judge: batches, odd replies, and an error rate that is measured before it is believed."""

import asyncio
import re
from pathlib import Path

import msgspec
import pytest

from cache.judging import Pair, gold
from gateway.errors import UpstreamFailed
from gateway.judging import ModelJudge

_ITEMS = re.compile(r"\[.*\]", re.DOTALL)


class Model:
    """Knows the gold answers, calls every `wrong_each`-th of them wrongly, and counts what it was asked."""

    def __init__(self, wrong_each: int = 0) -> None:
        self.truth = {(item.question, item.a, item.b): item.same for item in gold()}
        self.wrong_each = wrong_each
        self.seen = 0
        self.batches: list[int] = []
        self.reply: str | None = None
        self.down = False

    async def ask(self, model: str, messages: list[dict[str, object]]) -> str:
        if self.down:
            raise UpstreamFailed("away")
        found = _ITEMS.search(str(messages[1]["content"]))
        assert found is not None
        items = msgspec.json.decode(found[0])
        self.batches.append(len(items))
        if self.reply is not None:
            return self.reply
        return f"Here you are:\n{msgspec.json.encode([self._say(item) for item in items]).decode()}"

    def _say(self, item: dict[str, str]) -> str:
        self.seen += 1
        same = self.truth.get((item["question"], item["first"], item["second"]), False)
        if self.wrong_each and self.seen % self.wrong_each == 0:
            same = not same
        return "same" if same else "different"


def judge_of(model: Model, home: Path, place: str = "lab/judge") -> ModelJudge:
    return ModelJudge("lab/judge", model.ask, home, leads=lambda _: place, batch=8)


def pair(number: int) -> Pair:
    return Pair(question="q", kept=f"kept {number}", fresh=f"fresh {number}")


async def test_the_flip_rate_is_measured_once_and_kept(tmp_path: Path) -> None:
    """One label in ten wrong must show as one in ten, also after a restart, without asking again."""
    model = Model(wrong_each=10)
    judge = judge_of(model, tmp_path)
    (found,) = await judge.compare([pair(1)])
    assert found.verdict == "different"
    assert 0.08 < found.flip < 0.13
    asked = len(model.batches)
    again = judge_of(model, tmp_path)
    await again.compare([pair(2)])
    assert again.flip == judge.flip
    assert len(model.batches) == asked + 1
    assert max(model.batches) == 8


async def test_answers_that_were_not_shown_whole_are_never_the_same(tmp_path: Path) -> None:
    """Long answers that begin alike may end in opposite advice; to begin unlike is enough to tell them apart."""
    model = Model()
    judge = judge_of(model, tmp_path)
    await judge.measure()
    long = Pair(question="q", kept="word " * 700 + "so do it", fresh="word " * 700 + "so never do it")
    for reply, verdict in (('["same"]', "unsure"), ('["different"]', "different")):
        model.reply = reply
        (found,) = await judge.compare([long])
        assert found.verdict == verdict


async def test_those_who_ask_at_once_share_a_prompt(tmp_path: Path) -> None:
    """A prompt per pair would cost the instructions each time."""
    model = Model()
    judge = judge_of(model, tmp_path)
    await judge.measure()
    model.batches.clear()
    await asyncio.gather(*(judge.compare([pair(number)]) for number in range(6)))
    assert model.batches == [6]


async def test_two_tenants_never_share_a_prompt(tmp_path: Path) -> None:
    """An answer that tells the judge what to say would speak for everybody in its prompt."""
    model = Model()
    judge = judge_of(model, tmp_path)
    await judge.measure()
    model.batches.clear()
    ours = [Pair(question="q", kept=f"a {n}", fresh=f"b {n}", owner=b"ours") for n in range(3)]
    theirs = [Pair(question="q", kept=f"c {n}", fresh=f"d {n}", owner=b"theirs") for n in range(9)]
    found = await asyncio.gather(*(judge.compare([pair]) for pair in (*ours, *theirs)), judge.compare([*ours, *theirs]))
    assert [len(one) for one in found] == [1] * 12 + [12]
    assert sorted(model.batches) == [2, 6, 8, 8]
    assert judge._waiting == {}


@pytest.mark.parametrize("reply", ["", "no idea", '["same"', '["same","same","same"]', "[1]", '{"a": "same"}'])
async def test_a_reply_that_is_not_what_was_asked_for_is_unsure(tmp_path: Path, reply: str) -> None:
    """Models ramble, and answers may try to talk them into it: nothing but one clear word per item counts."""
    model = Model()
    judge = judge_of(model, tmp_path)
    await judge.measure()
    model.reply = reply
    assert [found.verdict for found in await judge.compare([pair(1), pair(2)])] == ["unsure", "unsure"]


async def test_a_model_that_is_away_is_unsure_and_stays_unmeasured(tmp_path: Path) -> None:
    """No label at all is better than one from nowhere."""
    model = Model()
    model.down = True
    judge = judge_of(model, tmp_path)
    assert [found.verdict for found in await judge.compare([pair(1)])] == ["unsure"]
    assert not (tmp_path / "judges.json").exists()


async def test_equal_answers_cost_nothing(tmp_path: Path) -> None:
    """The commonest case needs no model."""
    model = Model()
    judge = judge_of(model, tmp_path)
    (found,) = await judge.compare([Pair(question="q", kept="Paris.", fresh="paris")])
    assert (found.verdict, model.batches) == ("same", [])


async def test_another_model_behind_the_same_name_is_measured_anew(tmp_path: Path) -> None:
    """Its error rate is taken out of what is published and bounds aliases; that of the model before says nothing."""
    good, bad = Model(), Model(wrong_each=4)
    judge = judge_of(good, tmp_path)
    await judge.compare([pair(1)])
    place = "lab/cheaper"
    moved = ModelJudge("lab/judge", bad.ask, tmp_path, leads=lambda _: place, batch=8)
    assert moved.flip == 0.1
    await moved.compare([pair(2)])
    assert moved.flip > 0.2
    place = "lab/judge"  # the file is read again while the worker runs
    assert moved.flip == judge.flip
    assert judge_of(good, tmp_path).flip == judge.flip


async def test_what_another_worker_measured_is_not_paid_for_again(tmp_path: Path) -> None:
    """Each of a host's workers would ask about all gold pairs otherwise."""
    one, other = Model(), Model()
    first, second = judge_of(one, tmp_path), judge_of(other, tmp_path)
    await first.compare([pair(1)])
    await second.compare([pair(2)])
    assert (second.flip, other.batches) == (first.flip, [1])


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'{"a": {"model": "\xff"}}', b"\xff"])
async def test_a_file_that_cannot_be_read_is_no_reason_not_to_start(tmp_path: Path, raw: bytes) -> None:
    """What was measured can be measured again."""
    (tmp_path / "judges.json").write_bytes(raw)
    judge = judge_of(Model(), tmp_path)
    await judge.compare([pair(1)])
    assert judge.flip < 0.1
