"""Secrets from files: `NAME_FILE=/run/secrets/name` instead of `NAME=…`, as containers and Kubernetes hand them over.

Knows: which names may come so, and what a file must be like. Does not know: settings, who reads the environment.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_OURS = re.compile(
    r"^NEARHIT_(ADMIN_KEY|SECRET|DATABASE|REDIS|OIDC__CLIENT_SECRET|PROVIDERS__\w+__API_KEY|ALERTS__\w+)$",
    re.IGNORECASE,
)
_LARGEST = 65_536


def may_be_a_file(name: str) -> bool:
    """Whether `NAME_FILE` is read for this setting of ours."""
    return _OURS.match(name) is not None


def with_files(given: Mapping[str, str], others: Iterable[str]) -> dict[str, str]:
    """`given` with what the files say. `others`: further names that may come from one.

    Raises ValueError, without any content: for a file that cannot be read or is empty, and where both are given.
    """
    allowed = set(others)
    found = dict(given)
    for variable, path in given.items():
        name = variable.removesuffix("_FILE")
        if name == variable or not (name in allowed or may_be_a_file(name)):
            continue
        if given.get(name):
            raise ValueError(f"both {name} and {variable} are set: take one of them away")
        found[name] = _read(variable, Path(path))
        del found[variable]
    return found


def _read(variable: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{variable}: cannot read {path}: {type(error).__name__}") from None
    if not text:
        raise ValueError(f"{variable}: {path} is empty")
    return text
