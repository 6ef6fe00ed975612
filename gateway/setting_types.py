"""What settings are made of: durations, sizes, parts that refuse unknown keys, and how mistakes in them are told.

Knows: how `150ms` and `16MiB` are read. Does not know: any setting.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d)$")
_NAMED_FIELD = re.compile(r'field "(\w+)"')
_SIZE = re.compile(r"^(\d+)(B|KiB|MiB|GiB)$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MOST_VALUES = 200_000
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _is_number(text: str) -> bool:
    """What a variable of the environment says in plain figures."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def seconds(value: object) -> object:
    """`"150ms"`, `"24h"` -> seconds; numbers are seconds already."""
    if isinstance(value, str) and not _is_number(value):
        if (found := _DURATION.match(value.strip())) is None:
            raise ValueError("a duration such as 150ms, 30s, 5m, 24h or 7d")
        return float(found[1]) * _SECONDS[found[2]]
    return value


def octets(value: object) -> object:
    """`"16MiB"` -> bytes; whole numbers are bytes already."""
    if isinstance(value, str) and not _is_number(value):
        if (found := _SIZE.match(value.strip())) is None:
            raise ValueError("a size such as 512KiB, 16MiB or 2GiB")
        return int(found[1]) * _BYTES[found[2]]
    return value


def of_a_user(value: Path) -> Path:
    """No shell reads the file or a variable: `~` was a folder of that name in the working folder."""
    try:
        return value.expanduser()
    except RuntimeError as error:  # nobody of that name
        raise ValueError(str(error)) from None


Place = Annotated[Path, AfterValidator(of_a_user)]
Seconds = Annotated[float, BeforeValidator(seconds), Field(ge=0, allow_inf_nan=False)]
Octets = Annotated[int, BeforeValidator(octets), Field(gt=0)]


class Section(BaseModel):
    """Base of every part: unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_word_for_a_number(cls, value: object, info: ValidationInfo) -> object:
        """YAML's `yes` and `on` are 1 to pydantic: `max_in_flight: on` let one request in at a time."""
        if isinstance(value, bool) and info.field_name is not None:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if bool not in kinds and (int in kinds or float in kinds):
                raise ValueError("a number, not yes or no")
        return value


def _kinds(annotation: object) -> set[object]:
    """A type, or what a union is made of."""
    return {annotation, *(kind for part in get_args(annotation) for kind in _kinds(part))}


def mistakes(error: ValidationError) -> str:
    """Every mistake on a line of its own, by the setting's name. Never a value: it may be a secret in a wrong place."""
    lines: list[str] = []
    for found in error.errors(include_url=False, include_input=False):
        name = ".".join(part for part in map(str, found["loc"]) if "[" not in part)  # of a union: which of its types
        why = "there is no such setting" if found["type"] == "extra_forbidden" else found["msg"]
        lines.append(f"{name}: {why}".removeprefix(": ").replace("Value error, ", "", 1))
    return "the configuration is not valid:\n  " + "\n  ".join(lines)


class TooMuch(Exception):
    """A few lines of a file that stand for more than any configuration holds."""


class _Twice(yaml.MarkedYAMLError):
    """A key that is written twice: of two sections the first would be lost without a word."""


_TEXT, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"
_NO_NAMES = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "null", "int", "float", "timestamp"))


class _Loader(yaml.SafeLoader):
    """Keys are names, whatever else YAML takes them for: a model called `no` was one called False."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """As it is written: what `<<` merges is put among the keys later, and may be said again."""
        node = super().compose_mapping_node(anchor)
        seen: set[object] = set()
        for name, _ in node.value:
            if isinstance(name, yaml.ScalarNode) and name.tag != _MERGE:
                if name.tag in _NO_NAMES:
                    name.tag = _TEXT
                if name.value in seen:
                    raise _Twice(problem=str(name.value)[:60], problem_mark=name.start_mark)
                seen.add(name.value)
        return node


def read_yaml(path: Path) -> object:
    """What stands in a file. Raises ValueError."""
    try:
        return _Loader(path.read_text("utf-8")).get_single_data()
    except yaml.YAMLError as error:
        raise ValueError(f"cannot read {path}: {no_yaml(error)}") from None
    except RecursionError:
        raise ValueError(f"cannot read {path}: brackets stand too deep in each other") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def filled_in(value: object, fill: Callable[[str], str]) -> object:
    """A copy in which `fill` has read every text. Raises TooMuch: what is said again (`*name`) is copied each time."""
    left = _MOST_VALUES

    def copied(part: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise TooMuch(f"it has more than {_MOST_VALUES:,} values, counting what is said again each time")
        if isinstance(part, dict):
            return {str(name): copied(item) for name, item in cast("dict[object, object]", part).items()}
        if isinstance(part, list):
            return [copied(item) for item in cast("list[object]", part)]
        return fill(part) if isinstance(part, str) else part

    try:
        return copied(value)
    except RecursionError:
        raise TooMuch("something in it contains itself") from None


def no_yaml(error: yaml.YAMLError) -> str:
    """Where a file is no YAML. The error's own words show what is written there, which may be a secret, too."""
    if isinstance(error, _Twice) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1} says `{error.problem}` a second time"
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return "it is no YAML" if mark is None else f"line {mark.line + 1}, column {mark.column + 1} is no YAML"


def no_json(error: Exception) -> str:
    """In words what pydantic-settings says of a section that the environment holds whole."""
    field = _NAMED_FIELD.search(str(error))
    name = f"NEARHIT_{field[1].upper()}" if field else "a whole section"
    return f"the environment: {name} is JSON, such as '{{…}}'; single settings are {name}__…"
