"""Every metric is documented, and nothing that is documented or drawn is missing."""

import re
from pathlib import Path

from gateway.metrics import Metrics

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"\b(?:nearhit|gen_ai)_[a-z_]+\b")
_SUFFIX = re.compile(r"_(?:bucket|sum|count|created)$")
LABELS = {"gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "gen_ai_token_type"}


def defined() -> set[str]:
    """Names as Prometheus shows them, without the parts of a histogram."""
    text = Metrics().exposition().decode()
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    return {name for name, _ in kinds if not name.endswith("_created")}


def named(path: str) -> set[str]:
    found = {_SUFFIX.sub("", name) for name in _NAME.findall((ROOT / path).read_text("utf-8"))}
    return {name for name in found if not name.endswith("_")} - LABELS


def test_every_metric_is_documented() -> None:
    """An operator reads the page, not the code."""
    assert named("docs/telemetry.md") == defined()


def test_the_dashboard_draws_what_exists() -> None:
    """A renamed metric leaves an empty panel that looks like a quiet system."""
    drawn = named("deploy/observability/nearhit.json")
    assert drawn
    assert drawn <= defined()
