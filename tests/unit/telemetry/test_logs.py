"""What is said is one line of JSON an event where that is wanted, by every process, and never a variable's value."""

import logging
import sys
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
import structlog

from gateway import logs
from gateway.log_lines import JsonLines, line, spoken


@pytest.fixture(autouse=True)
def as_before() -> Generator[None, None, None]:
    """Both ways of saying something are the process's own."""
    root, held = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**held)


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lines of standard output."""
    return [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]


def fail(secret: str) -> None:
    """Raise with a variable in the frame that nobody may read."""
    raise ValueError(f"no key of {len(secret)} letters")


def test_a_workers_events_are_lines_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Collectors read lines: a traceback over thirty of them was thirty events, none with a level."""
    logs.configure("json")
    log = structlog.get_logger("nearhit.test")
    try:
        fail("sk-" + "very-secret")
    except ValueError:
        log.exception("it broke", at=3, odd={1, 2} - {1}, thing=ValueError("x"))
    (found,) = said(capsys)
    assert (found["event"], found["level"], found["at"], found["odd"]) == ("it broke", "error", 3, [2])
    assert found["thing"] == "ValueError('x')"
    assert "no key of 14 letters" in found["exception"]
    assert "sk-very-secret" not in str(found)
    assert found["timestamp"].endswith("Z")


@pytest.mark.parametrize("form", ["json", "text"])
def test_what_libraries_say_has_time_level_and_name(form: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Warnings of the cache and of asyncio came as bare messages, of nobody and no hour."""
    logging.getLogger().handlers.clear()  # pytest's own: whoever comes first is taken
    logs.configure_plain(form)
    logging.getLogger("nearhit.cache").warning("a snapshot of %d entries is broken", 3)
    logging.getLogger("nearhit.cache").info("not worth a line")
    if form == "json":
        (found,) = said(capsys)
        assert found.pop("timestamp")
        event = "a snapshot of 3 entries is broken"
        assert found == {"event": event, "level": "warning", "logger": "nearhit.cache"}
    else:
        (text,) = capsys.readouterr().out.splitlines()
        assert text.startswith("20")
        assert "[warning" in text
        assert "a snapshot of 3 entries is broken" in text
        assert "nearhit.cache" in text


def test_engines_and_the_encoder_speak_alike() -> None:
    """Their log is Python's own; its times are of the record, not of the writing."""
    record = logging.LogRecord("engine", logging.ERROR, "x", 1, "%s broke", ("it",), None)
    try:
        fail("sk-" + "very-secret")
    except ValueError:
        record.exc_info = sys.exc_info()
    record.created = 1_764_288_000.25
    found = msgspec.json.decode(JsonLines().format(record))
    assert found.pop("exception").endswith("ValueError: no key of 14 letters")
    event = {"timestamp": "2025-11-28T00:00:00.250000Z", "level": "error", "event": "it broke", "logger": "engine"}
    assert found == event


def test_the_supervisors_page_is_one_event(capsys: pytest.CaptureFixture[str]) -> None:
    """Its thirty lines are told once; as text they stand as they are."""
    spoken("json", lambda: 0.0)("\nnearhit is ready\n  API key  x\n")
    spoken("text", lambda: 0.0)("nearhit: starting\n")
    first, second = capsys.readouterr().out.splitlines()
    assert msgspec.json.decode(first)["event"] == "nearhit is ready\n  API key  x"
    assert second == "nearhit: starting"


def test_what_json_has_no_word_for_is_still_a_line() -> None:
    """An event must not be lost for one odd value."""
    assert msgspec.json.decode(line("x", level="info", at=0, odd=ValueError("why")))["odd"] == "why"
