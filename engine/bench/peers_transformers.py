"""What the peers on transformers share: the model, greedy settings, tokens as they come.

Knows: transformers. Does not know: workloads, measuring.
"""

import asyncio
import logging
from importlib import import_module
from typing import Any

from engine.bench.peers import Setting

PAD = 1


class Streamer:
    """transformers' streamer protocol; `put` runs in the thread that generates. The first `put` is the prompt."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._came: asyncio.Queue[list[int]] = asyncio.Queue()
        self._prompt = True

    def put(self, value: Any) -> None:
        if self._prompt:
            self._prompt = False
            return
        self._loop.call_soon_threadsafe(self._came.put_nowait, value.flatten().tolist())

    def end(self) -> None:
        """Nothing more will come; readers count."""

    async def next(self) -> list[int]:
        """The next token of every row."""
        return await self._came.get()


def load(setting: Setting, attention: str = "sdpa") -> Any:
    """The model in float32 with `setting.threads` torch threads. Raises ImportError for other weights."""
    setting.plain()
    import torch

    transformers: Any = import_module("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(setting.threads)
    made = transformers.AutoModelForCausalLM.from_pretrained(
        setting.folder, dtype=torch.float32, attn_implementation=attention
    )
    return made.eval()


def settings(outputs: int) -> Any:
    """Greedy, exactly `outputs` tokens."""
    transformers: Any = import_module("transformers")
    return transformers.GenerationConfig(
        max_new_tokens=outputs, min_new_tokens=outputs, do_sample=False, eos_token_id=-1, pad_token_id=PAD
    )
