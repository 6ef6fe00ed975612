"""The engine processes of a gateway: how many, at which sockets, with which flags.

Knows: settings of engines. Does not know: how processes are kept alive (`serve_child`), what an engine does.
"""

from collections.abc import Mapping
from pathlib import Path

from engine.options import Options, arguments
from gateway.serve_child import Plan, module_command
from gateway.settings import EngineSettings


def engine_sockets(run_folder: Path, name: str, replicas: int) -> list[Path]:
    """Where the processes of one engine listen: `engine-NAME.sock`, or one numbered socket for each replica."""
    if replicas == 1:
        return [run_folder / f"engine-{name}.sock"]
    return [run_folder / f"engine-{name}.{number}.sock" for number in range(replicas)]


def engine_plans(engines: Mapping[str, EngineSettings], run_folder: Path, environment: dict[str, str]) -> list[Plan]:
    """A simulated engine lives in the worker and needs no process."""
    plans: list[Plan] = []
    for name, engine in engines.items():
        if engine.model == "sim":
            continue
        for number, path in enumerate(engine_sockets(run_folder, name, engine.replicas)):
            command = module_command("engine.process", "--model", engine.model, "--socket", str(path), *_flags(engine))
            label = f"engine {name}" if engine.replicas == 1 else f"engine {name} {number}"
            plans.append(Plan(name=label, kind="engine", command=command, environment=environment))
    return plans


def _flags(engine: EngineSettings) -> list[str]:
    options = Options(
        threads=engine.threads,
        queue=engine.max_queue,
        sequences=engine.max_sequences,
        context=engine.context,
        memory=engine.memory,
        quant=engine.quant,
        kv_dtype=engine.kv_dtype,
        device=engine.device,
        deterministic=engine.deterministic,
        speculate=engine.speculate,
        tensor_parallel=engine.tensor_parallel,
    )
    flags = arguments(options)
    if engine.sleep_after is not None:
        flags += ["--sleep-after", f"{engine.sleep_after:g}", "--sleep-level", str(engine.sleep_level)]
    if engine.slo_ttft_ms is not None:
        flags += ["--slo-ttft-ms", f"{engine.slo_ttft_ms:g}"]
    if engine.slo_tpot_ms is not None:
        flags += ["--slo-tpot-ms", f"{engine.slo_tpot_ms:g}"]
    return flags
