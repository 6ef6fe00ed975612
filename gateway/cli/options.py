"""Options every command shares, and the settings they lead to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from gateway.cli.wrong import Wrong
from gateway.settings import Settings, load


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """Where the configuration and the data are."""

    config: Annotated[Path | None, Parameter(help="Configuration file (default: ./nearhit.yaml when it is there).")] = (
        None
    )
    home: Annotated[Path | None, Parameter(help="Data folder (default: NEARHIT_HOME or ./.nearhit).")] = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ReadOptions(Options):
    """The same for commands that print something."""

    json: Annotated[bool, Parameter(help="Print JSON instead of a table.", negative="")] = False


def settings_of(options: Options, **flags: Any) -> Settings:
    """Raises Wrong with one line per mistake in the configuration."""
    if options.home is not None:
        flags["home"] = options.home
    try:
        return load(options.config, **flags)
    except ValueError as error:
        raise Wrong(str(error)) from error
