"""Checks of servers as places: what they list, their load, who leaves, prefixes, one of two that is away.

Knows: the metrics' names of `gateway.fleet_load`. Does not know: what an answer says.
"""

import asyncio

from gateway.fleet_load import NAMES
from tests.servers.place import Check, NotThere, Place, holds, same, within

_WROTE = {
    "vllm": "vllm:generation_tokens_total",
    "prefill_decode": "vllm:generation_tokens_total",
    "dynamo": "dynamo_frontend_output_tokens_total",
    "llamacpp": "llamacpp:tokens_predicted_total",
}
TALE = "Tell me everything about the cache, the ledger and the engine, one after the other, at length."


async def listed(place: Place) -> str:
    found = await place.gateway.services.providers["up"].models()
    holds(place.model in found, f"{place.model} is not among {found}")
    return ", ".join(found)


async def _running(place: Place) -> float:
    waiting, running, _ = NAMES[place.kind if place.kind in NAMES else "vllm"]
    found = await asyncio.gather(
        *(place.metric(name, at) for name in (waiting, running) if name for at in range(len(place.urls)))
    )
    return sum(found)


async def left(place: Place) -> str:
    """A client that leaves in the midst of a stream: the server stops, and what was written is charged."""
    before = await _written(place)
    stream = await place.chat(TALE, stream=True, max_tokens=1_500, extra_body={"ignore_eos": True})
    seen = 0
    async for _ in stream:
        seen += 1
        if seen == 12:
            break
    await stream.close()
    told = place.kind in NAMES or place.kind == "prefill_decode"
    took = await within(10, lambda: _idle(place), "no request runs there") if told else 0.0
    await within(10, lambda: _booked(place), "a line in the ledger")
    entry = await place.last()
    wrote = (await _written(place)) - before
    holds(wrote < 1_000, f"it wrote {wrote:g} tokens for nobody")
    if not told:
        raise NotThere(f"its load is not told; {entry['completion']} tokens charged")
    holds(wrote <= entry["completion"] < 1_000, f"charged {entry['completion']} of {wrote:g} tokens")
    return f"idle after {took:.1f} s; {wrote:g} tokens written, {entry['completion']} charged ({entry['source']})"


async def _written(place: Place) -> float:
    name = _WROTE.get(place.kind)
    return await place.metric(name, -1) if name else 0.0


async def _idle(place: Place) -> bool:
    return await _running(place) == 0


async def _booked(place: Place) -> bool:
    entries = await place.gateway.entries()
    return bool(entries) and entries[-1]["completion"] != 0


async def loaded(place: Place) -> str:
    """What is read of a queue: 20 requests at once."""
    if place.kind not in NAMES:
        raise NotThere("its load is not read")
    deployments = place.gateway.services.deployments
    holds(deployments is not None, "no register of places")
    most = (0.0, 0.0, 0.0)

    def told() -> tuple[float, float, float]:
        found = [one.load for one in deployments or () if one.target.model == place.model]
        sums = (sum(one.running for one in found), sum(one.waiting for one in found))
        return (*sums, max((one.kv_used for one in found), default=0.0))

    more = {"max_tokens": 1_200, "extra_body": {"ignore_eos": True}}
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(place.chat(f"{number}: {TALE}", **more)) for number in range(20)]
        while not all(task.done() for task in asked):
            most = max(most, told(), key=lambda one: one[0] + one[1])
            await asyncio.sleep(0.05)
    holds(most[0] + most[1] >= 19, f"at most {most[0]:g} run and {most[1]:g} wait were told of 20")

    async def quiet() -> bool:
        return told()[:2] == (0.0, 0.0)

    await within(5, quiet, "nothing runs or waits")
    return f"{most[0]:g} run, {most[1]:g} wait, {most[2]:.1%} of the KV cache"


async def affine(place: Place) -> str:
    """Conversations stay with the server that has read them, and their prompts are read from its cache."""
    if len(place.urls) < 2 or place.kind == "prefill_decode":
        raise NotThere("a fleet takes two servers")
    before = [await _answered(place, at) for at in range(len(place.urls))]
    books = [f"The book of number {number}. {TALE} " * 6 for number in range(8)]
    prompts = cached = 0
    for turn in range(3):
        told = await asyncio.gather(*(place.chat(book, model="m2", max_tokens=40) for book in books))
        if turn:
            details = [one.usage.prompt_tokens_details for one in told]
            cached += sum((one.cached_tokens if one else 0) or 0 for one in details)
            prompts += sum(one.usage.prompt_tokens for one in told)
    counts = [await _answered(place, at) - count for at, count in enumerate(before)]
    same("answered", sum(counts), 24.0)
    if not cached:
        raise NotThere("it tells no cached tokens")
    holds(cached > prompts / 2, f"{cached} of {prompts} prompt tokens were read again from a cache")
    return f"{' and '.join(f'{count:g}' for count in counts)} answers; {cached / prompts:.0%} of prompts from the cache"


async def _answered(place: Place, at: int) -> float:
    return await place.metric("vllm:request_success_total", at)


CHECKS: dict[str, Check] = {
    "models": listed,
    "a client that leaves": left,
    "load": loaded,
    "prefix affinity": affine,
}
