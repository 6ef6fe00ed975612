"""The memory of requests read before: what it keeps and what it lets go."""

from cache.types import Query
from gateway.repeats import Repeat, Repeats

REPEAT = Repeat(
    body={"model": "m"},
    model="m",
    stream=False,
    include_usage=False,
    query=Query(scope=b"s", exact=b"e", text="t"),
)


def test_only_the_last_used_are_kept() -> None:
    """Without a bound a client that never repeats itself would fill the memory."""
    repeats = Repeats()
    for n in range(2_000):
        repeats.keep(("chat", "key", b"%d" % n), REPEAT)
        repeats.get(("chat", "key", b"0"))
    assert len(repeats) == 512
    assert repeats.get(("chat", "key", b"0")) is REPEAT
    assert repeats.get(("chat", "key", b"1")) is None


def test_a_long_request_is_not_kept() -> None:
    """Documents are not repeated byte for byte often enough to pay for their room."""
    repeats = Repeats()
    repeats.keep(("chat", "key", b"x" * 10_000), REPEAT)
    assert not len(repeats)


def test_another_key_or_operation_reads_for_itself() -> None:
    """What a body asks of the cache depends on who sends it where."""
    repeats = Repeats()
    repeats.keep(("chat", "key", b"{}"), REPEAT)
    assert repeats.get(("chat", "other", b"{}")) is None
    assert repeats.get(("completion", "key", b"{}")) is None
