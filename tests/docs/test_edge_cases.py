"""Every row of odd input stands in docs/edge-cases.md, and every test that a row names exists."""

import re

import pytest

from tests.docs.test_threats import ROOT, defined_in
from tests.flow.edge_fields import ROWS as FIELDS

TEXT = (ROOT / "docs" / "edge-cases.md").read_text("utf-8")
ROWS = [line for line in TEXT.splitlines() if re.match(r"\| \d+ \|", line)]
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", TEXT)))


def test_every_case_is_told_once_and_names_a_test() -> None:
    """A number that is left out is a case nobody looked at."""
    assert [int(row.split("|")[1]) for row in ROWS] == list(range(1, 161))
    assert [row for row in ROWS if "`tests/" not in row] == []


def test_every_row_of_the_table_of_fields_is_one_that_is_sent() -> None:
    """A row that names the table without standing in it would be asked by nobody."""
    told = {int(row.split("|")[1]) for row in ROWS if "test_edge_rows.py::test_fields`" in row}
    assert told == {row.number for row in FIELDS}


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_named_tests_exist(path: str) -> None:
    """A test that was renamed or taken away leaves its row a lie."""
    assert {name for where, name in NAMED if where == path} - defined_in(path) == set()
