"""Identifiers: what RFC 9562 says of them, and that nobody is given one twice."""

import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from gateway.ids import uuid7


def test_an_id_is_a_uuid_of_version_7() -> None:
    """Others read them: a database's own type, a trace's id, whoever sorts by time."""
    made = [uuid7() for _ in range(1_000)]
    parsed = [uuid.UUID(one) for one in made]
    assert [str(one) for one in parsed] == made
    assert {(one.version, one.variant) for one in parsed} == {(7, uuid.RFC_4122)}
    assert all(before.int >> 80 <= after.int >> 80 for before, after in pairwise(parsed))


def test_threads_are_never_given_the_same() -> None:
    """Random parts are drawn ahead for all of them together."""
    with ThreadPoolExecutor(4) as threads:
        made = [one for some in threads.map(lambda _: [uuid7() for _ in range(5_000)], range(4)) for one in some]
    assert len({one[14:] for one in made}) == len(made)


def test_a_forked_child_draws_its_own() -> None:
    """What the parent has drawn ahead would be given out by both."""
    uuid7()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, uuid7().encode())
        os._exit(0)
    os.close(write)
    theirs = os.read(read, 64).decode()
    os.close(read)
    os.waitpid(child, 0)
    ours = {uuid7()[14:] for _ in range(1_000)}
    assert len(theirs) == 36
    assert theirs[14:] not in ours
