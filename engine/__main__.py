"""`python -m engine generate|chat|bench|quality`: the engine by hand, through its own process and socket.

Knows: a terminal. Does not know: the gateway.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import aclosing
from itertools import count
from pathlib import Path

import msgspec

from engine.api import Delta, EngineError, GenerateRequest, SamplingParams
from engine.client import EngineClient
from engine.quant import KINDS, KV_KINDS
from engine.testing import running

_ids = count(1)
_BENCH = ("bench", "measure; prints one JSON object")
_QUALITY = ("quality", "what fewer bits cost; prints one JSON object")
_PATIENCE_S = 1800.0  # large models take their time to load


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine", description="Run a model by hand.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("generate", "continue a text"),
        ("chat", "talk"),
        ("bench", "measure; prints one JSON object"),
        _QUALITY,
    ):
        command = commands.add_parser(name, help=what)
        command.add_argument("model", help="demo, tiny-random:qwen3, tiny-random:llama or a model folder")
        command.add_argument("--threads", type=int, default=None)
        if name == "quality":
            command.add_argument("--quant", choices=KINDS, default="none")
            command.add_argument("--kv-dtype", choices=KV_KINDS, default="auto")
            command.add_argument("--text", type=Path, default=None, help="default: a shipped one of 5 KB")
            continue
        if name == "bench":
            command.add_argument("--prompt-tokens", type=int, default=256)
            command.add_argument("--output-tokens", type=int, default=64)
            command.add_argument("--concurrency", type=int, default=8)
            continue
        command.add_argument("--max-tokens", type=int, default=256)
        command.add_argument("--temperature", type=float, default=0.0)
        command.add_argument("--seed", type=int, default=None)
        if name == "generate":
            command.add_argument("prompt")
    return parser.parse_args(argv)


def _request(given: argparse.Namespace, **prompt: object) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=given.max_tokens, temperature=given.temperature, seed=given.seed)
    return msgspec.convert({"id": str(next(_ids)), "sampling": sampling, **prompt}, GenerateRequest)


async def _print(client: EngineClient, request: GenerateRequest) -> str:
    """Show an answer as it comes and what it took. Returns its text."""
    last = Delta()
    parts: list[str] = []
    async with aclosing(client.generate(request)) as deltas:
        async for last in deltas:
            parts.append(last.text)
            sys.stdout.write(last.text)
            sys.stdout.flush()
    if last.usage is not None and last.timing is not None:
        used, took = last.usage, last.timing
        sys.stderr.write(
            f"\n[{last.finish_reason}: {used.prompt} + {used.completion} tokens, {used.cached} reused, "
            f"first after {took.ttft_ms:.0f} ms, then one each {took.tpot_ms:.1f} ms]\n"
        )
    return "".join(parts)


async def _talk(given: argparse.Namespace) -> None:
    threads = () if given.threads is None else ("--threads", str(given.threads))
    with tempfile.TemporaryDirectory() as folder:
        async with running(given.model, Path(folder) / "engine.sock", *threads, patience=_PATIENCE_S) as client:
            if given.command == "generate":
                await _print(client, _request(given, text=given.prompt))
                return
            messages: list[dict[str, object]] = []
            while (line := await asyncio.to_thread(_ask)) is not None:
                messages.append({"role": "user", "content": line})
                answer = await _print(client, _request(given, messages=messages))
                messages.append({"role": "assistant", "content": answer})


def _ask() -> str | None:
    """A line from the terminal; None at its end."""
    try:
        return input("> ")
    except EOFError:
        return None


def _quality(given: argparse.Namespace) -> dict[str, object]:
    import torch

    from engine.quant.quality import measure

    torch.set_num_threads(given.threads or torch.get_num_threads())
    bits = {"quant": given.quant, "kv_dtype": given.kv_dtype}
    return measure(given.model, **bits, text=given.text, monotonic=time.monotonic)


def main(argv: list[str] | None = None) -> int:
    given = _arguments(argv)
    try:
        if given.command == "bench":
            from engine.bench import run

            result = run(
                given.model,
                threads=given.threads,
                prompt_tokens=given.prompt_tokens,
                output_tokens=given.output_tokens,
                concurrency=given.concurrency,
            )
            sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        elif given.command == "quality":
            sys.stdout.write(msgspec.json.encode(_quality(given)).decode() + "\n")
        else:
            asyncio.run(_talk(given))
    except EngineError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
