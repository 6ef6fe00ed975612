"""Settings for people: every value by its name, with where it comes from. Secrets are never shown.

Knows: names, `***`, sources. Does not know: who reads them (the command line, `/ui/policies`).
"""

import re
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
from pydantic import BaseModel, SecretStr

from gateway.secret_files import may_be_a_file
from gateway.setting_types import read_yaml
from gateway.settings import WELL_KNOWN, Settings, environment

_HIDDEN = "***"
_PASSWORD = re.compile(r"(://[^/:@]*:)[^/@]*@")
_IN_QUERY = re.compile(r"([?&][^=&#]*(?:key|token|secret|password|auth|sig)[^=&#]*=)[^&#]+", re.IGNORECASE)
_BY_THE_KEY = ("kind", "base_url", "api_key", "api_version")  # what a provider's usual key in the environment sets
# What belongs to a provider's kind is plain text here, credentials too; any header may be one.
_CREDENTIAL = re.compile(r"providers\..*(?:\.headers\..+|(?:key|token|secret|password|credential)s?)$", re.IGNORECASE)


class Shown(NamedTuple):
    """`source`: default, `file …`, `environment …` or `flag …`."""

    name: str
    value: object
    source: str


def every(settings: Settings, config: Path | None, *, flags: tuple[str, ...] = ()) -> list[Shown]:
    """`config`: the file they were read from, None for ./nearhit.yaml; `flags`: names given on the command line."""
    path = config or Path("nearhit.yaml")
    written: object = (read_yaml(path) or {}) if path.exists() else {}
    return [
        Shown(name, _value(name, value), f"flag --{name}" if name in flags else _source(name, path, written))
        for name, value in flat(settings)
    ]


def flat(model: BaseModel, prefix: str = "") -> list[tuple[str, object]]:
    """`server.port`, `engines.local.model` … with their values."""
    found: list[tuple[str, object]] = []
    for name, value in {**dict(model), **(model.model_extra or {})}.items():
        found += _flattened(f"{prefix}{name}", value)
    return found


def _flattened(name: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, BaseModel):
        return flat(value, f"{name}.")
    if isinstance(value, dict) and value:
        parts = (_flattened(f"{name}.{key}", item) for key, item in cast("dict[str, object]", value).items())
        return [pair for part in parts for pair in part]
    return [(name, value)]


def address(text: str) -> str:
    """An address without the credentials that may stand in it."""
    return _IN_QUERY.sub(rf"\1{_HIDDEN}", _PASSWORD.sub(rf"\1{_HIDDEN}@", text))


def _value(name: str, value: object) -> object:
    return _HIDDEN if value and not isinstance(value, bool) and _CREDENTIAL.match(name) else _shown(value)


def _shown(value: object) -> object:
    if isinstance(value, SecretStr):
        return _HIDDEN
    if isinstance(value, str | Path):
        return address(str(value))
    if isinstance(value, list):
        return [_shown(item) for item in cast("list[object]", value)]
    if isinstance(value, BaseModel):
        return _shown(value.model_dump(mode="json"))
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in cast("dict[str, object]", value).items()}
    return value


def _source(name: str, path: Path, written: object) -> str:
    if variable := _variable_of(name):
        return f"environment {variable}"
    if _inside(written, name.split(".")):
        return f"file {path}"
    section, _, rest = name.partition(".")
    provider, _, field = rest.rpartition(".")
    by_the_key = section == "providers" and provider in WELL_KNOWN and field in _BY_THE_KEY
    if by_the_key and not _inside(written, [section, provider]):
        usual = WELL_KNOWN[provider][0]
        for variable in (usual, f"{usual}_FILE"):
            if environment().get(variable):
                return f"environment {variable}"
    return "default"


def _variable_of(name: str) -> str | None:
    """The variable that gives this setting, by its own name or inside the JSON of a part that holds it."""
    told = {key.upper(): value for key, value in environment().items() if value}
    parts = name.split(".")
    own = f"NEARHIT_{'__'.join(parts).upper()}"
    if told.get(f"{own}_FILE") and may_be_a_file(own):
        return f"{own}_FILE"
    for length in range(len(parts), 0, -1):
        variable = f"NEARHIT_{'__'.join(parts[:length]).upper()}"
        if (value := told.get(variable)) and (length == len(parts) or _inside(_decoded(value), parts[length:])):
            return variable
    return None


def _decoded(value: str) -> object:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return None


def _inside(values: Any, path: list[str]) -> bool:
    """Whether these name this setting, or a whole part that holds it. A name may hold dots (`gpt-4.1`)."""
    if not path:
        return True
    if not isinstance(values, dict):
        return bool(values)
    known = cast("dict[Any, Any]", values)
    mapped = {str(key): value for key, value in known.items()}
    ends = range(1, len(path) + 1)
    return any(_inside(mapped[step], path[end:]) for end in ends if (step := ".".join(path[:end])) in mapped)
