"""What a comparison of engines may claim: speeds of the same tokens, and of the same weights."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from engine.bench import checkpoint
from engine.bench.compare import HEAD, OURS, Plan, Row, line, ratios, run
from engine.bench.peers import WEIGHTS, Setting
from engine.bench.peers.nearhit import _OPTIONS
from engine.bench.workloads import make
from engine.options import Options


def row(peer: str, rate: float, weights: str = "float32", equal: int = 4) -> Row:
    return Row(
        model="5m", workload="one", threads=1, peer=peer, weights=weights, requests=4, equal=equal, tokens_per_s=rate
    )


def test_only_equal_things_are_divided() -> None:
    """A rate over one with other tokens, or with other weights, compares nothing."""
    rows = [row(OURS, 80.0), row("llama_cpp", 100.0), row("static", 10.0, equal=3)]
    rows += [row(OURS, 90.0, "int8", equal=0), row("llama_cpp", 300.0, "int8", equal=0)]
    assert ratios(rows) == {"5m/one/1/llama_cpp": 0.8, "5m/one/1/int8/llama_cpp": 0.3}


def test_every_row_has_every_column() -> None:
    """A table with a column too few shows numbers under the wrong heads."""
    failed = Row(model="5m", workload="one", threads=1, peer="static", note="no such library")
    told = row(OURS, 80.0, "int8", equal=0)
    told.perplexity = -0.25
    columns = HEAD.splitlines()[0].count("|")
    assert all(line(one).count("|") == columns for one in (failed, told, row(OURS, 80.0)))
    assert "-0.250 %" in line(told)


def test_unknown_weights_are_refused_before_anything_runs(tmp_path: Path) -> None:
    """Hours later would be late."""
    with pytest.raises(LookupError, match="int7"):
        run(Plan(folder=tmp_path, weights=("int7",)), print)


def test_all_weights_can_be_asked_for_and_others_than_float32_only_of_those_that_have_them() -> None:
    """A peer that silently answered in float32 would look slow."""
    assert {*_OPTIONS} == {*WEIGHTS}
    for given in _OPTIONS.values():
        Options(**given)
    setting = Setting(Path(), 1, make("one", 100, 0))
    setting.plain()
    with pytest.raises(ImportError, match="int8"):
        Setting(Path(), 1, setting.workload, "int8").plain()


@pytest.mark.parametrize("weights", WEIGHTS)
def test_both_files_hold_the_same_weights(weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp must be given what we are given, as near as its types allow."""
    gguf = pytest.importorskip("gguf")
    shape = {"hidden": 64, "layers": 1, "heads": 2, "kv_heads": 1, "head": 32, "ff": 96, "vocabulary": 512}
    monkeypatch.setitem(checkpoint.SIZES, "tiny", shape)
    folder = checkpoint.write(tmp_path / "tiny", "tiny")
    found = gguf.GGUFReader(checkpoint.write_gguf(folder, weights))
    kept = {one.name: one for one in found.tensors}
    own = load_file(folder / "model.safetensors")
    for name, theirs in (
        ("blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj"),
        ("output_norm.weight", "model.norm"),
    ):
        values = gguf.quants.dequantize(kept[name].data, kept[name].tensor_type)
        wanted = own[f"{theirs}.weight"].float().numpy()
        assert (
            abs(values.reshape(wanted.shape) - wanted).max()
            <= abs(wanted).max() * {4.0: 0, 2.0: 0.004, 1.0: 0.005, 0.5: 0.13}[WEIGHTS[weights]]
        )
