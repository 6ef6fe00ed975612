"""The lines of a batch's input: what may be run, and how each fault is told."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.lines import LARGEST_LINE, Faults, Read, answered, lines_of, read

CHAT = "/v1/chat/completions"
encode = msgspec.json.encode


def line(**changed: Any) -> bytes:
    return encode({"custom_id": "a", "method": "POST", "url": CHAT, "body": {"model": "m"}} | changed)


async def pieces(content: bytes, size: int = 7) -> AsyncGenerator[bytes, None]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


async def all_of(content: bytes, most: int = 10) -> tuple[list[Read], Faults]:
    faults = Faults()
    return [one async for one in read(pieces(content), CHAT, most, faults)], faults


@given(
    content=st.lists(st.binary(max_size=20).filter(lambda raw: b"\n" not in raw)).map(b"\n".join),
    size=st.integers(1, 9),
)
async def test_lines_are_the_same_however_a_file_is_cut(content: bytes, size: int) -> None:
    """Pieces end anywhere; a line that is torn there must not become two."""
    found = [one async for one in lines_of(pieces(content, size))]
    whole = content.split(b"\n")
    assert found == (whole if whole[-1] else whole[:-1])


FAULTS: list[tuple[bytes, list[str]]] = [
    (line() + b"\n" + line(), ["duplicate_custom_id"]),
    (b"{", ["invalid_json_line"]),
    (b'{"custom_id": "a"}', ["invalid_json_line"]),
    (line(body=[1]), ["invalid_json_line"]),
    (b"\xff\xfe", ["invalid_json_line"]),
    (line(url="/v1/embeddings"), ["mismatched_endpoint"]),
    (line(method="GET"), ["invalid_method"]),
    (line(custom_id=""), ["invalid_custom_id"]),
    (line(custom_id="a\n"), ["invalid_custom_id"]),
    (line(body={}), ["missing_required_parameter"]),
    (b"\n \n", ["empty_file"]),
    (b"\n".join(line(custom_id=str(n)) for n in range(12)), ["too_many_requests"]),
    (line(body={"model": "m", "pad": "x" * LARGEST_LINE}), ["line_too_long"]),
]


@pytest.mark.parametrize(("content", "codes"), FAULTS, ids=lambda value: value[0] if isinstance(value, list) else "")
async def test_a_fault_is_told_with_its_line(content: bytes, codes: list[str]) -> None:
    """The client mends its file by this list; no line may be dropped in silence."""
    faults = Faults()
    size = 1 << 16 if len(content) > LARGEST_LINE else 7
    found = [one async for one in read(pieces(content, size), CHAT, 10, faults)]
    assert [fault["code"] for fault in faults.found] == codes
    assert len(found) <= 10


async def test_a_good_file_is_read_in_order() -> None:
    """Empty lines count as lines and are no requests."""
    found, faults = await all_of(line(custom_id="b") + b"\r\n\n" + line(custom_id="a"))
    assert faults.found == []
    assert [(one.number, one.custom_id) for one in found] == [(1, "b"), (3, "a")]
    assert msgspec.json.decode(found[0].request) == {"model": "m"}


async def test_a_mark_that_windows_writes_is_no_part_of_the_first_line() -> None:
    """A file that PowerShell wrote was refused at its first line, for a character that nobody sees."""
    found, faults = await all_of(b"\xef\xbb\xbf" + line() + b"\n")
    assert ([one.custom_id for one in found], faults.found) == (["a"], [])
    _, faults = await all_of(line() + b"\n\xef\xbb\xbf" + line(custom_id="b"))
    assert [fault["line"] for fault in faults.found] == [2]


def test_an_answer_is_one_line_with_the_body_as_it_was() -> None:
    """A body is not decoded and encoded again: floats and order stay."""
    raw = answered("a", 200, "r", b'{"b":1.10,"a":"\\n"}')
    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 1
    assert b'"body":{"b":1.10,"a":"\\n"}' in raw
