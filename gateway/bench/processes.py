"""Starting what is measured, on a core of its own, and reading what it used from /proc (Linux).

Knows: processes, cores, CPU time and memory. Does not know: requests.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PATIENCE = 90.0


class BenchError(RuntimeError):
    """The measurement cannot be made; the message says why."""


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def pin_self(core: int) -> None:
    """Keep this process (the load generator) on one core."""
    os.sched_setaffinity(0, {core})


def spare_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    arguments: list[str], *, core: int | None, environment: dict[str, str], folder: Path, module: str = "gateway"
) -> Generator[subprocess.Popen[bytes]]:
    """`nearhit <arguments>`, or another module, as a child on `core`; asked to stop at the end, then killed."""
    command = [sys.executable, "-m", module, *arguments]
    if core is not None and (taskset := shutil.which("taskset")):
        command = [taskset, "-c", str(core), *command]
    log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603 - our own command line, no shell
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, cwd=folder
        )
        try:
            yield process
        except BenchError as error:
            if process.poll() is None:
                raise
            said = log.read_text("utf-8", "replace")[-3_000:]
            raise BenchError(f"{error}\n--- end of the log of {arguments[0]} ---\n{said}") from error
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def await_port(port: int, process: subprocess.Popen[bytes]) -> float:
    """Seconds until the port opened. Raises BenchError when the process ended or took too long."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < _PATIENCE:
        if process.poll() is not None:
            raise BenchError(f"the process ended with code {process.returncode} before its port opened")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return time.perf_counter() - begun
        time.sleep(0.01)
    raise BenchError(f"port {port} did not open within {_PATIENCE:.0f} s")


def children(pid: int) -> dict[int, str]:
    """All descendants of a process: pid -> command line."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in parents.get(waiting.pop(), ()):
            found[child] = _command_line(child)
            waiting.append(child)
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all its threads. 0.0 when it is gone."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


def memory_mb(pid: int) -> float:
    """Resident set in MB (10^6)."""
    fields = _stat(pid)
    return int(fields[21]) * _PAGE / 1e6 if fields else 0.0


def disk_sync_ms(folder: Path, *, times: int = 300) -> dict[str, float]:
    """How long this disk takes to make 400 appended bytes durable: no journal in this folder can be quicker."""
    took: list[float] = []
    with (folder / "sync-probe").open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        for _ in range(times):
            file.write(b"x" * 400)
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - begun) * 1e3)
            time.sleep(0.001)
    took.sort()
    return {"p50": round(took[times // 2], 2), "p99": round(took[times * 99 // 100], 2)}


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command's name, so [0] is the state; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
