"""A model that may sleep between requests.

Knows: how to make a core, what to drop. Does not know: sockets, clients, who decides but the idle timer.

Level 1 drops keys and values and keeps the weights: waking takes milliseconds and every prefix is forgotten. Level 2
drops the weights too: waking reads the checkpoint again. It must be the same one: whoever asks has its tokenizer, its
window and its name, and learns of another's when a process starts.
"""

import ctypes
import gc
import logging
from collections.abc import Callable
from typing import Literal

from engine.api import EngineFailed, ModelInfo
from engine.core import EngineCore
from engine.launch import Loaded, build, load
from engine.locate import standing
from engine.options import Options

_log = logging.getLogger(__name__)

Level = Literal[0, 1, 2]


class Resident:
    """Loads at once. `idle_s`: sleep after so long without work (None: never), to `level`. Raises EngineError."""

    def __init__(
        self,
        model: str,
        options: Options,
        *,
        monotonic: Callable[[], float],
        idle_s: float | None = None,
        level: Literal[1, 2] = 1,
    ) -> None:
        self._model = model
        self._options = options
        self._monotonic = monotonic
        self._idle_s = idle_s
        self._level: Literal[1, 2] = level
        self._files = standing(model)
        self._loaded: Loaded | None = load(model, options, monotonic=monotonic)
        self.core: EngineCore | None = build(self._loaded, options, monotonic=monotonic, warm=True)
        self.info: ModelInfo = self.core.info()
        self.sleeping: Level = 0
        self.wake_ms = 0.0
        self._worked = monotonic()

    @property
    def busy(self) -> bool:
        return self.core is not None and self.core.busy

    def check(self) -> None:
        """Raises EngineFailed when a process that holds a share of the weights is gone."""
        if self._loaded is not None:
            self._loaded.check()

    def rest(self, level: Literal[1, 2]) -> bool:
        """Drop what `level` says. False while requests run: then nothing happens. Raises EngineFailed."""
        if self.busy:
            return False
        if level > self.sleeping:
            self.core = None
            if level > 1 and self._loaded is not None:
                self._loaded.close()
                self._loaded = None
            elif self._loaded is not None:
                self._loaded.forget()
            self.sleeping = level
            _give_back()
            _log.info("%s sleeps (level %d)", self._model, level)
        return True

    def rest_if_idle(self) -> bool:
        """Call between steps. Whether it fell asleep now."""
        now = self._monotonic()
        if self.busy:
            self._worked = now
        elif self._idle_s is not None and not self.sleeping and now - self._worked >= self._idle_s:
            return self.rest(self._level)
        return False

    def wake(self) -> EngineCore:
        """The core, ready to step; made again if need be. Raises EngineError when the checkpoint is gone or another."""
        self._worked = began = self._monotonic()
        if self.core is None:
            if self._loaded is None:
                if standing(self._model) != self._files:
                    raise EngineFailed("its files were exchanged while it slept: a new process has to read them")
                self._loaded = load(self._model, self._options, monotonic=self._monotonic)
            self.core = build(self._loaded, self._options, monotonic=self._monotonic, warm=False)
            self.sleeping = 0
            self._worked = self._monotonic()
            self.wake_ms = (self._worked - began) * 1000
            _log.info("%s is awake after %.0f ms", self._model, self.wake_ms)
        return self.core


def _give_back() -> None:
    """Return freed memory to the system: what is only free within this process helps nobody else."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
