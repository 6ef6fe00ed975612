"""This engine, as everybody uses it: in its own process, over its socket."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import Any

from engine.api import Engine, GenerateRequest, SamplingParams
from engine.bench.peers import Setting
from engine.host import open_engine
from engine.options import Options

_OPTIONS: dict[str, Any] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quant": "int8"},
    "int4": {"dtype": "bfloat16", "quant": "int4"},
}


class _Nearhit:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ids = count()

    async def generate(self, prompt: list[int], outputs: int) -> AsyncGenerator[list[int], None]:
        sampling = SamplingParams(max_tokens=outputs, temperature=0.0, ignore_eos=True)
        request = GenerateRequest(id=str(next(self._ids)), token_ids=prompt, sampling=sampling)
        async with aclosing(self._engine.generate(request)) as deltas:
            async for delta in deltas:
                if delta.token_ids:
                    yield delta.token_ids


@asynccontextmanager
async def start(setting: Setting) -> AsyncGenerator[_Nearhit, None]:
    options = Options(threads=setting.threads, **_OPTIONS[setting.weights])
    async with open_engine(str(setting.folder), options) as engine:
        yield _Nearhit(engine)
