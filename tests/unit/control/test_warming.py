"""`nearhit cache warm`: lines, marks and the shared dollar cap. The command itself: tests/e2e/test_warm.py."""

from pathlib import Path

from gateway.warming import Bad, Done, Item, Purse, read


def lines(path: Path, *rows: str) -> list[Item | Bad]:
    path.write_text("\n".join(rows))
    return list(read(path, "chat"))


def test_bad_lines_are_named_by_number_and_the_rest_is_read(tmp_path: Path) -> None:
    """One stray comma in line 90,000 must not cost the other 89,999."""
    found = lines(
        tmp_path / "w.jsonl",
        '{"prompt": "a"}',
        "not json",
        "",
        '{"prompt": "b", "answer": "B", "model": "smart"}',
        '{"answer": "no question"}',
        '{"prompt": "c", "messages": [{}]}',
        '{"prompt": "d", "colour": "red"}',
        '{"messages": [{"role": "user", "content": "e"}]}',
    )
    assert [one.number for one in found if isinstance(one, Bad)] == [2, 5, 6, 7]
    good = [one for one in found if isinstance(one, Item)]
    assert [(one.number, one.model, one.answer) for one in good] == [
        (1, "chat", None),
        (4, "smart", "B"),
        (8, "chat", None),
    ]


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors and spreadsheets of Windows write one, and the first line could not be used."""
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n', "utf-8-sig")
    assert [one.number for one in read(path, "chat") if isinstance(one, Item)] == [1, 2]


def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A file that is no JSONL at all may be one line of gigabytes."""
    path = tmp_path / "w.jsonl"
    path.write_bytes(b"x" * (3 << 20))
    (found,) = list(read(path, "chat"))
    assert isinstance(found, Bad)


def test_marks_survive_a_stop_and_tell_answers_apart(tmp_path: Path) -> None:
    """A run that is taken up again pays for nothing twice, but a corrected answer is a new line."""
    one, other = lines(tmp_path / "w.jsonl", '{"prompt": "a", "answer": "1"}', '{"prompt": "a", "answer": "2"}')
    assert isinstance(one, Item)
    assert isinstance(other, Item)
    Done(tmp_path / "run" / "marks").add(one.mark)
    again = Done(tmp_path / "run" / "marks")
    assert one.mark in again
    assert other.mark not in again
    again.forget()
    assert one.mark not in Done(tmp_path / "run" / "marks")


def test_limits_of_requests_under_way_never_add_up_to_more_than_the_cap() -> None:
    """Four answers at once, each within its own limit, must not spend four caps."""
    purse = Purse(1_000, 4)
    held = [purse.take() or 0 for _ in range(4)]
    assert sum(held) <= 1_000
    assert purse.take(rest=True) == 1_000 - sum(held)
    for part in held:
        purse.give_back(part, part)
    assert purse.spent <= 1_000
    assert Purse(None, 4).take() is None
    assert Purse(0, 4).take() == 0
