"""`nearhit config …`: what is configured and where each value comes from."""

import re
from pathlib import Path
from typing import Any, cast

import msgspec
import yaml
from pydantic import BaseModel, SecretStr

from gateway.cli import show
from gateway.cli.options import Options, ReadOptions, settings_of
from gateway.settings import WELL_KNOWN, Settings, environment

_HIDDEN = "***"
_PASSWORD = re.compile(r"(://[^/:@]*:)[^/@]*@")


def show_config(*, options: ReadOptions = ReadOptions()) -> None:  # noqa: B008 - frozen
    """Every value and where it comes from: default, file or environment. Secrets are never shown."""
    settings = settings_of(options)
    rows = [(name, _shown(value), _source(name, options)) for name, value in flat(settings)]
    if options.json:
        show.json([{"name": name, "value": value, "source": source} for name, value, source in rows])
        return
    show.table(("setting", "value", "from"), [[name, show.text(value), source] for name, value, source in rows])


def check_config(*, options: Options = Options()) -> None:  # noqa: B008 - frozen
    """Whether the configuration is valid; exit code 1 and every mistake when it is not."""
    settings_of(options)
    show.line("the configuration is valid")


def schema_config() -> None:
    """The JSON schema of nearhit.yaml."""
    show.json(Settings.model_json_schema())


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
        return [msgspec.to_builtins(dict(item)) if isinstance(item, BaseModel) else item for item in value]  # pyright: ignore[reportUnknownVariableType] - any list of settings
    return value


def _source(name: str, options: Options) -> str:
    if name == "home" and options.home is not None:
        return "flag --home"
    variable = f"NEARHIT_{name.upper().replace('.', '__')}"
    variables = {key.upper() for key in environment()}
    if any(variable == key or variable.startswith(f"{key}__") for key in variables if key.startswith("NEARHIT_")):
        return f"environment {variable}"
    path = options.config or Path("nearhit.yaml")
    if path.exists() and _inside(yaml.safe_load(path.read_text("utf-8")) or {}, name.split(".")):
        return f"file {path}"
    provider = name.split(".")[1] if name.startswith("providers.") else ""
    if provider in WELL_KNOWN:
        return f"environment {WELL_KNOWN[provider][0]}"
    return "default"


def _inside(values: Any, path: list[str]) -> bool:
    """Whether the file names this setting, or a whole part that holds it."""
    for step in path:
        if not isinstance(values, dict):
            return True
        if step not in values:
            return False
        values = cast("dict[str, Any]", values)[step]
    return True
