"""What settings are made of: durations, sizes, and parts that refuse unknown keys.

Knows: how `150ms` and `16MiB` are read. Does not know: any setting.
"""

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d)$")
_SIZE = re.compile(r"^(\d+)(B|KiB|MiB|GiB)$")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def seconds(value: object) -> object:
    """`"150ms"`, `"24h"` -> seconds; numbers are seconds already."""
    if isinstance(value, str) and (found := _DURATION.match(value.strip())):
        return float(found[1]) * _SECONDS[found[2]]
    return value


def octets(value: object) -> object:
    """`"16MiB"` -> bytes; whole numbers are bytes already."""
    if isinstance(value, str) and (found := _SIZE.match(value.strip())):
        return int(found[1]) * _BYTES[found[2]]
    return value


Seconds = Annotated[float, BeforeValidator(seconds), Field(ge=0)]
Octets = Annotated[int, BeforeValidator(octets), Field(gt=0)]


class Section(BaseModel):
    """Base of every part: unknown keys are errors, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True)
