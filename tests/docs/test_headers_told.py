"""docs/api.md tells every header of ours that a request may carry and an answer may have."""

import re
from pathlib import Path

from gateway.directives import _READERS as READERS

ROOT = Path(__file__).parents[2]
_OURS = re.compile(r"x-nearhit-[a-z-]*[a-z]")


def test_every_header_is_told() -> None:
    """Tags, users, cost limits and time-outs could be asked for by whoever had read the source, and by nobody else."""
    written = {name for path in (ROOT / "gateway").rglob("*.py") for name in _OURS.findall(path.read_text("utf-8"))}
    told = set(_OURS.findall((ROOT / "docs" / "api.md").read_text("utf-8")))
    assert {name.decode() for name in READERS if name.startswith(b"x-nearhit-")} <= written
    assert not written - told
    assert not told - written
