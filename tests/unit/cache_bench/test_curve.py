"""The picture in the documentation is drawn from a result, so it must show what the result says."""

import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from cache.bench.curve import main

NAME = "{http://www.w3.org/2000/svg}"
ROOT = Path(__file__).parents[3]


def result(tmp_path: Path, **more: object) -> Path:
    head = {"stream": "covidq.tsv.gz", "seed": 0, "flip": 0.0, "requests": 1_000, "seen": False}
    ours = {**head, "policy": "learned", "max_wrong_hit_rate": 1.0}
    runs = [
        {**ours, "budget": 0.01, "hits": 100, "wrong": 4},
        {**ours, "budget": 0.01, "hits": 200, "wrong": 8, "seed": 1},
        {**ours, "budget": 0.02, "hits": 220, "wrong": 22},
        {**ours, "budget": 0.02, "hits": 999, "wrong": 0, "flip": 0.1},
        {**head, "policy": "threshold", "similarity": 0.9, "hits": 150, "wrong": 30},
        {**head, "policy": "threshold", "similarity": 0.95, "hits": 80, "wrong": 8},
    ]
    at = tmp_path / "result.json"
    at.write_bytes(msgspec.json.encode({"date": "2026-01-02T03:04:05", "streams": runs, **more}))
    return at


def test_points_are_means_over_orders(tmp_path: Path) -> None:
    """150 hits of 1,000, 96 % right: two orders of one budget are one point, a judge who errs is none."""
    out = tmp_path / "curve.svg"
    assert main([str(result(tmp_path)), str(out)]) == 0
    drawn = ET.fromstring(out.read_text("utf-8"))
    titles = [node.text or "" for node in drawn.iter(f"{NAME}title")]
    assert "1 %: hits 15.0%, right 96.0%, 2 orders" in titles
    assert "0.9: hits 15.0%, right 80.0%, 1 orders" in titles
    assert not any("99.9%" in title for title in titles)
    assert "prefers-color-scheme: dark" in out.read_text("utf-8")


def test_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty picture would be taken for a result."""
    out = tmp_path / "curve.svg"
    assert main([str(result(tmp_path, streams=[])), str(out)]) == 1
    assert main([str(tmp_path / "missing.json"), str(out)]) == 1
    assert main([]) == 2
    assert not out.exists()
    assert "missing.json" in capsys.readouterr().err


def test_the_picture_in_the_documentation_is_of_the_file_it_names(tmp_path: Path) -> None:
    """docs/cache.md shows it: it must be what the kept result draws."""
    kept = max((ROOT / "docs" / "benchmarks").glob("cache-2*.json"))
    out = tmp_path / "curve.svg"
    assert main([str(kept), str(out)]) == 0
    assert out.read_text("utf-8") == (ROOT / "docs" / "benchmarks" / "cache-curve.svg").read_text("utf-8")
