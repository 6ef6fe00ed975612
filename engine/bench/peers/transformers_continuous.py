"""transformers' continuous batching, with the memory and step size that it cannot choose by itself on a processor."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from itertools import count
from typing import Any

from engine.bench.peers import Setting
from engine.bench.peers_transformers import load, settings

_PAGE = 16
_STEP_TOKENS = 512


class _Continuous:
    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._ids = count()

    async def generate(self, prompt: list[int], outputs: int) -> AsyncGenerator[list[int], None]:
        name, came = f"r{next(self._ids)}", asyncio.Queue[Any]()
        self._manager.register_result_handler(name, came.put_nowait)
        self._manager.add_request(prompt, request_id=name, max_new_tokens=outputs, streaming=True, eos_token_id=-1)
        seen = 0
        while seen < outputs:
            result = await came.get()
            if result.error:
                raise RuntimeError(result.error)
            tokens = list(result.generated_tokens[seen:])
            seen += len(tokens)
            if tokens:
                yield tokens


@asynccontextmanager
async def start(setting: Setting) -> AsyncGenerator[_Continuous, None]:
    workload = setting.workload
    tokens = sum(map(len, workload.prompts)) + sum(workload.outputs) + len(workload.first)
    batching = import_module("transformers").ContinuousBatchingConfig(
        page_size=_PAGE,
        num_blocks=tokens // _PAGE + 4 * len(workload.prompts) + 64,
        max_batch_tokens=_STEP_TOKENS,
        allow_block_sharing=workload.reuse,
    )
    model = load(setting, attention="paged|sdpa")
    manager = model.init_continuous_batching(generation_config=settings(1), continuous_batching_config=batching)
    manager.start()
    try:
        yield _Continuous(manager)
    finally:
        manager.stop(block=True)
