"""The small parts: the front, the breaker, entries as bytes, vectors as bytes, wording, counts, ids, rows in a file."""

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.breaker import Breaker
from cache.codec import Codec
from cache.front import Front
from cache.making import Maker
from cache.sqlite_file import Bounds, Gathered, SqliteFile
from cache.store import ANYTHING
from cache.tally import MAX_GROUPS, OTHERS, Tally
from cache.types import CacheConfig, Entry, Group, Kept, Query
from cache.vectors import from_bytes, pack, to_bytes, unpack
from cache.wording import is_time_sensitive
from tests.clock import FrozenClock

codec = Codec()


def entry(number: int, answer: bytes = b"{}") -> Entry:
    return Entry(
        id=number,
        scope=b"s" * 32,
        exact=bytes([number]) * 32,
        text=f"text {number}",
        answer=answer,
        prompt_tokens=1,
        completion_tokens=2,
        cost_nano=3,
        latency_ms=4.0,
        created=5.0,
        expires=6.0,
        vector=b"v",
    )


def test_front_forgets_the_least_recently_used() -> None:
    """Bounded by count, and what is in use stays."""
    front = Front(max_entries=2, max_bytes=1 << 20)
    front.put(entry(1))
    front.put(entry(2))
    assert front.get(entry(1).exact) is not None
    front.put(entry(3))
    assert [front.get(entry(n).exact) is not None for n in (1, 2, 3)] == [True, False, True]


def test_front_is_bounded_by_bytes() -> None:
    """Ten thousand answers of a megabyte would be ten gigabytes in every worker."""
    front = Front(max_entries=100, max_bytes=10_000)
    for number in range(1, 10):
        front.put(entry(number, b"x" * 3_000))
    assert len(front) == 2
    assert front.held_bytes <= 10_000
    front.put(entry(20, b"x" * 20_000))
    assert front.get(entry(20).exact) is None
    assert len(front) == 2


def test_front_drops_by_digest_and_by_id() -> None:
    """Evictions name an id, replacements a digest; both must leave nothing behind."""
    front = Front(max_entries=9, max_bytes=1 << 20)
    for number in (1, 2, 3):
        front.put(entry(number))
    front.drop(entry(1).exact)
    front.drop_id(2)
    front.drop_id(99)
    assert len(front) == 1
    front.clear()
    assert (len(front), front.held_bytes) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("pdi"), st.integers(1, 8), st.integers(0, 400))))
def test_front_counts_its_bytes_right(steps: list[tuple[str, int, int]]) -> None:
    """A count that drifts would in time keep nothing, or everything."""
    front = Front(max_entries=4, max_bytes=4_000)
    for what, number, size in steps:
        if what == "p":
            front.put(entry(number, b"x" * size))
        elif what == "d":
            front.drop(entry(number).exact)
        else:
            front.drop_id(number)
    for number in range(1, 9):
        front.drop(entry(number).exact)
    assert (len(front), front.held_bytes) == (0, 0)


def test_breaker_opens_probes_and_closes(clock: FrozenClock) -> None:
    """An outage must cost the first callers only, and its end be noticed by one."""
    breaker = Breaker(monotonic=clock.monotonic, tolerance=2, pause=1.0)
    breaker.fail()
    assert breaker.allows()
    breaker.fail()
    assert breaker.is_open
    assert not breaker.allows()
    clock.advance(1.01)
    assert breaker.allows()
    assert not breaker.allows()
    breaker.fail()
    clock.advance(1.01)
    assert breaker.allows()
    breaker.succeed()
    assert breaker.allows()
    assert breaker.allows()


def test_breaker_opens_at_once_for_a_refused_connection(clock: FrozenClock) -> None:
    """Nobody there is not a hiccup."""
    breaker = Breaker(monotonic=clock.monotonic, tolerance=5)
    breaker.fail(outright=True)
    assert not breaker.allows()


def test_breaker_survives_a_lost_probe(clock: FrozenClock) -> None:
    """A probe that was cancelled never reports; the next one must come all the same."""
    breaker = Breaker(monotonic=clock.monotonic, pause=1.0)
    breaker.fail(outright=True)
    clock.advance(1.01)
    assert breaker.allows()
    clock.advance(1.01)
    assert breaker.allows()


def test_codec_keeps_all_but_the_vector() -> None:
    """What comes back must be the entry that was kept."""
    kept = entry(1, b"\x00\xff{}")
    assert codec.decode(codec.encode(kept), kept.exact) == msgspec.structs.replace(kept, vector=b"")


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_codec_notices_every_damaged_byte(position: int, flip: int) -> None:
    """A flipped bit is a miss, never an answer."""
    kept = entry(1, b"an answer")
    raw = bytearray(codec.encode(kept))
    raw[position % len(raw)] ^= flip
    assert codec.decode(bytes(raw), kept.exact) is None


@pytest.mark.parametrize("raw", [b"", b"\x01", b"\x01abcd", b"\x02" + b"x" * 40])
def test_codec_refuses_fragments(raw: bytes) -> None:
    """Truncated or foreign values happen in shared stores."""
    assert codec.decode(raw, b"x" * 32) is None


def test_codec_refuses_another_entrys_value() -> None:
    """A swapped reply belongs to somebody else."""
    assert codec.decode(codec.encode(entry(1)), entry(2).exact) is None


def test_packed_vectors_keep_their_direction() -> None:
    """Half precision must not move a decision."""
    drawn = np.random.default_rng(0).standard_normal((200, 384)).astype(np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    back = np.stack([unpack(pack(vector)) for vector in drawn])
    assert float(np.abs((back * drawn).sum(axis=1) - 1.0).max()) < 1e-4
    assert float(np.abs(back @ back.T - drawn @ drawn.T).max()) < 1e-3
    assert np.array_equal(from_bytes(to_bytes(drawn[0])), drawn[0])
    assert unpack(b"").shape == (0,)


@pytest.mark.parametrize(
    "text",
    [
        "What is the latest version of Node?",
        "what's the weather in Oslo",
        "Who is the current president?",
        "News about Tesla",
        "What day is it today?",
        "what time is it in Tokyo",
        "Is the shop open right now?",
        "Bitcoin price",
        "What happened this week?",
        "events two days ago",
        "What's on TV tonight",
        "What year is it?",
        "Is it raining in Bergen?",
        "How many days until Christmas?",
        "What is the price of gold?",
        "How much is one bitcoin worth?",
        "When is the next train to Basel?",
        "Is Wikipedia down?",
        "How is the traffic on the A1?",
        "What's the status of my order?",
        "Order status of 4711?",
        "Who is winning the match?",
        "Hvad er vejret i dag?",
        "आज का दिन",
        "Is the sequel out yet?",
        "Is the Queen still alive?",
        "What's going on in Lima?",
        "Wie ist das Wetter heute in Berlin?",
        "Quelle heure est-il ?",
        "¿Qué tiempo hace hoy?",
        "Кто сейчас президент?",
        "今天天气怎么样?",
        "今日の天気は",
        "오늘 날씨 어때?",
        "ما هو الطقس اليوم؟",
        "आज मौसम कैसा है?",
    ],
)
def test_wording_that_ages(text: str) -> None:
    """Yesterday's answer to these is wrong."""
    assert is_time_sensitive(text)


@pytest.mark.parametrize(
    "text",
    [
        "How do I reset my password?",
        "What is time to first token?",
        "Explain recursion",
        "What is a priced option?",
        "I know nothing about snow",
        "Who wrote Hamlet?",
        "What is the date format in SQL?",
        "How do I update my address?",
        "What does it mean to be left behind?",
        "How do I shut it down?",
        "How does electric current flow?",
        "How do I get the current directory in Python?",
        "How do I redirect HTTP traffic to HTTPS?",
        "What happens to my data when the cluster is shut down?",
        "How do I check the status of my order?",
        "How do I write a countdown in JavaScript?",
        "What is a breaking change?",
        "How do I get better at leading the team?",
        "How do I cancel my NYT subscription?",
        "How do I trigger an API DAG?",
        "Wie lösche ich Nachrichten in WhatsApp?",
        "Jak usunąć wiadomości?",
        "भारत को आजादी कब मिली?",
        "鶏肉は何時間煮込みますか",
        "Wie setze ich mein Passwort zurück?",
        "Comment réinitialiser mon mot de passe ?",
        "如何重置密码",
    ],
)
def test_wording_that_keeps(text: str) -> None:
    """These must stay open to semantic hits."""
    assert not is_time_sensitive(text)


def test_counts_are_bounded() -> None:
    """A client that invents a model name per request must not fill the memory."""
    tally = Tally()
    for number in range(MAX_GROUPS + 50):
        tally.of(Query(scope=b"", exact=b"", text="", team="t", project="p", model=f"m{number}")).lookups += 1
    rows = tally.rows({Group("t", "p", "m1"): 7, Group("t", "p", "unseen"): 1})
    assert len(rows) == MAX_GROUPS + 1
    (others,) = [row for row in rows if (row.team, row.project, row.model) == OTHERS]
    assert others.lookups == 50
    assert [row.entries for row in rows if row.model == "m1"] == [7]
    assert all(row.entries is None for row in tally.rows(None))


def test_ids_come_in_runs_and_never_twice() -> None:
    """Neighbours in time are neighbours in a store's file, over the end of a run too, and 0 stands for no id."""
    maker = Maker(CacheConfig(), lambda: "", lambda: 0.0)
    query = Query(scope=b"s", exact=b"e", text="t", semantic_bar=None, max_ttl=None, team="t", project="p", model="m")
    kept = Kept(answer=b"{}", prompt_tokens=1, completion_tokens=1, cost_nano=1, latency_ms=1.0, origin="")
    made = [found.id for _ in range(5_000) if (found := maker.entry(query, kept, None, None)) is not None]
    assert len(set(made)) == 5_000
    assert all(0 < number < 1 << 53 for number in made)
    assert sum(after - before == 1 for before, after in pairwise(made)) >= 4_990


def test_many_entries_are_written_together_and_the_last_of_a_digest_counts(tmp_path: Path) -> None:
    """Rows travel many to a statement; one that replaces another of the same batch must not meet it there."""
    file = SqliteFile(tmp_path / "cache.db", codec, Bounds(1_000, 1 << 20))
    file.open()
    made = [entry(number, b"%d" % number) for number in range(1, 101)]
    later = msgspec.structs.replace(made[69], id=1_000, answer=b"later")
    batch = [Gathered(one, codec.encode(one)) for one in made]
    batch.insert(80, Gathered(later, codec.encode(later), replaces=70))
    changes = file.write(batch, {}, 0.0)
    assert [(change.kind, change.row.entry_id) for change in changes] == [("drop", 70)]
    found = {one.id: one.answer for one in file.entries(file.newest(ANYTHING, 0.0, 200))}
    assert found == {one.id: one.answer for one in made if one.id != 70} | {1_000: b"later"}
    file.shut()
