"""Documentation names files that exist, and nothing in the repository names the machine it was written on."""

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("gateway", "cache", "engine", "policies", "migrations", "tests", "docs", "deploy", ".ci")
BARE = (".py", ".md", ".toml", ".sh", ".ini")
NOT_OURS = ("node_modules", "__pycache__", "dist", "build", "out")
TEXTS = (".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".html", ".js", ".css", ".json", ".txt", ".ini", ".cfg", "")

_BACKTICKED = re.compile(r"`([^`\s]+)`")
_LINKED = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
# the folders of one person's machine; a container's own user is named on purpose
_SOMEBODYS = re.compile(r"(?<![\w.<])/(?:root|work|Users/\w+|home/(?!nearhit\b)\w+)/")


def documents() -> list[Path]:
    named = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [path for path in named if path.exists()] + sorted((ROOT / "docs").rglob("*.md"))


def named_paths(text: str) -> set[str]:
    """Backticked words that mean a file or folder of this repository. `<kind>` and `*` stand for anything."""
    found: set[str] = set()
    for word in _BACKTICKED.findall(text):
        path = word.split(":")[0].rstrip("/.,")
        nested, bare = path.split("/")[0] in FOLDERS and "/" in path, "/" not in path and path.endswith(BARE)
        if nested or (bare and not path.startswith(".")):
            found.add(path)
    return found


def exists(path: str) -> bool:
    pattern = re.sub(r"<[^>]+>", "*", path).replace("{", "[").replace("}", "]")
    if "[" in pattern:  # `gateway/{app,pipeline}.py`: one per name
        before, names, after = re.split(r"[\[\]]", pattern, maxsplit=2)
        return all(exists(before + name + after) for name in names.split(","))
    if "/" in pattern:
        return any(ROOT.glob(pattern))
    return pattern in file_names() or any(fnmatchcase(name, pattern) for name in file_names())


def written_by_hand(folder: str) -> bool:
    """Not a cache, an environment or a build: of the hidden folders only `.ci` is written by hand."""
    return folder not in NOT_OURS and (not folder.startswith(".") or folder == ".ci")


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if written_by_hand(name)]  # an environment has more than all the rest
        yield from (Path(place, name) for name in files if name != ".git")  # a worktree's: where the others are


@cache
def ours() -> list[Path]:
    """Every file of the repository's own."""
    return list(_below(ROOT))


@cache
def file_names() -> set[str]:
    return {path.name for path in ours()}


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_named_paths_exist(document: Path) -> None:
    """A guide that points at a file which moved sends a newcomer looking for nothing."""
    missing = sorted(path for path in named_paths(document.read_text("utf-8")) if not exists(path))
    assert not missing, f"{document.name} names {missing}"


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Relative links break silently when a page is moved."""
    targets = [link for link in _LINKED.findall(document.read_text("utf-8")) if "://" not in link]
    missing = [link for link in targets if not (document.parent / link).exists()]
    assert not missing, f"{document.name} links to {missing}"


def test_nobodys_machine_is_named() -> None:
    """A path of one machine in a committed file works nowhere else."""
    here = Path(__file__)
    named: list[str] = []
    for path in ours():
        inside = path.relative_to(ROOT)
        if path.suffix not in TEXTS or path == here:
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        if somebodys := _SOMEBODYS.search(text):
            named.append(f"{inside}: {somebodys[0]}")
    assert not named, "\n".join(named)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see `gateway/pipeline.py` and `gateway/`", {"gateway/pipeline.py"}),
        ("`/v1/models`, `local/demo` and `nearhit serve`", set()),
        ("`gateway/pipeline.py:complete`", {"gateway/pipeline.py"}),
        ("`no_such_file.py`", {"no_such_file.py"}),
    ],
)
def test_what_counts_as_a_path(text: str, expected: set[str]) -> None:
    """A pattern that matches nothing would let every document pass."""
    assert named_paths(text) == expected


def test_a_missing_path_is_noticed() -> None:
    """The same, for the look-up."""
    assert exists("gateway/call.py")
    assert exists("gateway/{call,errors}.py")
    assert exists("gateway/providers/<kind>.py")
    assert not exists("gateway/{call,nothing}.py")
    assert not exists("gateway/nothing.py")
    assert not exists("nothing_at_all.py")
