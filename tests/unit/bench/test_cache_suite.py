"""Which runs `make bench-cache` makes; the runs themselves are tested where they are made."""

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cache.bench.data import Row
from cache.bench.figures import counted, figures
from cache.bench.readings import Readings
from cache.bench.replay import Step
from cache.bench.run import Prepared, Setting
from cache.priors import Unfit
from gateway.bench import cache_suite as suite
from gateway.bench import cache_table
from gateway.bench.cache_orders import Orders
from policies.reuse import Budget


def test_every_part_has_its_runs() -> None:
    """A table with a missing cell would be read as a run that failed."""
    base = Setting(budget=Budget(), folder=Path())

    def told(part: str) -> list[tuple[float, float, float]]:
        return [
            (one.budget.max_error_rate, one.budget.max_wrong_hit_rate, one.flip) for one in suite.settings(part, base)
        ]

    assert told("main") == [(0.01, 1.0, 0.0), (0.01, 0.05, 0.0)]
    assert {(rate, per_hit) for rate, per_hit, _ in told("budgets")} == {
        (rate, h) for rate in suite.BUDGETS for h in (1.0, 0.05)
    }
    assert {(flip, per_hit) for _, per_hit, flip in told("judge")} == {(f, h) for f in suite.FLIPS for h in (1.0, 0.05)}
    others = {(one.policy, one.budget.max_error_rate) for one in suite.settings("baselines", base)}
    assert others >= {(policy, rate) for policy in suite.LEARNERS for rate in (0.005, 0.01, 0.02, 0.05)}
    assert {policy for policy, _ in others} == set(suite.BASELINES)
    assert set(suite.PARTS) >= {"main", "budgets", "fixed", "judge", "baselines", "curve", "shipped", "arms", "pairs"}


def test_a_stream_is_run_and_written_line_by_line(tmp_path: Path) -> None:
    """Streams we trained on are scored with the prior that never saw them; a run per line makes files comparable."""
    made = Prepared(
        name="banking77.tsv.gz",
        rows=[Row(f"text {i}", str(i // 4)) for i in range(40)],
        repeats=0,
        seed=0,
        vectors=np.eye(40, dtype=np.float32),
        encoder="minilm",
        readings=Readings(None),
    )
    base = Setting(budget=Budget(), folder=Path())
    apart = Path("cache/priors")
    found = [pair for part in ("baselines", "fixed") for pair in suite.runs(part, made, base, None)]
    rows = [row for row, _ in found]
    assert {row["policy"] for row in rows} >= {"verified", "cosine-90", "threshold", "hindsight-best"}
    assert all(row["seen"] for row, _ in suite.runs("shipped", made, base, None))
    with pytest.raises(Unfit, match="without-banking77"):
        list(suite.runs("main", made, base, apart))
    at = tmp_path / "out.json"
    suite.write({"date": "today", "streams": rows, "pairs": []}, at)
    assert len(at.read_text().splitlines()) == len(rows) + 6
    assert msgspec.json.decode(at.read_bytes())["streams"] == msgspec.json.decode(msgspec.json.encode(rows))


def test_orders_become_one_row_with_the_worst_of_them() -> None:
    """A mean hides the order that broke its budget, and a run that broke it scores nothing."""
    orders = Orders()
    for wrong in (0, 30):
        rows = [Row(str(i), str(i)) for i in range(100)]
        steps = [Step(hit=i < 60, wrong=i < wrong, explored=False, audited=False, judged=0) for i in range(100)]
        head = {"part": "main", "stream": "s.tsv", "policy": "learned", "flip": 0.0, "seen": False}
        limits = {"budget": 0.01, "max_wrong_hit_rate": 0.05}
        told = figures(rows, steps, budget=Budget(max_error_rate=0.01, max_wrong_hit_rate=0.05), seed=0)
        orders.add({**head, **limits, **told}, counted(rows, steps))
    (row,) = orders.told()
    assert (row["orders"], row["hit_rate"], row["wrong_per_request"]) == (2, 0.6, 0.15)
    assert (row["worst_per_request"], row["worst_per_hit"]) == (0.3, 0.5)
    assert row["violated"] == {"max_error_rate": 1, "max_wrong_hit_rate": 1}
    assert row["scored_hit_rate"] == 0.3
    assert row["first_hit"] == [1, 1]
    shown = cache_table.markdown({"summary": [row]})
    assert "| nearhit | 1% | 2 | 60.0, 50.2-69.1 (60.0, 60.0) |" in shown
    assert "(30.00)" in shown
    assert "1 / 1; 1 / 1" in shown


def test_a_folder_without_data_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong path must not end as an empty result file."""
    monkeypatch.setattr(sys, "argv", ["bench-cache", "--data", str(tmp_path), "--save", str(tmp_path / "out")])
    assert suite.main() == 1
    assert "streams" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
