"""Keys of a prompt's beginnings: what they tell apart, and how little they cost a long prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.routing.beginnings import ENDS, beginnings

TEXT = "".join(f"{number:07x}," for number in range(40_000))  # 320,000 characters, no two pieces alike


@pytest.mark.parametrize("size", [0, 63, 64, 511, 512, 8_191, 8_192, 12_287, 12_288, 262_144, 300_000])
def test_only_whole_pieces_have_a_key(size: int) -> None:
    """The end of a piece that is still being written would match nothing, or too much."""
    assert len(beginnings(TEXT[:size], "")) == sum(end <= size for end in ENDS)
    assert len(ENDS) <= 85


@given(st.integers(0, 200_000), st.integers(0, 100_000))
def test_what_follows_changes_no_key(size: int, more: int) -> None:
    """The next turn of a conversation has to find all that the last one left."""
    keys = beginnings(TEXT[:size], "a")
    assert beginnings(TEXT[: size + more], "a")[: len(keys)] == keys
    assert not set(keys) & set(beginnings(TEXT[:size], "b"))  # another tenant's are others


@given(st.integers(0, 262_143))
def test_text_that_moves_is_told_from_there_on(at: int) -> None:
    """A letter put in somewhere moves all that follows, which no replica holds then."""
    shared = sum(end <= at for end in ENDS)
    keys, other = beginnings(TEXT, ""), beginnings(TEXT[:at] + "~" + TEXT[at:], "")
    assert keys[:shared] == other[:shared]
    assert not set(keys[shared + 1 :]) & set(other[shared + 1 :])


def test_a_change_in_the_middle_of_a_long_piece_is_overlooked_and_nowhere_else() -> None:
    """What is taken on trust is written down: 4,096 characters at a time beyond the first 8,192."""
    assert beginnings(TEXT[:4_000] + "~" + TEXT[4_001:], "")[-1] != beginnings(TEXT, "")[-1]
    assert beginnings(TEXT[:10_000] + "~" + TEXT[10_001:], "") == beginnings(TEXT, "")
