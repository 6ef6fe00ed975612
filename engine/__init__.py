"""An inference engine of its own: models in torch, continuous batching, each engine a process (`python -m engine`).

Knows: models, tokens, batches. Does not know: HTTP, tenants, money, the gateway.

What a program needs is here and imports no torch, which lives in the engine's process:

    async with open_engine("demo") as engine:
        request = GenerateRequest(id="1", text="What is a KV block?", sampling=SamplingParams(max_tokens=64))
        async for delta in engine.generate(request):
            print(delta.text, end="")
"""

from typing import TYPE_CHECKING

from engine.api import (
    Delta,
    Engine,
    EngineError,
    EngineFailed,
    EngineStats,
    EngineUsage,
    GenerateRequest,
    InvalidRequest,
    Overloaded,
    SamplingParams,
)
from engine.options import Options

if TYPE_CHECKING:
    from engine.host import open_engine

__all__ = [
    "Delta",
    "Engine",
    "EngineError",
    "EngineFailed",
    "EngineStats",
    "EngineUsage",
    "GenerateRequest",
    "InvalidRequest",
    "Options",
    "Overloaded",
    "SamplingParams",
    "open_engine",
]


def __getattr__(name: str) -> object:
    """The client, with tokenizers and grammars, is read when it is wanted: a supervisor only wants the names above."""
    if name == "open_engine":
        from engine.host import open_engine

        return open_engine
    raise AttributeError(f"module 'engine' has no attribute {name!r}")
