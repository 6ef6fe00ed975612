"""One engine on one workload, in a process of its own.

`python -m engine.bench.trial PEER FOLDER THREADS WORKLOAD WEIGHTS`

Knows: when tokens came. Does not know: what they mean. The last line of stdout is one JSON `Trial`; WORKLOAD is a file.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.bench.peers import Peer, Setting, start
from engine.bench.workloads import Workload


class Trace(Struct):
    """One request: when it was sent, when each token came (seconds of one clock), which tokens."""

    sent: float
    came: list[float] = []
    tokens: list[int] = []


class Trial(Struct):
    """All requests of a workload. `ready`: seconds until the engine could be asked."""

    ready: float
    traces: list[Trace]


async def run(name: str, setting: Setting) -> Trial:
    """Raises ImportError where the peer cannot run here."""
    began = time.perf_counter()
    async with start(name, setting) as peer:
        workload = setting.workload
        ready = time.perf_counter() - began
        await _warm(peer, workload)
        return Trial(ready, await _ask(peer, workload))


async def _warm(peer: Peer, workload: Workload) -> None:
    """Kernels are chosen, files are read; nothing of the workload is touched but the prefix it may reuse."""
    warming = [[5 + at, 6, 7, 8] for at in range(1 if workload.one_by_one or workload.late else len(workload.prompts))]
    await asyncio.gather(*(_follow(peer.generate(prompt, 4), Trace(0.0)) for prompt in warming))
    if workload.first:
        rounds = [workload.first] * (len(workload.prompts) if len(warming) > 1 and _static(peer) else 1)
        await asyncio.gather(*(_follow(peer.generate(prompt, 4), Trace(0.0)) for prompt in rounds))


def _static(peer: Peer) -> bool:
    """A static batch only starts when it is whole."""
    return "static" in type(peer).__module__


async def _ask(peer: Peer, workload: Workload) -> list[Trace]:
    traces = [Trace(0.0) for _ in workload.prompts]

    async def one(at: int) -> None:
        traces[at].sent = time.perf_counter()
        await _follow(peer.generate(workload.prompts[at], workload.outputs[at]), traces[at])

    if workload.one_by_one:
        for at in range(len(traces)):
            await one(at)
        return traces
    early = len(traces) - workload.late
    async with asyncio.TaskGroup() as group:
        for at in range(early):
            group.create_task(one(at))
        while workload.late and min(len(trace.tokens) for trace in traces[:early]) < workload.after:  # noqa: ASYNC110  (a condition over many streams)
            await asyncio.sleep(0.001)
        for at in range(early, len(traces)):
            group.create_task(one(at))
    return traces


async def _follow(stream: AsyncGenerator[list[int], None], trace: Trace) -> None:
    async with aclosing(stream) as pieces:
        async for tokens in pieces:
            now = time.perf_counter()
            trace.came += [now] * len(tokens)
            trace.tokens += tokens


def main(arguments: list[str]) -> int:
    name, folder, threads, file, weights = arguments
    workload = msgspec.json.decode(Path(file).read_bytes(), type=Workload)
    try:
        found = asyncio.run(run(name, Setting(Path(folder), int(threads), workload, weights)))
    except ImportError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 3
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
