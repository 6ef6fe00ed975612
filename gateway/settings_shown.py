"""Settings for people: every value by its name, with where it comes from. Secrets are never shown.

Knows: names, `***`, sources. Does not know: who reads them (the command line, `/ui/policies`).
"""

import re
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, SecretStr

from gateway.setting_types import read_yaml
from gateway.settings import WELL_KNOWN, Settings, environment

_HIDDEN = "***"
_PASSWORD = re.compile(r"(://[^/:@]*:)[^/@]*@")
_IN_QUERY = re.compile(r"([?&][^=&#]*(?:key|token|secret|password|auth|sig)[^=&#]*=)[^&#]+", re.IGNORECASE)
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
    variable = f"NEARHIT_{name.upper().replace('.', '__')}"
    variables = {key.upper() for key, told in environment().items() if told}
    if any(variable == key or variable.startswith(f"{key}__") for key in variables if key.startswith("NEARHIT_")):
        return f"environment {variable}"
    if _inside(written, name.split(".")):
        return f"file {path}"
    provider = name.split(".")[1] if name.startswith("providers.") else ""
    if provider in WELL_KNOWN:
        return f"environment {WELL_KNOWN[provider][0]}"
    return "default"


def _inside(values: Any, path: list[str]) -> bool:
    """Whether the file names this setting, or a whole part that holds it."""
    if not values:
        return False
    for step in path:
        if not isinstance(values, dict):
            return True
        if step not in values:
            return False
        values = cast("dict[str, Any]", values)[step]
    return True
