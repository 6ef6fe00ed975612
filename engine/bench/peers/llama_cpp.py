"""llama.cpp's server, as the wheel `xllamacpp` brings it, over its own HTTP interface; its cache is float32."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from engine.bench.checkpoint import write_gguf
from engine.bench.peers import Setting


class _Event(Struct):
    tokens: list[int] = []
    stop: bool = False


_event = msgspec.json.Decoder(_Event)


class _LlamaCpp:
    def __init__(self, address: str, reuse: bool) -> None:
        parts = urlsplit(address)
        self._host, self._port = parts.hostname, parts.port
        self._reuse = reuse

    async def generate(self, prompt: list[int], outputs: int) -> AsyncGenerator[list[int], None]:
        body = msgspec.json.encode(
            {
                "prompt": prompt,
                "n_predict": outputs,
                "temperature": 0,
                "samplers": ["temperature"],
                "return_tokens": True,
                "cache_prompt": self._reuse,
                "stream": True,
            }
        )
        head = f"POST /completion HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=2**24)
        try:
            writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
            async for line in reader:
                if not line.startswith(b"data: {"):
                    continue
                event = _event.decode(line[6:])
                if event.tokens:
                    yield event.tokens
                if event.stop:
                    return
        finally:
            writer.close()


def _parameters(xllamacpp: Any, setting: Setting) -> Any:
    workload = setting.workload
    slots = min(len(workload.prompts), 16)
    longest = max(len(prompt) + out for prompt, out in zip(workload.prompts, workload.outputs, strict=True))
    found = xllamacpp.CommonParams()
    found.model.path = str(write_gguf(setting.folder, setting.weights))
    found.n_parallel = slots
    found.kv_unified = True
    found.n_ctx = sum(map(len, workload.prompts)) + sum(workload.outputs) + 2 * longest
    found.cache_type_k = found.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    found.cpuparams.n_threads = found.cpuparams_batch.n_threads = setting.threads
    found.cache_ram_mib = 0
    found.verbosity = -1
    found.warmup = True
    return found


@asynccontextmanager
async def start(setting: Setting) -> AsyncGenerator[_LlamaCpp, None]:
    library: Any = import_module("xllamacpp")  # it has no types
    server = library.Server(_parameters(library, setting))
    yield _LlamaCpp(server.listening_address, setting.workload.reuse)
    del server
