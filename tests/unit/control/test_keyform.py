"""The text of a key: form, check letters, what is stored."""

import secrets
import string

from hypothesis import given
from hypothesis import strategies as st

from gateway import keyform

LETTERS = string.ascii_letters + string.digits + "-_"


def test_a_minted_key_reads_back_as_its_id() -> None:
    """A key that cannot be read back would lock its owner out at once."""
    minted = keyform.mint(secrets.token_bytes)
    assert keyform.key_id(minted.key.encode()) == minted.id
    assert len(minted.key) == len("sk-nh-") + 8 + 1 + 43 + 6


def test_a_kept_id_gets_a_new_secret() -> None:
    """Rotation keeps budgets and usage under one id."""
    first = keyform.mint(secrets.token_bytes)
    second = keyform.mint(secrets.token_bytes, name=first.id)
    assert second.id == first.id
    assert second.key != first.key


@given(st.binary(min_size=41, max_size=41), st.integers(0, 56), st.sampled_from(LETTERS))
def test_one_wrong_letter_is_refused_without_a_database(raw: bytes, place: int, letter: str) -> None:
    """Mistyped keys must never cost a query."""
    feed = iter((raw[:8], raw[8:]))
    key = keyform.mint(lambda _: next(feed)).key
    where = len("sk-nh-") + place
    wrong = key[:where] + letter + key[where + 1 :]
    assert wrong == key or keyform.key_id(wrong.encode()) is None


@given(st.binary(max_size=200))
def test_any_other_text_is_refused(text: bytes) -> None:
    """Whatever a client sends in the header, reading it never raises."""
    assert keyform.key_id(text) is None


def test_what_is_stored_depends_on_the_pepper() -> None:
    """A stolen database without the pepper must not tell which key belongs to a row."""
    key = keyform.mint(secrets.token_bytes).key.encode()
    one = keyform.stored_form(b"a" * 32, key)
    assert one != keyform.stored_form(b"b" * 32, key)
    assert one == keyform.stored_form(b"a" * 32, key)
    assert key not in one
