"""Keys and values of a prompt on their way from one engine process to another on the same machine.

Knows: a core's pool and cache, anonymous memory. Does not know: requests, who asks, sockets.

The blocks lie in a memory file that only this process names and that ends with it: nothing is left behind by a crash.
The taker reads it through `/proc` (Linux, the same user). What it takes becomes ordinary cached blocks:
a request finds them as a prefix hit, and whatever was evicted meanwhile is computed again.
"""

import logging
import os
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from engine.blocks import BLOCK, link, root
from engine.core import EngineCore

_log = logging.getLogger(__name__)
_MOST_TOKENS = 2**32
_OURS = re.compile(r"/proc/\d+/fd/\d+")


class Held:
    """Blocks that are held out to others. `path` can be opened by processes of the same user until `close`.

    None where there is no room for them: the taker computes them itself.
    """

    def __init__(self, core: EngineCore, tokens: Sequence[int], salt: str) -> None:
        self.blocks, self.path, self._file = 0, "", -1
        found = core.pool.match(hashes(tokens, salt))
        if not found:
            return
        slots = _slots(found)
        try:
            self._file = os.memfd_create("kv")
            for tensor in core.cache.tensors():
                _write(self._file, _octets(tensor).index_select(1, slots.to(tensor.device)).cpu())
        except OSError as error:
            _log.warning("%d blocks cannot be held out: %s", len(found), error)
            self.close()
        else:
            self.blocks, self.path = len(found), f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def take(core: EngineCore, tokens: Sequence[int], salt: str, path: str) -> int:
    """Make what lies at `path` cached blocks of this core. How many; 0 when it is not what is expected there."""
    wanted = hashes(tokens, salt)
    already = len(core.pool.match(wanted))
    each = sum(_bytes_per_block(tensor) for tensor in core.cache.tensors())
    if not _OURS.fullmatch(path):
        return 0
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123  (no path on a disk)
            count, rest = divmod(os.fstat(file.fileno()).st_size, each)
            if rest or count > len(wanted):
                return 0
            read = [_read(file.fileno(), tensor, count) for tensor in core.cache.tensors()]
    except (OSError, ValueError):  # its process ended, or it is something else
        return 0
    if count <= already:
        return already
    room = min(count - already, core.pool.available)
    blocks = core.pool.take(room)
    slots = _slots(blocks)
    for tensor, values in zip(core.cache.tensors(), read, strict=True):
        part = values[:, already * BLOCK : (already + room) * BLOCK]
        _octets(tensor).index_copy_(1, slots.to(tensor.device), _octets(part).to(tensor.device))
    for block, digest in zip(blocks, wanted[already:], strict=False):
        core.pool.publish(block, digest)
    core.pool.give_back(blocks)
    return already + room


def hashes(tokens: Sequence[int], salt: str) -> list[bytes]:
    """Of the full blocks of a prompt but its last token, which is always computed where the answer is."""
    found: list[bytes] = []
    if tokens and not 0 <= min(tokens) <= max(tokens) < _MOST_TOKENS:
        return found  # no prompt was ever computed of these
    previous = root(salt)
    for at in range((len(tokens) - 1) // BLOCK):
        previous = link(previous, tokens[at * BLOCK : (at + 1) * BLOCK])
        found.append(previous)
    return found


def _slots(blocks: Sequence[int]) -> Tensor:
    return (torch.tensor(blocks, dtype=torch.int64)[:, None] * BLOCK + torch.arange(BLOCK)).flatten()


def _octets(tensor: Tensor) -> Tensor:
    """The same memory as bytes: torch moves no rows of fp8 on a processor."""
    return tensor.view(torch.uint8)


def _bytes_per_block(tensor: Tensor) -> int:
    return tensor[:, :BLOCK].numel() * tensor.element_size()


def _view(values: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the processor."""
    array = values.view(torch.uint8).flatten().numpy()
    return memoryview(array)  # pyright: ignore[reportArgumentType] - arrays are buffers, which Python 3.11 cannot say


def _write(file: int, values: Tensor) -> None:
    left = _view(values.contiguous())
    while left:
        left = left[os.write(file, left) :]


def _read(file: int, like: Tensor, blocks: int) -> Tensor:
    """Values of `blocks` blocks in the shape of `like`. Raises ValueError when the file is too short."""
    shape = [like.shape[0], blocks * BLOCK, *like.shape[2:]]
    values = torch.empty(shape, dtype=like.dtype)
    left = _view(values)
    while left:
        got = os.readv(file, [left])
        if not got:
            raise ValueError("cut off")
        left = left[got:]
    return values
