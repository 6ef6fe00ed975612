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
        Shown(name, _shown(value), f"flag --{name}" if name in flags else _source(name, path, written))
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


def _shown(value: object) -> object:
    if isinstance(value, SecretStr):
        return _HIDDEN
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str):
        return _PASSWORD.sub(rf"\1{_HIDDEN}@", value)
    if isinstance(value, list):
        return [item.model_dump(mode="json") if isinstance(item, BaseModel) else item for item in value]  # pyright: ignore[reportUnknownVariableType] - any list of settings
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
