"""Every threat and every fault has a row, and every test that a row names exists: a promise without a test is none."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "threats.md").read_text("utf-8")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and not re.match(r"\| (#|fault|---)", line)]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", TEXT)))

FAULTS = (
    "client leaves, streamed",
    "client leaves, whole",
    "client reads slowly",
    "upstream refuses, no such name",
    "upstream says 429",
    "upstream fails before bytes",
    "upstream refuses the request, or our key",
    "upstream hangs before the first byte",
    "upstream stalls or is cut in the middle",
    "upstream is silent within what it may be",
    "upstream sends garbage",
    "Redis refuses",
    "Redis hangs",
    "one host is cut off from Redis",
    "Redis flushed, evicted, restarted",
    "Redis answers another question",
    "database down",
    "database slow, a row locked",
    "database frozen, or cut off without a word",
    "database full or read-only",
    "database's reply lost after COMMIT",
    "journal's disk full",
    "the disk of the home is full, metrics are written",
    "journal cannot be synced",
    "encoder dies, is slow",
    "a snapshot of vectors is damaged",
    "the index changes while it is searched",
    "the encoder is another one",
    "engine out of memory, a step that fails",
    "engine stuck",
    "a prompt that breaks the engine",
    "kill -9 of a worker",
    "power lost",
    "restart with open streams",
    "clocks jump",
    "the same request sent again",
    "the same prompt 500 times at once",
    "a huge prompt",
    "memory nearly used up",
    "memory over hours",
    "collector of traces away",
    "wrong configuration",
    "the event loop is late",
)


@cache
def defined_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_threat_is_told_once() -> None:
    """A number that is left out is a threat nobody looked at."""
    assert [f"T{number}" for number in range(1, 32)] == re.findall(r"^\| (T\d+) \|", TEXT, re.MULTILINE)


def test_every_fault_is_told_once() -> None:
    """What each part does when it fails was decided before it was built; a row that goes is a fault nobody drives."""
    told = [row.split("|")[1].strip() for row in TEXT[TEXT.index("## Failures") :].splitlines() if row in ROWS]
    assert sorted(told) == sorted(FAULTS)


def test_every_row_names_a_test() -> None:
    """Threats and faults alike."""
    assert [row for row in ROWS if "`tests/" not in row] == []


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_named_tests_exist(path: str) -> None:
    """A test that was renamed or taken away leaves its row a lie."""
    wanted = {name for where, name in NAMED if where == path}
    assert wanted - defined_in(path) == set()
