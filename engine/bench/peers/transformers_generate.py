"""transformers' `generate`, one request after another: the reference that every other's tokens are held to."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from engine.bench.peers import Setting
from engine.bench.peers_transformers import Streamer, load, settings


class _Generate:
    def __init__(self, model: Any) -> None:
        self._model = model
        self._turn = asyncio.Lock()

    async def generate(self, prompt: list[int], outputs: int) -> AsyncGenerator[list[int], None]:
        import torch

        async with self._turn:
            streamer = Streamer(asyncio.get_running_loop())
            ids = torch.tensor([prompt])

            def work() -> None:
                with torch.inference_mode():
                    self._model.generate(ids, generation_config=settings(outputs), streamer=streamer)

            running = asyncio.get_running_loop().run_in_executor(None, work)
            for _ in range(outputs):
                yield await streamer.next()
            await running


@asynccontextmanager
async def start(setting: Setting) -> AsyncGenerator[_Generate, None]:
    yield _Generate(load(setting))
