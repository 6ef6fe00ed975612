"""Nothing grows past what can be read in one go: files, functions, argument lists.

ruff cannot limit a file's length, and strict lint alone does not keep functions short; so this is a rule of its own.
History (`migrations/versions`) is not measured: it is generated once and never edited.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("gateway", "engine", "cache", "policies", "migrations")
MOST_LINES, MOST_LINES_OF_A_FUNCTION, MOST_ARGUMENTS, MOST_LINES_OF_THE_PIPELINE = 400, 60, 6, 150

# path or path:function -> (when it was allowed, why). An entry that is no longer needed fails the test.
ALLOWED: dict[str, tuple[str, str]] = {}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> list[Path]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in found if path.parent.name != "versions")


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def lines_of(function: Function) -> int:
    """From `def` to the last line, without the docstring."""
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        said = function.body[0]
        length -= (said.end_lineno or said.lineno) - said.lineno + 1
    return length


def arguments_of(function: Function) -> int:
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def excused(function: Function, lines: list[str]) -> bool:
    """A `noqa: PLR0913` with its reason on the signature already says why, beside the code it excuses."""
    signature = lines[function.lineno - 1 : function.body[0].lineno]
    return any(re.search(r"noqa: PLR0913\W+\w", line) for line in signature)


@cache
def too_big() -> list[tuple[str, str]]:
    """What is over a limit: (its name in ALLOWED, in words)."""
    return list(_over_a_limit())


def _over_a_limit() -> Iterator[tuple[str, str]]:
    for path in sources():
        text = path.read_text("utf-8")
        lines = text.splitlines()
        name = path.relative_to(ROOT).as_posix()
        limit = MOST_LINES_OF_THE_PIPELINE if name == "gateway/pipeline.py" else MOST_LINES
        if len(lines) > limit:
            yield name, f"{name} has {len(lines)} lines, at most {limit}"
        for function in functions(ast.parse(text)):
            place = f"{name}:{function.name}"
            if (length := lines_of(function)) > MOST_LINES_OF_A_FUNCTION:
                yield place, f"{place} has {length} lines, at most {MOST_LINES_OF_A_FUNCTION}"
            if (count := arguments_of(function)) > MOST_ARGUMENTS and not excused(function, lines):
                yield place, f"{place} takes {count} arguments, at most {MOST_ARGUMENTS}"


def test_nothing_is_too_big() -> None:
    """A file that needs scrolling through is one nobody reviews."""
    found = [text for name, text in too_big() if name not in ALLOWED]
    assert not found, "\n".join(found)


def test_the_allow_list_is_needed() -> None:
    """An exception that outlived its reason invites the next one."""
    needed = {name for name, _ in too_big()}
    assert set(ALLOWED) <= needed, f"no longer too big: {sorted(set(ALLOWED) - needed)}"


@pytest.mark.parametrize(
    ("source", "lines", "arguments"),
    [
        ("def f(a, /, b, *, c):\n    return a\n", 2, 3),
        ('class C:\n    def f(self, a):\n        """One.\n\n        Two.\n        """\n        return a\n', 2, 1),
        ("async def f(\n    a,\n    b,\n):\n    return a\n", 5, 2),
    ],
)
def test_the_measure_itself(source: str, lines: int, arguments: int) -> None:
    """A measure that counts wrongly would pass everything."""
    [function] = functions(ast.parse(source))
    assert (lines_of(function), arguments_of(function)) == (lines, arguments)


def test_something_was_measured() -> None:
    """A renamed folder must not turn the rule off."""
    assert len(sources()) > 20
    assert all((ROOT / package).is_dir() for package in ("gateway", "engine", "cache", "policies"))
