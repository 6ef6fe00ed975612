"""Requests that came before, byte for byte: what was read from them need not be read again.

An exact hit is such a repeat nearly always, and reading it (JSON, checks, digests) costs more than finding its answer.
Remembered is only what follows from the bytes and the key: identity, budgets, where the model's name leads and the kept
answer itself are looked at anew each time. Bounded. Does not know: what is served.
"""

from collections import OrderedDict

from msgspec import Struct

from cache.types import Query
from gateway.call import Body

_MOST = 512
_LONGEST = 8_192  # bytes of a request; longer ones are rarely repeated and would fill the memory
Key = tuple[str, str, bytes]  # operation, key id, body


class Repeat(Struct, frozen=True, kw_only=True):
    """What was read from a request without directives of its own, and what it asks of the cache."""

    body: Body
    model: str
    stream: bool
    include_usage: bool
    query: Query


class Repeats:
    """The requests answered from the cache last."""

    def __init__(self) -> None:
        self._known: OrderedDict[Key, Repeat] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Key) -> Repeat | None:
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
        return found

    def keep(self, key: Key, repeat: Repeat) -> None:
        if len(key[2]) <= _LONGEST:
            self._known[key] = repeat
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
