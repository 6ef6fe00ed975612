"""Answers that are none: refusals and filtered ones, seen before anything of them has reached the client.

Knows: how far an answer must be looked into to tell. Does not know: who is asked instead.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import cast

from gateway.attempts import Live
from gateway.call import Body, Chunk
from gateway.errors import GatewayError, UpstreamFailed
from gateway.flights import Ended
from gateway.providers import Partial
from policies.money import Usage

_MOST_LOOKED = 64  # chunks without a word in them, at most
Drop = Callable[[Live, Ended, Usage | None], Awaitable[None]]


async def look_over(live: Live, unwanted: Sequence[str], drop: Drop) -> Live:
    """`live`, its first words looked at; raises UpstreamFailed, having let go of it, where it is an unwanted answer.

    Being cancelled on the way, it lets go of it too.
    """
    if not {"refusal", "content_filter"} & set(unwanted):
        return live
    seen = [live.first]
    why = _verdict(live.first, unwanted)
    broken: Exception | None = None
    while why is None and not live.first.final and len(seen) < _MOST_LOOKED:
        try:
            seen.append(await anext(live.rest))
        except asyncio.CancelledError:
            await drop(live, "cancelled", None)
            raise
        except (StopAsyncIteration, Partial, GatewayError) as problem:
            # What it is will be told where it is read: here it only must not be lost.
            broken = None if isinstance(problem, StopAsyncIteration) else problem
            break
        why = _verdict(seen[-1], unwanted)
    if why:
        usage = next((chunk.usage for chunk in reversed(seen) if chunk.usage is not None), None)
        live.step.why = why
        await drop(live, "complete" if live.first.final else "cancelled", usage)
        problem = UpstreamFailed(f"{live.plan.provider} would not answer ({why}).", code=why)
        problem.unwanted = True
        raise problem
    live.rest = after(seen[1:], live.rest, broken)
    return live


def _verdict(chunk: Chunk, unwanted: Sequence[str]) -> str | None:
    """The kind of an unwanted answer; empty once it says something; None while that is open."""
    choices = chunk.data.get("choices")
    rows = [cast("Body", row) for row in cast("list[object]", choices) if isinstance(row, dict)] if choices else []
    if not rows:
        return None
    finish = rows[0].get("finish_reason")
    if finish == "content_filter" and "content_filter" in unwanted:
        return "content_filter"
    said = rows[0].get("message") or rows[0].get("delta")
    said = cast("Body", said) if isinstance(said, dict) else {}
    if said.get("refusal") and "refusal" in unwanted:
        return "refusal"
    if said.get("content") or said.get("tool_calls") or said.get("refusal") or rows[0].get("text") or finish:
        return ""
    return None


async def after(
    seen: Sequence[Chunk], rest: AsyncGenerator[Chunk, None], broken: Exception | None = None
) -> AsyncGenerator[Chunk, None]:
    """What was read already, then the rest; ends by raising `broken` where it broke off."""
    async with aclosing(rest):
        for chunk in seen:
            yield chunk
        if broken is not None:
            raise broken
        async for chunk in rest:
            yield chunk
