"""Real engines for tests and experiments: a checkpoint on disk, a process on a socket.

Knows: how to write a tiny model as a folder, how to start and end an engine process, how to fork one from a process
that has torch loaded. Does not know: assertions.
"""

import asyncio
import multiprocessing
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import msgspec

from engine.api import EngineFailed
from engine.client import EngineClient
from engine.locate import locate
from engine.template import CHATML
from engine.tokenizer import END_OF_TURN, byte_tokenizer

_PATIENCE_S = 60.0


def write_checkpoint(folder: Path, model: str = "tiny-random:qwen3") -> Path:
    """Write a tiny random model as a Hugging Face folder. Returns `folder`. Imports torch."""
    from safetensors.torch import save_file

    from engine.models import loader, tiny
    from engine.models.spec import read_spec

    source = locate(model)
    config = loader.read_config(source)
    tokenizer_config = {"eos_token": "<|im_end|>", "chat_template": CHATML}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tiny.tensors(read_spec(config), source.seed), folder / "model.safetensors")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    for name, value in {
        "config.json": config,
        "tokenizer_config.json": tokenizer_config,
        "generation_config.json": {"eos_token_id": [END_OF_TURN]},
    }.items():
        (folder / name).write_bytes(msgspec.json.encode(value))
    return folder


def process_command(model: str, socket: Path, *options: str) -> list[str]:
    """The command line of an engine process; `options` as of `engine.process`."""
    return [
        sys.executable,
        "-m",
        "engine.process",
        "--model",
        model,
        "--socket",
        str(socket),
        "--threads",
        "1",
        *options,
    ]


async def start_process(model: str, socket: Path, *options: str) -> asyncio.subprocess.Process:
    """A running engine process, not yet ready. The caller ends it."""
    return await asyncio.create_subprocess_exec(*process_command(model, socket, *options))


class Forked:
    """An engine process with what matters of `asyncio.subprocess.Process` and `subprocess.Popen`."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    async def wait(self) -> int:
        while (status := self.returncode) is None:  # noqa: ASYNC110  (its end is seen by asking)
            await asyncio.sleep(0.005)
        return status

    def ended(self, timeout: float = _PATIENCE_S) -> int | None:
        """The exit status; None when there is none after `timeout` seconds."""
        self._process.join(timeout)
        return self.returncode


def fork_process(model: str, socket: Path, *options: str) -> Forked:
    """The same process in a tenth of the time: torch is loaded once, by a server that forks, not by each.

    For who asks what a process does, not how one starts: its parent is that server. It ends with this program.
    """
    return fork_command(process_command(model, socket, *options))


def fork_command(line: Sequence[str]) -> Forked:
    """The same for a command line of `engine.host`; `--parent` goes, as that is the server."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["engine.process", "engine.testing"])
    argv = list(line[3:])  # without `python -m engine.process`
    if "--parent" in argv:
        at = argv.index("--parent")
        del argv[at : at + 2]
    process = context.Process(target=_run, args=(argv,), daemon=True)
    process.start()
    return Forked(process)


def _run(argv: list[str]) -> None:
    from engine.process import main

    sys.exit(main(argv))


async def until(condition: Callable[[], bool], what: str, timeout: float = _PATIENCE_S) -> None:
    """Wait for `condition`. Raises TimeoutError that says `what` never came."""
    try:
        async with asyncio.timeout(timeout):
            while not condition():  # noqa: ASYNC110  (numbers of another process: there is no event to wait for)
                await asyncio.sleep(0.005)
    except TimeoutError as error:
        raise TimeoutError(f"never came: {what}") from error


async def until_ready(client: EngineClient) -> None:
    """Raises TimeoutError."""
    await until(lambda: client.stats().ready, "a ready engine")


@asynccontextmanager
async def running(
    model: str, socket: Path, *options: str, patience: float = _PATIENCE_S
) -> AsyncGenerator[EngineClient, None]:
    """A ready client of a fresh engine process; both end with the block. `options` as of `engine.process`.

    Raises EngineFailed when the process ends instead, TimeoutError after `patience` seconds.
    """
    process = await start_process(model, socket, *options)
    client = EngineClient(model, socket)
    try:
        await client.start()
        await until(lambda: client.stats().ready or process.returncode is not None, "a ready engine", patience)
        if process.returncode is not None:
            raise EngineFailed(f"The engine process ended with exit code {process.returncode}.")
        yield client
    finally:
        await client.stop()
        if process.returncode is None:
            process.terminate()
        await process.wait()
