"""Everything between a model's name and an engine core that is ready to step.

Knows: options, memory, threads. Does not know: sockets, clients, text.
"""

import logging
import os
from collections.abc import Callable

import torch
from msgspec import Struct

from engine.blocks import BLOCK
from engine.core import EngineCore, plan_blocks
from engine.locate import locate
from engine.models import loader
from engine.scheduler import Limits
from engine.selfcheck import reproducible

_log = logging.getLogger(__name__)
_SMALL = 50_000_000  # parameters; below this, threads cost more than they bring


class Options(Struct, frozen=True, kw_only=True):
    """`memory`: bytes for keys and values, None for a quarter of RAM. `threads`: None to choose by the model's size.

    `quant` and `kv_dtype`: `engine.quant.KINDS` and `KV_KINDS`.
    """

    threads: int | None = None
    queue: int = 256
    sequences: int = 32
    context: int | None = None
    dtype: str = "auto"
    quant: str = "none"
    kv_dtype: str = "auto"
    memory: int | None = None
    step_tokens: int = 512
    chunk: int = 128


def launch(model: str, options: Options, *, monotonic: Callable[[], float]) -> EngineCore:
    """Load a model and make its core. Raises EngineError (ModelNotFound, UnsupportedModel, BadCheckpoint)."""
    began = monotonic()
    source = locate(model)
    decoder = loader.load(source, options.dtype, options.context, options.quant)
    kv_dtype = "float32" if options.kv_dtype == "auto" else options.kv_dtype  # what CPUs attend fastest in
    threads = options.threads or (1 if decoder.spec.parameters < _SMALL else len(os.sched_getaffinity(0)))
    torch.set_num_threads(threads)
    limits = Limits(
        step_tokens=max(options.step_tokens, options.sequences + BLOCK),
        sequences=options.sequences,
        chunk=options.chunk,
    )
    memory = options.memory if options.memory is not None else _ram() // 4
    core = EngineCore(
        model,
        decoder,
        blocks=plan_blocks(decoder, limits, memory, kv_dtype),
        limits=limits,
        queue=options.queue,
        monotonic=monotonic,
        features=("reproducible",) if reproducible(decoder, kv_dtype) else (),
        kv_dtype=kv_dtype,
    )
    core.warm_up()
    info = core.info()
    _log.info(
        "%s: %s, %.1f M parameters, %s, %d threads, window %d, %d tokens of cache in %s, ready after %.2f s",
        *(model, info.architecture, decoder.spec.parameters / 1e6, info.dtype, threads, core.context),
        *(info.kv_capacity_tokens, kv_dtype, monotonic() - began),
    )
    return core


def _ram() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
