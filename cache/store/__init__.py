"""Where entries live. A store is the truth: what it does not give back, nobody serves.

Knows the protocol every store obeys and how to find one by name (a file in this folder).
Does not know vectors' meaning, policies, or who may read what: it is asked by digest only.
"""

from collections.abc import AsyncGenerator, Callable, Container, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct

from cache.types import Entry, Group


class StoreDown(Exception):
    """The store cannot answer now. The message says why in a few words and carries no content."""


class VectorRow(NamedTuple):
    """What an index needs of an entry. `vector` as packed by `cache.vectors`; `expires` in seconds since the epoch."""

    entry_id: int
    exact: bytes
    expires: float
    vector: bytes


class Change(NamedTuple):
    """Something happened to an entry, here or in another process. `reset`: too much did; forget all you remember."""

    kind: Literal["add", "drop", "reset"]
    scope: bytes = b""
    encoder: str = ""
    row: VectorRow = VectorRow(0, b"", 0.0, b"")


class Stored(NamedTuple):
    """A small value, and how often it was written: `put_state` takes the number to see that nobody else did since."""

    version: int
    blob: bytes


class Claimed(NamedTuple):
    """What a look-up found that also asked to be the one who makes the answer.

    `holder`: the token of whoever does, one's own where nobody did; empty where nobody is to be waited for.
    `begun`: for how many seconds the holder's answer has been coming; None while it has not begun.
    """

    entry: Entry | None
    holder: bytes = b""
    begun: float | None = None


class Leasing(Protocol):
    """Who makes the answer to a digest, among processes that share a store. Every coroutine may raise StoreDown.

    A lease that is not renewed ends after `life` seconds; it also ends when an entry is kept under its digest. A token
    has 16 bytes, of which no two leases have the same.
    """

    life: float

    @property
    def is_down(self) -> bool:
        """Whether nothing is sent for now."""
        ...

    async def claim(self, exact: bytes, token: bytes) -> Claimed:
        """The entry, as `Store.get`, in one round trip with taking the lease where there is neither entry nor lease."""
        ...

    async def begin(self, exact: bytes, token: bytes, ago: float) -> None:
        """Tell others that the first token of the answer came `ago` seconds before."""
        ...

    async def renew(self, held: Sequence[tuple[bytes, bytes]]) -> None:
        """Hold leases, by digest and token, for another life; those that were lost stay lost."""
        ...

    async def release(self, held: Sequence[tuple[bytes, bytes, bool]]) -> None:
        """Give leases back that are still held. True beside one: its answer is whole and not kept, so that waiting for
        the next one would be in vain too."""
        ...


class Selection(Struct, frozen=True, kw_only=True):
    """Entries to look at or to purge: all that match every field given; `contains` is looked for in the prompt,
    ignoring case.
    """

    team: str | None = None
    project: str | None = None
    model: str | None = None
    contains: str | None = None

    @property
    def is_all(self) -> bool:
        return self.team is self.project is self.model is self.contains is None

    def takes(self, entry: Entry) -> bool:
        return self.takes_group(Group(entry.team, entry.project, entry.model)) and (
            self.contains is None or self.contains.casefold() in entry.text.casefold()
        )

    def takes_group(self, group: Group) -> bool:
        """Whether an entry of this group is meant, as far as its text allows."""
        return (
            self.team in {None, group.team}
            and self.project in {None, group.project}
            and self.model in {None, group.model}
        )


ANYTHING = Selection()


class Store(Protocol):
    """Entries by exact digest. Every coroutine may raise StoreDown.

    Expired entries may still be returned: the caller's clock decides. Entries read back carry no vector.
    """

    async def start(self, listen: Callable[[Change], None]) -> None:
        """Open, and tell `listen` (on the event loop, in order) of every change from now on, one's own included."""
        ...

    async def get(self, exact: bytes) -> Entry | None: ...

    async def get_many(self, exacts: Sequence[bytes]) -> list[Entry | None]:
        """One round trip; the answer has the order and length of `exacts`."""
        ...

    async def put(self, entry: Entry) -> None:
        """Keep `entry` in place of any other with its exact digest, letting others go when the store is full."""
        ...

    def put_soon(self, entry: Entry) -> bool:
        """The same without waiting: readers get it from now on, it is written within moments, together with others.

        False where that cannot be done now: then `put` it. What a broken store loses afterwards is only a miss.
        """
        ...

    async def put_key(self, entry: Entry, beside: bytes, most: int) -> bool:
        """Keep `entry` as one more key of the answer held under the digest `beside`, in place of what is under its own.

        Where the answer has `most` keys already, the one used least lately goes; never the answer's own, nor `beside`.
        False, and nothing is kept, when that answer is not there any more or none of its keys may go.
        """
        ...

    async def drop_key(self, exact: bytes, entry_id: int) -> bool:
        """Remove this entry and no other key of its answer. False when another, or none, is under that digest."""
        ...

    async def drop(self, entry_id: int) -> Entry | None:
        """Remove and return an entry, with every other key of its answer (known by any of them, or by the answer's id).

        When this returns, no reader of the store can get that answer any more.
        """
        ...

    async def states(self, names: Sequence[bytes]) -> list[Stored | None]:
        """Small values by name, in the order asked for. They outlive entries, and go when not written for long."""
        ...

    async def put_state(self, name: bytes, blob: bytes, *, seen: int) -> bool:
        """Write a value whose version is still `seen` (0: there is none). False when another was faster."""
        ...

    @property
    def leasing(self) -> Leasing | None:
        """None where nobody else is to be waited for."""
        ...

    @property
    def shared(self) -> bool:
        """Whether other processes write to it too, so that what was read may be out of date."""
        ...

    async def vectors(self, scope: bytes, encoder: str) -> list[VectorRow]:
        """All vectors of a scope made by `encoder`."""
        ...

    def pages(self, scope: bytes, encoder: str, *, known: Container[int] = ()) -> AsyncGenerator[list[VectorRow], None]:
        """The same a page at a time, so that nothing stands still for a large scope.

        Rows whose id is in `known` may come without their vector. What changes meanwhile may or may not be seen.
        """
        ...

    def position(self) -> str:
        """A place in the stream of changes to remember: all before it has been told."""
        ...

    async def since(self, position: str) -> list[Change] | None:
        """What has changed after `position`, in order. None where that cannot be told: then compare with `pages`."""
        ...

    async def purge(self, selection: Selection) -> int:
        """Take out what is selected; how many. An empty selection takes all, in the same short time however many. What
        is selected by words goes with all other keys of the same answer.

        When this returns, no reader of the store gets any of it.
        """
        ...

    async def recent(self, limit: int, selection: Selection = ANYTHING) -> list[Entry]:
        """Of the selected entries, wherever they stand among all, those created last; newest first."""
        ...

    async def counts(self) -> dict[Group, int]:
        """Entries that may still be served, by tenant and model."""
        ...

    def touch(self, exact: bytes) -> None:
        """Note that an entry was used; plain and cheap, written later with others."""
        ...

    def in_touch(self) -> bool:
        """Whether what others take back is heard of: where it is not, nothing may be served without asking here."""
        ...

    def status(self) -> str | None:
        """None when it answers, else why not, in a few words."""
        ...

    async def close(self) -> None: ...


def known() -> list[str]:
    return sorted(module.name for module in iter_modules(__path__))


def load(kind: str) -> ModuleType:
    """The module of a store kind. Raises LookupError naming the known ones."""
    if kind not in known():
        raise LookupError(f"Unknown store {kind!r}. Known: {', '.join(known())}.")
    return import_module(f"{__name__}.{kind}")
