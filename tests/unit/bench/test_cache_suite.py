"""Which runs `make bench-cache` makes; the runs themselves are tested where they are made."""

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cache.bench.data import Row
from cache.bench.run import Prepared, Setting
from cache.priors import Unfit
from gateway.bench import cache_suite as suite
from policies.reuse import Budget


def test_every_part_has_its_runs() -> None:
    """A table with a missing cell would be read as a run that failed."""
    base = Setting(budget=Budget(), folder=Path())

    def told(part: str) -> list[tuple[float, float, float]]:
        return [
            (one.budget.max_error_rate, one.budget.max_wrong_hit_rate, one.flip) for one in suite.settings(part, base)
        ]

    assert told("main") == [(0.01, 1.0, 0.0), (0.01, 0.05, 0.0)]
    assert [rate for rate, _, _ in told("budgets")] == list(suite.BUDGETS)
    assert {(flip, per_hit) for _, per_hit, flip in told("judge")} == {(f, h) for f in suite.FLIPS for h in (1.0, 0.05)}
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
    )
    base = Setting(budget=Budget(), folder=Path())
    apart = Path("cache/priors")
    rows = [row for part in ("baselines", "fixed") for row in suite.runs(part, made, base, None)]
    assert {row["policy"] for row in rows} >= {"verified", "cosine-90", "threshold", "hindsight-best"}
    assert all(row["seen"] for row in suite.runs("shipped", made, base, None))
    with pytest.raises(Unfit, match="without-banking77"):
        list(suite.runs("main", made, base, apart))
    at = tmp_path / "out.json"
    suite.write({"date": "today", "streams": rows, "pairs": []}, at)
    assert len(at.read_text().splitlines()) == len(rows) + 6
    assert msgspec.json.decode(at.read_bytes())["streams"] == msgspec.json.decode(msgspec.json.encode(rows))


def test_a_folder_without_data_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong path must not end as an empty result file."""
    monkeypatch.setattr(sys, "argv", ["bench-cache", "--data", str(tmp_path), "--save", str(tmp_path / "out")])
    assert suite.main() == 1
    assert "streams" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
