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
    assert [f"T{number}" for number in range(1, 31)] == re.findall(r"^\| (T\d+) \|", TEXT, re.MULTILINE)


def test_every_row_names_a_test() -> None:
    """Threats and faults alike."""
    assert len(ROWS) > 60
    assert [row for row in ROWS if "`tests/" not in row] == []


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_named_tests_exist(path: str) -> None:
    """A test that was renamed or taken away leaves its row a lie."""
    wanted = {name for where, name in NAMED if where == path}
    assert wanted - defined_in(path) == set()
