"""What a run of `nearhit bench gateway` found: its shape as JSON, and as a table for people.

Knows: medians and spreads over rounds, versions and load of the machine. Does not know: how anything was measured.
"""

import datetime as dt
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from gateway.bench.cases import Case, Figures, spread

PACKAGES = ("nearhit", "uvicorn", "uvloop", "aiohttp", "litestar", "msgspec", "sqlalchemy", "faiss-cpu", "torch")
_COLUMNS = ("cpu_us", "encoder_cpu_us", "rps", "p50_ms", "p99_ms", "ttft_p50_ms")
_HEADINGS = ("CPU µs", "encoder µs", "RPS", "p50 ms", "p99 ms", "TTFT ms")

Spread = dict[str, float]


class CaseResult(Struct, kw_only=True):
    """`targets`: who was asked -> figure -> median, least and most over the rounds."""

    about: str
    connections: int
    targets: dict[str, dict[str, Spread]]

    def median(self, target: str, figure: str) -> float:
        return self.targets[target][figure]["median"]


class StreamResult(Struct, kw_only=True):
    """What a stream adds. A further event is what an event costs beyond the request as such.

    Time to first token is that of streams that begin evenly spread; CPU per event that of a hundred at once.
    """

    added_ttft_ms: float
    events: float
    cpu_us_per_event: float
    cpu_us_per_further_event: float


class HalfLoad(Struct, kw_only=True):
    """Time added at half of the rate that the gateway can take."""

    rate: float
    added_p50_ms: Spread
    added_p99_ms: Spread


class Machine(Struct, kw_only=True):
    """`load_average` over 1, 5 and 15 minutes at the end of the run."""

    cpu: str
    cores: int | None
    load_average: tuple[float, float, float]


def machine() -> Machine:
    return Machine(cpu=_cpu_model(), cores=os.cpu_count(), load_average=os.getloadavg())


class Result(Struct, kw_only=True):
    """The last line of standard output."""

    cases: dict[str, CaseResult]
    half_load: HalfLoad
    stream: StreamResult
    memory_mb: dict[str, float]
    disk_sync_ms: dict[str, float]
    start_s: dict[str, float]
    seconds: float
    rounds: int
    bench: str = "gateway"
    date: str = ""
    python: str = platform.python_version()
    machine: Machine | None = None
    versions: dict[str, str] = {}

    def sign(self) -> None:
        """Say when, where and with which versions this was measured."""
        self.date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")  # noqa: TID251 - dates the result
        self.machine = machine()
        self.versions = {name: version(name) for name in PACKAGES}


def summary(case: Case, taken: dict[str, list[Figures]]) -> CaseResult:
    """Per target and figure the median and the spread over the rounds; a figure nobody could read is left out."""
    targets: dict[str, dict[str, Spread]] = {}
    for name, rounds in taken.items():
        columns = {
            field: [float(value) for figures in rounds if (value := getattr(figures, field)) is not None]
            for field in Figures.__struct_fields__
        }
        targets[name] = {field: spread(values) for field, values in columns.items() if values}
    return CaseResult(about=case.about, connections=case.connections, targets=targets)


def stream_result(stream: CaseResult, busy: CaseResult, miss: CaseResult) -> StreamResult:
    """From the medians of the three cases."""
    events = busy.median("nearhit", "events")
    whole = busy.median("nearhit", "cpu_us")
    return StreamResult(
        added_ttft_ms=round(stream.median("nearhit", "ttft_p50_ms") - stream.median("direct", "ttft_p50_ms"), 3),
        events=events,
        cpu_us_per_event=round(whole / events, 2),
        cpu_us_per_further_event=round((whole - miss.median("nearhit", "cpu_us")) / events, 2),
    )


def table(result: Result) -> str:
    """For people; the JSON line says the same. CPU of `direct` is the upstream's own: a yardstick of the day."""
    lines = [f"{result.date}  {result.machine}  Python {result.python}", str(result.versions), ""]
    lines.append(f"{'case':14} {'target':14}" + "".join(f"{name:>12}" for name in _HEADINGS))
    for name, case in result.cases.items():
        for target, figures in case.targets.items():
            cells = (f"{figures[column]['median']:>12g}" if column in figures else f"{'-':>12}" for column in _COLUMNS)
            lines.append(f"{name:14} {target:14}" + "".join(cells))
    stream, half = result.stream, result.half_load
    lines += [
        "",
        f"stream of {stream.events:g} events: TTFT +{stream.added_ttft_ms} ms",
        f"CPU per event {stream.cpu_us_per_event} µs, {stream.cpu_us_per_further_event} beyond the request's own",
        f"half load ({half.rate:g}/s): p50 +{half.added_p50_ms['median']} ms, p99 +{half.added_p99_ms['median']} ms",
        f"this disk's own fdatasync, which every miss waits for: {result.disk_sync_ms} ms",
        "worker, MB: " + ", ".join(f"{name} {value}" for name, value in result.memory_mb.items()),
        "start, s: " + ", ".join(f"{name} {value}" for name, value in result.start_s.items()),
    ]
    return "\n".join(lines)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


class Dated(Protocol):
    """A result that says when and where it was had."""

    date: str
    machine: Machine | None


def kept(result: Dated, name: str, folder: Path | None) -> str:
    """The result as one line of JSON, dated; in `folder` also as a file."""
    result.date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")  # noqa: TID251 - dates the result
    result.machine = machine()
    line = msgspec.json.encode(result)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-{result.date[:10]}.json").write_bytes(msgspec.json.format(line, indent=2) + b"\n")
    return line.decode()
