"""Every metric is documented, and nothing that is documented or drawn is missing."""

import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml

from cache.codec import Trouble
from gateway.flights import Ended
from gateway.metrics import UNREADABLE, Metrics
from gateway.settings import TelemetrySettings
from gateway.telemetry import Telemetry
from tests.services import program

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


def test_how_an_attempt_may_end_is_told() -> None:
    """Attempts that went well were said to be counted as `ok`, which none is: a share of them is a share of nothing."""
    text = (ROOT / "docs" / "telemetry.md").read_text("utf-8")
    [row] = [line for line in text.splitlines() if line.startswith("| `nearhit_upstream_attempts_total` |")]
    assert [ended for ended in get_args(Ended) if f"`{ended}`" not in row] == []
    assert "`ok`" not in row


@pytest.mark.parametrize("path", ["deploy/observability/nearhit.json", "deploy/observability/alerts.yaml"])
def test_what_is_drawn_and_watched_exists(path: str) -> None:
    """A renamed metric leaves an empty panel, or an alert that never fires: both look like a quiet system."""
    asked = named(path)
    assert len(asked) >= 5
    assert asked <= defined()


def labels_of(text: str) -> set[tuple[str, str]]:
    """Metric and label, where an expression selects by one or keeps one."""
    found = {
        (_SUFFIX.sub("", name), label)
        for name, chosen in re.findall(r"\b((?:nearhit|gen_ai)_[a-z_]+)\{([^}]*)\}", text)
        for label in re.findall(r"(\w+)\s*[=!]", chosen)
    }
    kept = re.findall(r"by \(([^)]*)\) \((?:\w+\()?((?:nearhit|gen_ai)_[a-z_]+)", text)
    return found | {(_SUFFIX.sub("", name), label.strip()) for labels, name in kept for label in labels.split(",")}


@pytest.mark.parametrize("path", ["deploy/observability/nearhit.json", "deploy/observability/alerts.yaml"])
def test_what_is_drawn_and_watched_has_those_labels(path: str) -> None:
    """An expression over a label that is not there is valid, and silent for ever."""
    metrics = Metrics()._registry._names_to_collectors
    asked = labels_of((ROOT / path).read_text("utf-8").replace('\\"', '"'))
    assert len(asked) >= 5
    known = {(name, label) for name, one in metrics.items() for label in (*getattr(one, "_labelnames", ()), "le")}
    assert asked <= known


def test_what_an_alert_counts_is_there_before_it_happens() -> None:
    """`increase` of a series that begins with 1 is 0: the first failed reload, or alarm of the cache, woke nobody."""
    text = (ROOT / "deploy" / "observability" / "alerts.yaml").read_text("utf-8")
    told = re.findall(r"(?:increase|rate)\((nearhit_[a-z_]+)\{(\w+)=(~?)\"([a-z|-]+)\"\}\[", text)
    begun = Metrics().exposition().decode() + Telemetry(TelemetrySettings(), now=lambda: 0.0).exposition().decode()
    wanted = [f'{name}{{{label}="{value}"}} 0.0' for name, label, _, values in told for value in values.split("|")]
    assert len(wanted) >= 7
    assert [line for line in wanted if line not in begun] == []
    assert set(UNREADABLE) == set(get_args(Trouble))


def test_every_alert_says_what_to_do() -> None:
    """Whoever is woken up has no time to read the code."""
    rules = yaml.safe_load((ROOT / "deploy" / "observability" / "alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "mend"}


def test_rules_are_understood_by_prometheus_itself() -> None:
    """Its own checker, where it is installed."""
    command = [str(program("promtool")), "check", "rules", str(ROOT / "deploy" / "observability" / "alerts.yaml")]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
