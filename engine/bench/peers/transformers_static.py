"""transformers' `generate` with all requests as one left-padded batch: everybody waits for the last to arrive."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from engine.bench.peers import Setting
from engine.bench.peers_transformers import PAD, Streamer, load, settings


class _Static:
    """Only workloads whose requests come together and are equally long make a batch."""

    def __init__(self, model: Any, size: int) -> None:
        self._model = model
        self._size = size
        self._batch: list[list[int]] = []
        self._rows: list[asyncio.Queue[list[int]]] = []

    async def generate(self, prompt: list[int], outputs: int) -> AsyncGenerator[list[int], None]:
        row: asyncio.Queue[list[int]] = asyncio.Queue()
        self._batch.append(prompt)
        self._rows.append(row)
        running = None
        if len(self._batch) == self._size:
            batch, self._batch = self._batch, []
            rows, self._rows = self._rows, []
            running = asyncio.gather(self._run(batch, rows, outputs))
        for _ in range(outputs):
            yield await row.get()
        if running is not None:
            await running

    async def _run(self, batch: list[list[int]], rows: list[asyncio.Queue[list[int]]], outputs: int) -> None:
        import torch

        longest = max(map(len, batch))
        ids = torch.tensor([[PAD] * (longest - len(prompt)) + prompt for prompt in batch])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch])
        streamer = Streamer(asyncio.get_running_loop())

        def work() -> None:
            with torch.inference_mode():
                self._model.generate(ids, attention_mask=mask, generation_config=settings(outputs), streamer=streamer)

        running = asyncio.get_running_loop().run_in_executor(None, work)
        for _ in range(outputs):
            for row, token in zip(rows, await streamer.next(), strict=True):
                row.put_nowait([token])
        await running


@asynccontextmanager
async def start(setting: Setting) -> AsyncGenerator[_Static, None]:
    workload = setting.workload
    if workload.one_by_one or workload.late:
        raise ImportError("a static batch needs all requests at once")
    yield _Static(load(setting), len(workload.prompts))
