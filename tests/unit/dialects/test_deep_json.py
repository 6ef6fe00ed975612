"""JSON inside of strings: what a client or a model nests without end is text, and no crash."""

from collections.abc import Callable
from typing import Any

import pytest

from gateway.dialects.messages_answer import _arguments as arguments_for_anthropic
from gateway.dialects.messages_request import translate
from gateway.dialects.responses_items import Called
from gateway.foreign_headers import _json as told_in_a_header
from gateway.several import _arguments as arguments_to_compare

DEEP = '{"a":' + "[" * 1_018  # as long as `metadata.user_id` may be


def who_asks(text: str) -> object:
    asked: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    return translate({**asked, "metadata": {"user_id": text}}, counting=False).body["user"]


def free_text(text: str) -> object:
    return Called("id", 0, "call", "f", None, custom=True, pieces=[text])._text()


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (who_asks, DEEP),
        (arguments_for_anthropic, {"invalid_json": DEEP}),
        (lambda text: arguments_to_compare({"function": {"arguments": text}}), DEEP),
        (free_text, DEEP),
        (told_in_a_header, {}),
    ],
    ids=["user_id", "arguments", "vote", "custom tool", "header"],
)
def test_what_is_nested_without_end_stays_text(read: Callable[[str], object], expected: object) -> None:
    """Decoding it is a RecursionError, which was answered 500."""
    assert read(DEEP) == expected
