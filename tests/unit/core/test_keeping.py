"""Which answers become entries: those that came to their end, and no others."""

import pytest

from gateway.call import Body, Call, Chunk, Directives, Outcome, Principal
from gateway.flights import Flight, Step
from gateway.keeping import kept_from
from gateway.reading import Reading

CALL = Call(
    id="c",
    operation="chat",
    principal=Principal(key_id="k", team="t", project="p"),
    body={"model": "m", "messages": []},
    model="m",
    stream=False,
    include_usage=False,
    directives=Directives(),
    received=0.0,
    at=0.0,
    deadline=1.0,
)


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        (None, True),
        ("stop_sequence", True),
        ("eos", True),
        ("stop", True),
        ("STOP", True),
        ("end_turn", True),
        ("completed", True),
        ("network_error", False),
        ("pause_turn", False),
        ("MALFORMED_FUNCTION_CALL", False),
        ("OTHER", False),
    ],
)
def test_a_stop_for_want_of_a_better_word_is_no_end(reason: str | None, kept: bool) -> None:
    """Half a turn must not be what everybody with that question gets; OpenRouter names a reason with whole ones too."""
    told = {} if reason is None else {"native_finish_reason": reason}
    choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop", **told}
    flight = Flight(None, streamed=False)
    flight.push(Chunk({"choices": [choice]}, final=True))
    flight.landing.ended = "complete"
    flight.landing.steps.append(Step(id="s", provider="p", model="m"))
    assert (kept_from(CALL, flight) is not None) is kept


async def test_the_first_to_ask_reads_the_same_bytes_whether_its_answer_is_kept_or_not() -> None:
    """What is kept is spelled once, for the entry and for whoever asked: neither may see the other's names."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}
    told: Body = {"id": "theirs", "object": "chat.completion", "created": 1, "model": "theirs", "choices": [choice]}
    read: list[bytes] = []
    for spelled in (False, True):
        flight = Flight(None, streamed=False)
        flight.push(Chunk(told, final=True))
        flight.landing.ended = "complete"
        flight.landing.steps.append(Step(id="s", provider="p", model="m"))
        kept = kept_from(CALL, flight)
        assert kept is not None
        flight.spelled = kept.answer if spelled else None
        flight.end()
        read.append(await Reading(CALL, flight, Outcome(call=CALL), lambda: None).whole())
    assert read[0] == read[1]
    assert b"theirs" not in read[1]
