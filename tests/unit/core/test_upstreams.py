"""How many requests an upstream has at once."""

import asyncio

from gateway.upstreams import Room


async def test_who_comes_while_others_wait_does_not_go_before_them() -> None:
    """A place that is taken without waiting must not be one that somebody who waits has been given."""
    room = Room(1)
    assert room.enter()
    assert not room.enter()
    waiting = asyncio.get_running_loop().create_task(room.acquire())
    await asyncio.sleep(0)
    room.release()
    assert not room.enter()
    assert await waiting
    room.release()
    assert room.enter()
