"""`python -m engine serve|generate|chat|bench|plan|quality`: the engine by hand, in processes of its own.

Knows: a terminal. Does not know: the gateway.
"""

import argparse
import asyncio
import signal
import sys
import time
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path
from threading import Thread

import msgspec

from engine import options
from engine.api import Delta, Engine, EngineError, GenerateRequest, SamplingParams
from engine.host import open_engine, serving

_ids = count(1)
_SAMPLING = ("max_tokens", "temperature", "seed")
_COMMANDS = {
    "serve": "serve other programs at a Unix socket (OpenAI's HTTP API in front of it: nearhit serve)",
    "generate": "continue a text, or answer a .jsonl file of requests",
    "chat": "talk",
    "bench": "measure; prints one JSON object",
    "plan": "what a model needs and could do here, without loading it; prints one JSON object",
    "quality": "what fewer bits cost; prints one JSON object",
}


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine", description="Run a model by hand.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in _COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("model", help="demo, tiny-random:qwen3, tiny-random:llama or a model folder")
        options.add(command)
        if name in _OWN:
            _OWN[name](command)
    found = parser.parse_args(argv)
    try:
        found.options = options.given(found)
    except ValueError as error:
        parser.error(str(error))
    if problem := _unheard(found):
        parser.error(problem)
    return found


def _unheard(given: argparse.Namespace) -> str:
    """What was said to `generate` and would change nothing; empty: nothing."""
    if given.command != "generate":
        return ""
    if _is_file(given):
        said = next((name for name in _SAMPLING if getattr(given, name) is not None), "")
        return said and f"--{said.replace('_', '-')}: each line of a file says its own."
    said = next((name for name in ("out", "in_flight") if getattr(given, name) is not None), "")
    return said and f"--{said.replace('_', '-')} is for a .jsonl file of requests."


def _is_file(given: argparse.Namespace) -> bool:
    return given.prompt.endswith(".jsonl")


def _count(text: str) -> int:
    """At least one: nothing at all would end well and have done nothing."""
    if (found := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return found


def _add_serve(command: argparse.ArgumentParser) -> None:
    command.add_argument("--socket", type=Path, required=True, help="with --replicas, a number is added to its name")
    command.add_argument("--replicas", type=_count, default=1, help="processes with the same model")
    command.add_argument("--sleep-after", type=float, default=None, help="idle seconds after which a process sleeps")
    command.add_argument("--sleep-level", choices=("1", "2"), default="1", help="2: drop the weights too")


def _add_sampling(command: argparse.ArgumentParser) -> None:
    command.add_argument("--max-tokens", type=int, default=None, help="default: 256")
    command.add_argument("--temperature", type=float, default=None, help="default: 0, the likeliest token")
    command.add_argument("--seed", type=int, default=None)


def _add_generate(command: argparse.ArgumentParser) -> None:
    command.add_argument("prompt", help="a text, or a .jsonl file in OpenAI's batch format")
    _add_sampling(command)
    command.add_argument("--out", type=Path, default=None, help="answers; default: beside the file, .answers.jsonl")
    command.add_argument("--in-flight", type=_count, default=None, help="requests of the file at once (64)")


def _add_bench(command: argparse.ArgumentParser) -> None:
    command.add_argument("--prompt-tokens", type=_count, default=256)
    command.add_argument("--output-tokens", type=_count, default=64)
    command.add_argument("--concurrency", type=_count, default=8)


def _add_quality(command: argparse.ArgumentParser) -> None:
    command.add_argument("--text", type=Path, default=None, help="default: a shipped one of 5 KB")


_OWN = {
    "quality": _add_quality,
    "serve": _add_serve,
    "generate": _add_generate,
    "chat": _add_sampling,
    "bench": _add_bench,
}


def _request(given: argparse.Namespace, **prompt: object) -> GenerateRequest:
    sampling = SamplingParams(
        max_tokens=256 if given.max_tokens is None else given.max_tokens,
        temperature=given.temperature or 0.0,
        seed=given.seed,
    )
    return msgspec.convert({"id": str(next(_ids)), "sampling": sampling, **prompt}, GenerateRequest)


async def _print(client: Engine, request: GenerateRequest) -> str:
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


async def _serve(given: argparse.Namespace) -> None:
    path: Path = given.socket
    paths = [path] if given.replicas == 1 else [path.with_name(f"{path.name}.{at}") for at in range(given.replicas)]
    line = [*options.arguments(given.options), "--sleep-level", given.sleep_level]
    line += [] if given.sleep_after is None else ["--sleep-after", str(given.sleep_after)]
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with serving(given.model, paths, line):
        sys.stdout.write("".join(f"serving {given.model} at {path}\n" for path in paths))
        sys.stdout.flush()
        await ended.wait()


async def _generate(given: argparse.Namespace) -> None:
    if _is_file(given):  # before a large model is read for nothing
        await asyncio.to_thread(_check_files, given)
    async with open_engine(given.model, given.options) as client:
        if _is_file(given):
            await _answer_file(client, given)
        else:
            await _print(client, _request(given, text=given.prompt))


def _check_files(given: argparse.Namespace) -> None:
    """Raises OSError."""
    from engine.batch_file import answered

    if not Path(given.prompt).is_file():
        raise FileNotFoundError(f"There is no file {given.prompt}.")
    answered(Path(given.prompt), _answers_of(given))


def _answers_of(given: argparse.Namespace) -> Path:
    return given.out or Path(given.prompt).with_suffix(".answers.jsonl")


async def _answer_file(client: Engine, given: argparse.Namespace) -> None:
    from engine.batch_file import Progress, run

    def show(now: Progress) -> None:
        told = f"{now.done} answered, {now.failed} of them errors, {now.skipped} from before, "
        sys.stderr.write(f"\r{told}{now.completion_tokens} tokens written")

    target = _answers_of(given)
    found = await run(client, Path(given.prompt), target, in_flight=given.in_flight or 64, show=show)
    sys.stderr.write("\n")
    sys.stdout.write(msgspec.json.encode({**found._asdict(), "answers": str(target)}).decode() + "\n")


async def _chat(given: argparse.Namespace) -> None:
    async with open_engine(given.model, given.options) as client:
        messages: list[dict[str, object]] = []
        while (line := await _typed()) is not None:
            messages.append({"role": "user", "content": line})
            answer = await _print(client, _request(given, messages=messages))
            messages.append({"role": "assistant", "content": answer})


async def _typed() -> str | None:
    """What `_ask` finds, in a thread that nobody waits for: after Ctrl-C a pool's would be, until Enter is pressed."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[str | None] = loop.create_future()

    def tell(line: str | None, error: Exception | None) -> None:
        if error is not None and not found.done():
            found.set_exception(error)
        elif not found.done():
            found.set_result(line)

    def read() -> None:
        line, problem = None, None
        try:
            line = _ask()
        except Exception as error:  # noqa: BLE001 - told where it is waited for
            problem = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(tell, line, problem)

    Thread(target=read, daemon=True).start()
    return await found


def _ask() -> str | None:
    """A line from the terminal; None at its end and for an empty one."""
    try:
        return input("> ") or None
    except EOFError:
        return None


async def _bench(given: argparse.Namespace) -> None:
    from engine.bench.alone import run

    workload = {name: getattr(given, name) for name in ("prompt_tokens", "output_tokens", "concurrency")}
    sys.stdout.write(msgspec.json.encode(run(given.model, given.options, **workload)).decode() + "\n")


async def _plan(given: argparse.Namespace) -> None:
    from engine.planning import plan

    sys.stdout.write(msgspec.json.encode(plan(given.model, given.options)).decode() + "\n")


async def _quality(given: argparse.Namespace) -> None:
    import torch

    from engine.quant.quality import measure

    wanted: options.Options = given.options
    torch.set_num_threads(wanted.threads or torch.get_num_threads())
    bits = {"quant": wanted.quant, "kv_dtype": wanted.kv_dtype}
    found = measure(given.model, **bits, text=given.text, monotonic=time.monotonic)
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


_RUN = {"quality": _quality, "serve": _serve, "generate": _generate, "chat": _chat, "bench": _bench, "plan": _plan}


def main(argv: list[str] | None = None) -> int:
    given = _arguments(argv)
    try:
        asyncio.run(_ending(given))
    except (EngineError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError) as error:  # what was answered of a file stays
        sys.stderr.write("\n")
        return 128 + (signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM)
    return 0


async def _ending(given: argparse.Namespace) -> None:
    """The command; a SIGTERM ends what it has started as Ctrl-C does. `bench` and the like start nothing."""
    task = asyncio.current_task()
    assert task is not None
    if given.command in ("generate", "chat"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await _RUN[given.command](given)


if __name__ == "__main__":
    sys.exit(main())
