"""Which runs `make bench-cache` makes; the runs themselves are tested where they are made."""

import sys
from pathlib import Path

import pytest

from cache.bench.run import Setting
from gateway.bench.cache_suite import BUDGETS, FLIPS, main, settings
from policies.reuse import Budget


def test_every_order_has_both_tables_and_the_noisy_judges() -> None:
    """A table with a missing cell would be read as a run that failed."""
    base = Setting(budget=Budget(), folder=Path())
    found = list(settings(Path("banking77.tsv.gz"), base, 3))
    alone = [(one.seed, one.budget.max_error_rate) for one in found if one.budget.max_wrong_hit_rate == 1.0]
    assert alone == [(seed, rate) for seed in range(3) for rate in BUDGETS]
    both = [one.flip for one in found if one.budget.max_wrong_hit_rate < 1.0 and one.seed == 0]
    assert both == [0.0, *FLIPS]
    assert {one.limit for one in found} == {None}
    assert {one.limit for one in settings(Path("qqp_stream.tsv.gz"), base, 1)} == {12_000}


def test_a_folder_without_data_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong path must not end as an empty result file."""
    monkeypatch.setattr(sys, "argv", ["bench-cache", "--data", str(tmp_path), "--save", str(tmp_path / "out")])
    assert main() == 1
    assert "streams" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
