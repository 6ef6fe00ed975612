"""What a launch decides before anything is computed."""

import pytest
import torch

from engine import launch
from engine.api import EngineFailed
from engine.launch import device_of, kv_dtype_of, limits_of
from engine.options import Options


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_is_not_there_is_refused_in_words() -> None:
    """Falling back to the processor in silence would be a hundred times slower and nobody would know why."""
    assert device_of(Options()) == "cpu"
    assert kv_dtype_of(Options()) == "float32"
    with pytest.raises(EngineFailed, match="no GPU"):
        device_of(Options(device="cuda"))


def test_a_gpu_gets_larger_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 tokens of a prompt a step are what a processor can bear beside others; a GPU would idle through them."""
    assert (limits_of(Options(device="cpu")).step_tokens, limits_of(Options(device="cpu")).chunk) == (512, 128)
    monkeypatch.setattr(launch, "device_of", lambda _: "cuda")
    assert (limits_of(Options()).step_tokens, limits_of(Options()).chunk) == (8192, 512)
    assert limits_of(Options(chunk=64, step_tokens=256, sequences=8)).chunk == 64
    assert limits_of(Options(step_tokens=64, sequences=8)).chunk == 64
