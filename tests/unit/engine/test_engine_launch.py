"""What a launch decides before anything is computed."""

import pytest
import torch

from engine.api import EngineFailed
from engine.launch import device_of, kv_dtype_of
from engine.options import Options


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_is_not_there_is_refused_in_words() -> None:
    """Falling back to the processor in silence would be a hundred times slower and nobody would know why."""
    assert device_of(Options()) == "cpu"
    assert kv_dtype_of(Options()) == "float32"
    with pytest.raises(EngineFailed, match="no GPU"):
        device_of(Options(device="cuda"))
