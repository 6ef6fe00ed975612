"""Who owns which block of the key/value cache, and which blocks already hold a wanted prefix.

Knows: block numbers, reference counts, chained hashes of token ids. Does not know: tensors, requests, scheduling.

A free block keeps its contents until it is handed out again, so "free" also means "may be evicted". Only full blocks
are shared. A block's hash covers all tokens before it and begins with the tenant's salt: tenants never share, and so
cannot time each other's prompts.
"""

import struct
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256

BLOCK = 16
_PACK = struct.Struct(f"<{BLOCK}I")


def root(salt: str) -> bytes:
    """The hash before a tenant's first block."""
    return sha256(b"nearhit-prefix\0" + salt.encode()).digest()


def link(previous: bytes, tokens: Sequence[int]) -> bytes:
    """The hash of a full block after `previous`; `tokens` are its 16 ids."""
    return sha256(previous + _PACK.pack(*tokens)).digest()


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK)


class BlockPool:
    """`count` usable blocks numbered from 1; block 0 takes the writes of padding rows and belongs to nobody."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._references = [0] * (count + 1)
        self._free = OrderedDict.fromkeys(range(1, count + 1))  # least recently freed first
        self._by_hash: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self.queried = 0
        self.hit = 0
        self.evicted = 0

    @property
    def available(self) -> int:
        return len(self._free)

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The longest run of blocks that hold these hashes, from the first on. Takes nothing."""
        found: list[int] = []
        for digest in hashes:
            block = self._by_hash.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    def idle(self, blocks: Sequence[int]) -> int:
        """How many of these nobody uses now: sharing them takes that many from `available`."""
        return sum(self._references[block] == 0 for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def take(self, count: int) -> list[int]:
        """`count` blocks with contents of no value. Ask `available` first."""
        taken: list[int] = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            digest = self._hash_of.pop(block, None)
            if digest is not None:
                del self._by_hash[digest]
                self.evicted += 1
            self._references[block] = 1
            taken.append(block)
        return taken

    def give_back(self, blocks: Sequence[int]) -> None:
        """Tail first, so that a prefix outlives what followed it. Blocks without a hash are reused first."""
        for block in reversed(blocks):
            self._references[block] -= 1
            assert self._references[block] >= 0
            if self._references[block] == 0:
                self._free[block] = None
                if block not in self._hash_of:
                    self._free.move_to_end(block, last=False)

    def publish(self, block: int, digest: bytes) -> None:
        """This full block now holds that prefix. The first block to hold it stays the one others find."""
        if block not in self._hash_of and digest not in self._by_hash:
            self._hash_of[block] = digest
            self._by_hash[digest] = block

    def forget(self, blocks: Sequence[int]) -> None:
        """What these hold must not be found any more."""
        for block in blocks:
            digest = self._hash_of.pop(block, None)
            if digest is not None:
                del self._by_hash[digest]

    def check(self, held: Sequence[Sequence[int]]) -> None:
        """Assert that exactly the blocks in `held` (one list per holder) are in use and nothing is counted twice."""
        expected = [0] * (self.count + 1)
        for blocks in held:
            for block in blocks:
                expected[block] += 1
        assert expected == self._references, "references do not match the holders"
        assert all((block in self._free) == (expected[block] == 0) for block in range(1, self.count + 1))
        assert {digest: block for block, digest in self._hash_of.items()} == self._by_hash
