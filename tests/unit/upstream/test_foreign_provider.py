"""A provider that somebody else wrote: one file with an entry point, nothing changed here."""

import sys
from pathlib import Path

import pytest

from gateway.providers import load
from tests.live import live, settings

FILE = """
from gateway.upstream.compatible import Builder, Service

build = Builder(Service(base="http://127.0.0.1:9/v1", keyed=False))
"""


async def test_a_file_with_an_entry_point_is_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newcomer adds a provider by writing one file, in a package of their own."""
    package = tmp_path / "site"
    about = package / "acme_llm-1.0.dist-info"
    about.mkdir(parents=True)
    (package / "acme_llm.py").write_text(FILE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-llm\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[nearhit.providers]\nacme = acme_llm\n")
    monkeypatch.syspath_prepend(package)
    chosen = settings(
        tmp_path / "home", providers={"mine": {"kind": "acme"}}, models={"x": {"route": ["mine/m"], "free": True}}
    )
    async with live(chosen) as gateway:
        told = await gateway.chat(model="x")
        assert told.status == 502
        assert "mine cannot be reached" in told.json["error"]["message"]
    sys.modules.pop("acme_llm", None)
    with pytest.raises(LookupError, match="acme"):
        load("acmee")
