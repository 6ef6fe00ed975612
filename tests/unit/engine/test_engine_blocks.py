"""The block pool: nothing lost, nothing shared that should not be."""

import random

import pytest

from engine.blocks import BLOCK, BlockPool, blocks_for, link, root


def chain(salt: str, tokens: list[int]) -> list[bytes]:
    hashes: list[bytes] = []
    for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
        hashes.append(link(hashes[-1] if hashes else root(salt), tokens[at : at + BLOCK]))
    return hashes


def test_blocks_for_rounds_up() -> None:
    """One token too many needs one block more."""
    assert [blocks_for(n) for n in (0, 1, BLOCK, BLOCK + 1)] == [0, 1, 1, 2]


def test_hash_covers_salt_and_everything_before() -> None:
    """Equal tokens after different beginnings, or for different tenants, are different contents."""
    first, second = list(range(BLOCK)), list(range(BLOCK, 2 * BLOCK))
    one = chain("a", first + second)
    assert one == chain("a", first + second)
    assert one[1] != chain("a", second + second)[1]
    assert not set(one) & set(chain("b", first + second))


def test_a_freed_block_is_found_until_it_is_taken_again() -> None:
    """Free and cached are one: what was computed stays useful for nothing, until the room is needed."""
    pool = BlockPool(2)
    [digest] = chain("", list(range(BLOCK)))
    [block] = pool.take(1)
    pool.publish(block, digest)
    pool.give_back([block])
    assert pool.available == 2
    assert pool.match([digest]) == [block]
    pool.share([block])
    assert pool.available == 1
    pool.give_back([block])
    pool.take(2)
    assert pool.match([digest]) == []
    assert pool.evicted == 1


def test_worthless_blocks_go_first_and_prefixes_last() -> None:
    """Evicting the beginning of a prefix would make its rest unreachable, and cached beats empty."""
    pool = BlockPool(4)
    hashes = chain("", list(range(3 * BLOCK)))
    blocks = pool.take(4)
    for block, digest in zip(blocks, hashes, strict=False):
        pool.publish(block, digest)
    pool.give_back(blocks)
    assert pool.take(1) == [blocks[3]]
    assert pool.take(1) == [blocks[2]]
    assert pool.match(hashes) == blocks[:2]


def test_check_notices_a_lost_block() -> None:
    """The self-check would be worth nothing if it could not fail."""
    pool = BlockPool(3)
    blocks = pool.take(2)
    pool.check([blocks])
    with pytest.raises(AssertionError):
        pool.check([blocks[:1]])


@pytest.mark.parametrize("seed", range(5))
def test_random_use_keeps_the_books(seed: int) -> None:
    """Any order of taking, sharing, publishing and giving back leaves every block accounted for."""
    rng = random.Random(seed)
    pool, held = BlockPool(12), list[list[int]]()
    for _ in range(400):
        tokens = [rng.randrange(2) for _ in range(3 * BLOCK)]
        found = pool.match(chain(str(rng.randrange(2)), tokens))
        if found and rng.random() < 0.5 and pool.idle(found) <= pool.available:
            pool.share(found)
            held.append(found)
        elif pool.available and rng.random() < 0.6:
            blocks = pool.take(rng.randint(1, pool.available))
            for block, digest in zip(blocks, chain("0", tokens), strict=False):
                pool.publish(block, digest)
            held.append(blocks)
        elif held:
            pool.give_back(held.pop(rng.randrange(len(held))))
        pool.check(held)
