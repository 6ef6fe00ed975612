"""`nearhit engine …`: the bundled engine by hand."""

from gateway.cli import show
from gateway.cli.wrong import Wrong


def bench_engine(model: str = "demo", *, threads: int | None = None, json: bool = False) -> None:
    """Measure the engine: time to first token, time per token, tokens per second.

    Parameters
    ----------
    model
        demo, tiny-random:qwen3, tiny-random:llama or a model folder.
    threads
        CPU threads; left out, the engine chooses.
    """
    from engine.api import EngineError
    from engine.bench.alone import run
    from engine.options import Options

    try:
        found = run(model, Options(threads=threads))
    except EngineError as error:
        raise Wrong(str(error)) from error
    if not json:
        for name, value in found.items():
            show.line(f"{name}: {value}")
    show.json_line(found)


def chat_engine(model: str = "demo", *, max_tokens: int = 256, temperature: float = 0.0) -> int:
    """Talk to a model in this terminal; an empty line ends it."""
    from engine.__main__ import main

    return main(["chat", model, "--max-tokens", str(max_tokens), "--temperature", str(temperature)])
