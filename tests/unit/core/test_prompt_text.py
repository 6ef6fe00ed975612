"""The text by which prompts are told apart when a replica is chosen."""

from typing import Any

import pytest

from gateway.call import Body
from gateway.prompt_text import prompt_text

HELLO: Body = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [{"role": "system", "content": "hello"}]},
        {"messages": [HELLO, HELLO]},
        {"messages": [HELLO], "tools": [{"type": "function", "function": {"name": "f"}}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:a"}}]}]},
        {"messages": [{"role": "user", "content": "hello", "tool_calls": [{"id": "1"}]}]},
    ],
)
def test_other_prompts_have_other_texts(other: Body) -> None:
    """Two that looked alike would be sent to a replica that holds neither."""
    assert prompt_text(other) != prompt_text({"messages": [HELLO]})


@pytest.mark.parametrize("body", [{"messages": [HELLO]}, {"prompt": "once"}, {"prompt": [1, 2, 3]}])
def test_a_next_turn_begins_with_the_last_one(body: Any) -> None:
    """Otherwise nothing that a conversation left behind would be found again."""
    longer = {name: value + value for name, value in body.items()}
    assert prompt_text(longer).startswith(prompt_text(body).rstrip("]"))


@pytest.mark.parametrize("body", [{}, {"messages": [None, 1, {"role": None, "content": [None, 3]}], "tools": [1]}])
def test_nothing_it_may_meet_is_an_error(body: Any) -> None:
    """Choosing a place must not fail for what an upstream would have accepted."""
    assert isinstance(prompt_text(body), str)
