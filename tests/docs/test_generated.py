"""Pages that are derived from the code are as fresh as the code."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_pages_are_fresh() -> None:
    """A setting or a file nobody described, or one that was renamed, shows here; `make docs` writes the pages."""
    command = [sys.executable, ROOT / "docs" / "generate.py", "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_changelog_knows_this_version() -> None:
    """A release whose version the changelog does not name cannot be looked up."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    version = project.split('\nversion = "')[1].split('"')[0]
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines() if line.startswith("## ")]
    assert headings[0] == "## [Unreleased]" or version in headings[0]
    assert any(version in heading for heading in headings) or headings == ["## [Unreleased]"]
