"""Everything between a model's name and an engine core that is ready to step.

Knows: options, memory, threads. Does not know: sockets, clients, text.
"""

import logging
import os
import time
from collections.abc import Callable

import torch
from msgspec import Struct

from engine.api import EngineFailed
from engine.blocks import BLOCK
from engine.core import EngineCore, plan_blocks
from engine.grammar import Vocabulary
from engine.locate import locate, locate_draft
from engine.models import loader
from engine.models.decoder import Decoder
from engine.models.packed import Packed
from engine.models.spec import Spec, UnsupportedModel, read_spec
from engine.options import Options
from engine.parallel import Leader, lead
from engine.preparing import load_text
from engine.runner import EagerRunner, Runner
from engine.scheduler import Limits
from engine.selfcheck import reproducible
from engine.speculation import DraftModel, NGram, Speculation

_log = logging.getLogger(__name__)
_STEP = {"cpu": (512, 128), "cuda": (8192, 512)}  # tokens of a step, and of a prompt beside others who decode
_SMALL = 50_000_000  # parameters; below this, threads cost more than they bring


class Loaded(Struct, frozen=True):
    """A model's weights in memory and what was found out about it once. `draft`: a smaller one that guesses."""

    model: str
    decoder: Decoder
    features: tuple[str, ...]
    vocabulary: Vocabulary
    draft: Decoder | None

    def check(self) -> None:
        """Raises EngineFailed when a process that holds a share of it is gone."""
        if isinstance(self.decoder, Leader):
            self.decoder.check()

    def forget(self) -> None:
        """The last core is gone, and with it its keys and values, wherever they are kept. Raises EngineFailed."""
        if isinstance(self.decoder, Leader):
            self.decoder.forget()

    def close(self) -> None:
        """Nobody will use it any more: processes that hold shares of it end."""
        if isinstance(self.decoder, Leader):
            self.decoder.close()


def launch(model: str, options: Options, *, monotonic: Callable[[], float]) -> EngineCore:
    """Load a model and make its core. Raises EngineError (ModelNotFound, UnsupportedModel, BadCheckpoint)."""
    return build(load(model, options, monotonic=monotonic), options, monotonic=monotonic, warm=True)


def load(model: str, options: Options, *, monotonic: Callable[[], float]) -> Loaded:
    """The weights. Raises EngineError."""
    began, device = monotonic(), device_of(options)
    source = locate(model)
    spec = read_spec(loader.read_config(source))
    torch.set_num_threads(_threads(options, spec.parameters))
    text = load_text(model, time.time)  # as clients do: what they could not read is refused here, before the weights
    if options.tensor_parallel > 1:
        decoder = lead(model, options)
    else:
        decoder = loader.load(source, dtype_of(options, spec), options.context, options.quant, device=device)
    loaded = Loaded(
        model,
        decoder,
        _features(decoder, options),
        text.vocabulary(decoder.spec.vocabulary),
        _draft(options, decoder),
    )
    _log.info(
        "%s: %s, %.1f M parameters, %s, %d threads, loaded after %.2f s",
        *(model, decoder.spec.family, decoder.spec.parameters / 1e6, decoder.dtype, torch.get_num_threads()),
        monotonic() - began,
    )
    return loaded


def build(loaded: Loaded, options: Options, *, monotonic: Callable[[], float], warm: bool) -> EngineCore:
    """A core with its keys and values. `warm`: compute a first answer. Raises EngineFailed when that is nonsense."""
    limits = limits_of(options)
    runner, blocks = _runner(loaded.decoder, options)
    core = EngineCore(
        loaded.model,
        loaded.decoder,
        blocks=blocks,
        limits=limits,
        queue=options.queue,
        monotonic=monotonic,
        features=loaded.features,
        runner=runner,
        grammar=loaded.vocabulary,
        speculation=_speculation(loaded.draft, options),
    )
    if warm:
        core.warm_up()
        info = core.info()
        kept = (info.kv_capacity_tokens, kv_dtype_of(options))
        _log.info("%s: window %d, %d tokens of cache in %s", loaded.model, core.context, *kept)
    return core


def _threads(options: Options, parameters: int) -> int:
    return options.threads or (1 if parameters < _SMALL else len(os.sched_getaffinity(0)))


def device_of(options: Options) -> str:
    """`cpu` or `cuda`. Raises EngineFailed when a GPU was asked for and there is none."""
    there = torch.cuda.is_available()
    if options.device == "cuda" and not there:
        raise EngineFailed("device cuda: torch sees no GPU here.")
    return "cuda" if there and options.device != "cpu" else "cpu"


def _features(decoder: Decoder, options: Options) -> tuple[str, ...]:
    """`reproducible`: answers do not depend on company. `packed`: dense weights lie in the processor's own order."""
    packed = ("packed",) if any(isinstance(linear, Packed) for linear in decoder.linears) else ()
    return (*packed, *(("reproducible",) if _is_reproducible(decoder, options) else ()))


def _is_reproducible(decoder: Decoder, options: Options) -> bool:
    """Measured on a processor; on a GPU a property of the kernels that were chosen."""
    if device_of(options) == "cuda":
        return options.deterministic
    return reproducible(decoder, kv_dtype_of(options))


def _runner(decoder: Decoder, options: Options) -> tuple[Runner, int]:
    """What computes steps, and how many blocks its cache has. Raises EngineFailed when nothing fits."""
    limits, kv_dtype = limits_of(options), kv_dtype_of(options)
    if device_of(options) == "cpu" or isinstance(decoder, Leader):  # followers repeat the plain pass of rank 0
        blocks = plan_blocks(decoder, limits, memory_of(options), kv_dtype)
        return EagerRunner(decoder, blocks, kv_dtype), blocks
    from engine import cuda  # brings Triton, which is only where GPUs are

    chosen = cuda.CudaOptions(
        sequences=limits.sequences,
        step_tokens=limits.step_tokens,
        blocks=None if options.memory is None else plan_blocks(decoder, limits, options.memory, kv_dtype),
        kv_dtype=kv_dtype,
        deterministic=options.deterministic,
        graphs=options.graphs,
    )
    runner = cuda.build(decoder, chosen)
    return runner, runner.blocks


def _draft(options: Options, decoder: Decoder) -> Decoder | None:
    """Raises EngineError when it cannot be loaded or speaks another vocabulary."""
    source = locate_draft(options.speculate)
    if source is None:
        return None
    draft = loader.load(source, options.dtype, options.context, device=device_of(options))
    can_guess(options, draft.spec, decoder.spec)
    return draft


def can_guess(options: Options, draft: Spec, spec: Spec) -> None:
    """Raises UnsupportedModel."""
    if draft.vocabulary != spec.vocabulary or draft.context < min(spec.context, options.context or spec.context):
        raise UnsupportedModel(f"{options.speculate} cannot guess for this model: its vocabulary or window differs.")


def _speculation(draft: Decoder | None, options: Options) -> Speculation | None:
    if draft is not None:
        blocks = plan_blocks(draft, limits_of(options), memory_of(options) // 4)
        return Speculation(DraftModel(draft, blocks, limits_of(options).chunk), options.draft_tokens)
    if options.speculate == "off":
        return None
    return Speculation(NGram(always=options.speculate == "ngram"), options.draft_tokens)


def limits_of(options: Options) -> Limits:
    """What a step may hold: on a GPU more, where a hundred rows take as long as one."""
    step_tokens, chunk = _STEP[device_of(options)]
    step_tokens = max(options.step_tokens or step_tokens, options.sequences + BLOCK)
    return Limits(step_tokens=step_tokens, sequences=options.sequences, chunk=min(options.chunk or chunk, step_tokens))


def dtype_of(options: Options, spec: Spec) -> str:
    """Of dense weights as they are kept here: a processor without bfloat16 keeps float32."""
    if options.dtype != "auto":
        return options.dtype
    device = device_of(options)
    return "bfloat16" if device == "cuda" else loader.choose_dtype(spec, torch.device(device))


def kv_dtype_of(options: Options) -> str:
    """What keys and values are kept in; by default what the device attends fastest in."""
    if options.kv_dtype != "auto":
        return options.kv_dtype
    return "float32" if device_of(options) == "cpu" else "bfloat16"


def memory_of(options: Options) -> int:
    """Bytes for keys and values."""
    if options.memory is not None:
        return options.memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
