"""The event parser under every legal form and cut, and within its bounds under every illegal one."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.stream import DONE, EventParser, StreamGarbage, encode_event, parse

TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r\n"), max_size=20)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def legal_streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream's bytes and the data of its events, in every form the standard allows."""
    end = draw(ENDS)
    pieces = [draw(st.sampled_from(["", "\ufeff"]))]
    events: list[bytes] = []
    for _ in range(draw(st.integers(0, 5))):
        lines = draw(st.lists(TEXTS, min_size=1, max_size=3))
        for line in lines:
            if draw(st.booleans()):
                pieces.append(f":{draw(TEXTS)}{end}")
            if draw(st.booleans()):
                pieces.append(f"id: {draw(TEXTS)}{end}")
            # Without the optional blank a line that begins with one would lose it.
            blank = " " if line.startswith(" ") or draw(st.booleans()) else ""
            pieces.append(f"data:{blank}{line}{end}" if line or blank or draw(st.booleans()) else f"data{end}")
        pieces.append(end)
        events.append("\n".join(lines).encode())
    if draw(st.booleans()):
        pieces.append(f"data: cut off{draw(st.sampled_from(['', end]))}")
    return "".join(pieces).encode(), events


def packets(raw: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(cut, len(raw)) for cut in cuts} | {0, len(raw)})
    return [raw[start:end] for start, end in pairwise(places)]


def read(pieces: list[bytes]) -> list[bytes]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@given(legal_streams(), st.lists(st.integers(0, 300), max_size=12))
def test_any_cut_of_a_legal_stream_gives_the_same_events(stream: tuple[bytes, list[bytes]], cuts: list[int]) -> None:
    """TCP cuts where it likes: inside a character, inside CRLF, inside the byte order mark."""
    raw, events = stream
    assert read(packets(raw, cuts)) == events
    assert read([raw[at : at + 1] for at in range(len(raw))]) == events


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_garbage_is_bounded_and_never_another_error(pieces: list[bytes]) -> None:
    """An upstream may send anything; what it may do is end in one kind of failure."""
    parser = EventParser(max_line=40, max_event=80)
    try:
        for piece in pieces:
            for event in parser.feed(piece):
                assert len(event) <= 80
                parse(event)
    except StreamGarbage:
        return


@given(legal_streams(), st.lists(st.integers(0, 300), max_size=12))
def test_what_stood_before_the_garbage_is_given_out_first(stream: tuple[bytes, list[bytes]], cuts: list[int]) -> None:
    """Tokens that came are tokens that were paid for, even when nonsense follows in the same packet."""
    raw, events = stream
    parser = EventParser(max_line=1_000)
    seen: list[bytes] = []
    with pytest.raises(StreamGarbage):  # noqa: PT012 - where it is raised depends on the cut
        for piece in [*packets(raw + b"\n\ndata:" + b"x" * 1_200, cuts), b"", b"\n"]:
            seen += parser.feed(piece)
    assert seen[: len(events)] == events


def test_a_line_without_end_is_refused_at_the_bound() -> None:
    """100 MB without a line end must not become 100 MB of memory."""
    parser = EventParser()
    parser.feed(b"data: ")
    with pytest.raises(StreamGarbage):  # noqa: PT012 - the packet that passes the bound raises
        for _ in range(100):
            parser.feed(b"x" * 65_536)
    with pytest.raises(StreamGarbage):
        parser.feed(b"\n\n")


def test_an_event_of_many_lines_is_refused_at_the_bound() -> None:
    """Every line short, the event endless: the other way to fill memory."""
    parser = EventParser(max_event=10_000)
    with pytest.raises(StreamGarbage):  # noqa: PT012 - the packet that passes the bound raises
        for _ in range(10_001):
            parser.feed(b"data:\n")


def test_named_pings_are_dropped() -> None:
    """Some servers keep alive with `event: ping` and a JSON body that is no chunk."""
    assert read([b'event: ping\ndata: {}\n\nevent: message\ndata: {"a":1}\n\n']) == [b'{"a":1}']


def test_the_end_mark_may_lack_its_blank_line() -> None:
    """Servers exist that close right after `data: [DONE]`; that is an end, `data: [DO` is none."""
    for tail, whole in ((b"data: [DONE]", True), (b"data: [DONE]\n", True), (b"data: [DO", False), (b"", False)):
        parser = EventParser()
        assert parser.feed(b"data: {}\n\n" + tail) == [b"{}"]
        assert parser.done_at_end() is whole


def test_our_own_frames_read_back() -> None:
    """What we send must be what we accept."""
    body: dict[str, object] = {"text": "ä\n\r\u2028\x00", "n": [1, None]}
    events = read([encode_event(body), DONE])
    assert parse(events[0]) == body
    assert events[1] == b"[DONE]"


@pytest.mark.parametrize("data", [b"", b"null", b"[1]", b"<html>", b'{"a":', b"\xff\xfe", b'"x"', b"[" * 100_000])
def test_only_json_objects_are_events(data: bytes) -> None:
    """Anything else must end as a failure of the upstream, never as an exception of ours."""
    with pytest.raises(StreamGarbage):
        parse(data)
