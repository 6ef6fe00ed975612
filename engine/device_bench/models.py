"""Models to measure with: real shapes with random weights, made on the device, and cores around them.

Knows: configurations, random tensors, how a core is put together. Does not know: workloads. Random weights change no
timing of a dense model (zeros would: seen 13 % faster in a matrix product).
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor

from engine.core import EngineCore
from engine.cuda import CudaOptions, build
from engine.models import loader
from engine.models.decoder import Decoder
from engine.models.layout import shapes
from engine.models.linear import DenseFactory
from engine.models.spec import Spec, read_spec
from engine.quant.factory import quantizing
from engine.scheduler import Limits
from engine.speculation import Speculation

_QWEN3 = {
    "model_type": "qwen3", "vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960, "rope_theta": 1000000.0, "hidden_act": "silu", "dtype": "bfloat16",
}  # fmt: skip
_LLAMA_ROPE = {
    "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": {
        **_QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "tie_word_embeddings": True,
    },
    "Llama-3.2-1B": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": _LLAMA_ROPE,
        "tie_word_embeddings": True, "hidden_act": "silu", "dtype": "bfloat16",
    },
    "Qwen3-8B": {
        **_QWEN3, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
_TINY = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
}  # fmt: skip


class Scale(Struct, frozen=True, kw_only=True):
    """How large a run is. `tiny`: the same stages on a processor in a minute, to see that they run."""

    tiny: bool = False
    device: str = "cuda"
    context: int = 10240
    sequences: int = 256
    step_tokens: int = 8192

    def config(self, model: str) -> dict[str, Any]:
        """The `config.json` of `model`, shrunk in a tiny run."""
        return {**CONFIGS[model], **_TINY} if self.tiny else CONFIGS[model]

    def count(self, full: int, tiny: int) -> int:
        return tiny if self.tiny else full


TINY = Scale(tiny=True, device="cpu", context=512, sequences=8, step_tokens=128)


class RandomWeights(Mapping[str, Tensor]):
    """Tensors of `spec` under their Hugging Face names, made when asked for: the same each time, on `device`."""

    def __init__(self, spec: Spec, device: str, seed: int = 0) -> None:
        self._shapes = shapes(spec)
        self._device = device
        self._seed = seed

    def __getitem__(self, name: str) -> Tensor:
        shape = self._shapes[name]
        generator = torch.Generator(self._device).manual_seed(self._seed + list(self._shapes).index(name))
        made = torch.randn(*shape, generator=generator, device=self._device, dtype=torch.bfloat16)
        return 1 + 0.1 * made if len(shape) == 1 else made * 0.02

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def spec_of(scale: Scale, model: str) -> Spec:
    config = scale.config(model)
    return read_spec({**config, "max_position_embeddings": min(scale.context, config["max_position_embeddings"])})


def make_decoder(scale: Scale, model: str, weights: Mapping[str, Tensor] | None = None, quant: str = "none") -> Decoder:
    """`model` with `weights` or random ones in bfloat16. What was made before and is not held any more is let go."""
    forget()
    spec = spec_of(scale, model)
    dense = DenseFactory(torch.bfloat16, torch.device(scale.device))
    return loader.build(spec, weights or RandomWeights(spec, scale.device), quantizing(quant, dense))


def make_core(
    scale: Scale, decoder: Decoder, *, speculation: Speculation | None = None, chunk: int = 512, **options: Any
) -> EngineCore:
    """A core on the device; `options` as of engine.cuda.CudaOptions."""
    given: dict[str, Any] = {
        "sequences": scale.sequences,
        "step_tokens": scale.step_tokens,
        "blocks": 256 if scale.tiny else None,
    }
    runner = build(decoder, CudaOptions(**{**given, **options}))
    limits = Limits(step_tokens=scale.step_tokens, sequences=scale.sequences, chunk=min(chunk, scale.step_tokens))
    return EngineCore(
        "bench", decoder, blocks=runner.blocks, limits=limits, queue=100_000, monotonic=time.monotonic, runner=runner,
        speculation=speculation,
    )  # fmt: skip


def forget(*_: object) -> None:
    """Give memory back between models; call it after the last reference is gone."""
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
