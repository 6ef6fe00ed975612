"""What the documentation tells people to type and to write exists: commands, their flags, settings by their names."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli import build
from gateway.settings import load

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OLD = ("decisions.md", "benchmarks.md", "clients-failures.md")  # what was so on the day it was written

_FENCED = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
_INLINE = re.compile(r"`(nearhit [^`]+)`")
_SETTING = re.compile(r"`([a-z]+(?:\.[a-z_]+)*): (\{[^`]*\})`")
_BEFORE = re.compile(r"^(?:\.venv/bin/|docker compose exec gateway )")
_NOT_SETTINGS = ("service", "chat_template_kwargs")  # fields of requests and of prices


def blocks(document: Path, language: str) -> list[str]:
    return [body for told, body in _FENCED.findall(document.read_text("utf-8")) if told == language]


def commands(document: Path) -> list[str]:
    """Each on one line, without what a shell would do with it."""
    named = _INLINE.findall(_FENCED.sub("", document.read_text("utf-8")))
    return typed(document) + [_without_shell(line) for line in named]


def typed(document: Path) -> list[str]:
    """Those that stand in a block, to be typed as they are."""
    lines = "\n".join(blocks(document, "sh")).replace("\\\n", " ").splitlines()
    found = [_BEFORE.sub("", line) for line in lines]
    return [_without_shell(line) for line in found if line.startswith("nearhit ")]


def _without_shell(line: str) -> str:
    return re.split(r" [#>|] |#|;", line)[0].strip()


def flags_of(command: str) -> tuple[list[str], set[str], set[str]]:
    """The words that name a command, the flags that were given, the flags it has."""
    part: Any = build()
    named: list[str] = []
    words = command.split()[1:]
    while words and words[0] in part and not words[0].startswith("-"):
        part = part[words[0]]
        named.append(words.pop(0))
    given = {word.split("=")[0] for word in words if re.match(r"--\w", word.strip("[]"))}
    known = {name for argument in part.assemble_argument_collection() for name in argument.names}
    return named, {flag.strip("[]") for flag in given}, known | {"--help", "--version"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_and_flag_exists(document: Path) -> None:
    """A command that was renamed leaves its name in the guides; whoever types it is told that there is none."""
    for command in commands(document):
        if "[/" in command or "|" in command:
            continue  # several in one word
        named, given, known = flags_of(command)
        assert named or given <= known, f"{document.name}: {command}"
        assert given <= known, f"{document.name}: {command}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_in_a_block_is_whole(document: Path) -> None:
    """docs/containers.md had people type `keys create` without the name that it needs, as the stack's third step."""
    for command in typed(document):
        build().parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("document", [path for path in DOCUMENTS if path.name not in OLD], ids=lambda path: path.name)
def test_every_setting_shown_can_be_written(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown key keeps the gateway from starting, and docs/cache.md told people to write one."""
    shown = blocks(document, "yaml")
    for name, value in _SETTING.findall(document.read_text("utf-8")):
        if name not in _NOT_SETTINGS:
            outer = "".join(f"{part}: {{" for part in name.split(".")[:-1])
            shown.append(f"{outer}{name.split('.')[-1]}: {value}{'}' * name.count('.')}")
    config = tmp_path / "nearhit.yaml"
    for text in shown:
        for variable in re.findall(r"\$\{(\w+)\}", text):
            monkeypatch.setenv(variable, "https://told.example")
        config.write_text(text.replace("…", "told"))
        assert isinstance(yaml.safe_load(config.read_text()), dict)
        load(config)
