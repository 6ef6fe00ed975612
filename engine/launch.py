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
from engine.grammar import Vocabulary
from engine.locate import ModelSource, locate
from engine.models import loader
from engine.models.decoder import Decoder
from engine.models.spec import UnsupportedModel
from engine.runner import EagerRunner
from engine.scheduler import Limits
from engine.selfcheck import reproducible
from engine.speculation import DraftModel, NGram, Speculation
from engine.tokenizer import load_tokenizer

_log = logging.getLogger(__name__)
_SMALL = 50_000_000  # parameters; below this, threads cost more than they bring


class Options(Struct, frozen=True, kw_only=True):
    """`memory`: bytes for keys and values, None for a quarter of RAM. `threads`: None to choose by the model's size.

    `quant` and `kv_dtype`: `engine.quant.KINDS` and `KV_KINDS`. `speculate`: off, predicted (only requests with a
    prediction), ngram (all), or the name of a smaller model with the same vocabulary; `draft_tokens`: guesses a step.
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
    speculate: str = "predicted"
    draft_tokens: int = 4


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
    blocks = plan_blocks(decoder, limits, memory, kv_dtype)
    core = EngineCore(
        model,
        decoder,
        blocks=blocks,
        limits=limits,
        queue=options.queue,
        monotonic=monotonic,
        features=("reproducible",) if reproducible(decoder, kv_dtype) else (),
        runner=EagerRunner(decoder, blocks, kv_dtype),
        grammar=_vocabulary(source, decoder),
        speculation=_speculation(options, decoder, limits, memory),
    )
    core.warm_up()
    info = core.info()
    _log.info(
        "%s: %s, %.1f M parameters, %s, %d threads, window %d, %d tokens of cache in %s, ready after %.2f s",
        *(model, info.architecture, decoder.spec.parameters / 1e6, info.dtype, threads, core.context),
        *(info.kv_capacity_tokens, kv_dtype, monotonic() - began),
    )
    return core


def _vocabulary(source: ModelSource, decoder: Decoder) -> Vocabulary:
    tokenizer = load_tokenizer(source)
    return Vocabulary(tokenizer.contents(), decoder.spec.vocabulary, tokenizer.eos)


def _speculation(options: Options, decoder: Decoder, limits: Limits, memory: int) -> Speculation | None:
    """Raises EngineError when the draft model cannot be loaded or speaks another vocabulary."""
    if options.speculate == "off":
        return None
    if options.speculate in ("predicted", "ngram"):
        return Speculation(NGram(always=options.speculate == "ngram"), options.draft_tokens)
    draft = loader.load(locate(options.speculate), options.dtype, options.context)
    if draft.spec.vocabulary != decoder.spec.vocabulary or draft.spec.context < decoder.spec.context:
        raise UnsupportedModel(f"{options.speculate} cannot guess for this model: its vocabulary or window differs.")
    return Speculation(DraftModel(draft, plan_blocks(draft, limits, memory // 4), options.chunk), options.draft_tokens)


def _ram() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
