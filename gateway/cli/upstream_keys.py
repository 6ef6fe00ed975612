"""Whether upstreams take the keys they are asked with: each is asked for its list of models, which costs nothing.

Knows: one question for each key of each server, all at once; which models routes want that a list has not. Does not
know: whether a key may ask each of those models, or has money left.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from gateway.cli.finding import Finding
from gateway.errors import GatewayError
from gateway.fleet import Fleet
from gateway.key_pool import KeyPool
from gateway.parts import build_upstream
from gateway.providers import Provider
from gateway.settings import Settings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.transport.proxies import of_environment

_NAMED = 5  # models that are missing, before they are only counted
_MEND = "correct its api_key or address under `providers:`; nearhit config show says where each comes from"


@runtime_checkable
class Listing(Protocol):
    """An upstream that can say which models it has."""

    async def listing(self) -> list[str] | None: ...


class Told(NamedTuple):
    """What one upstream, or one key or server of it, has said. `words` never hold the key."""

    name: str
    good: bool
    words: str


def findings(settings: Settings) -> list[Finding]:
    """For `nearhit doctor`."""
    try:
        told = asyncio.run(ask(settings))
    except ValueError:  # what cannot be built is told by the check of the configuration
        return []
    return [Finding(f"key of {one.name}", one.good, one.words, "" if one.good else _MEND) for one in told]


async def ask(settings: Settings) -> list[Told]:
    """One answer for each key of each server, in the order of the configuration."""
    tasks, transport = Tasks(), DirectTransport(proxies=of_environment())
    built: list[Provider] = []
    try:
        asked: list[tuple[str, str, Provider]] = []
        for name, chosen in settings.providers.items():
            provider = build_upstream(name, chosen, transport, tasks)
            built.append(provider)
            if isinstance(provider, Fleet):
                await provider.refresh()
            asked += [(name, label, one) for label, one in _each(name, provider)]
        return list(await asyncio.gather(*(_answer(label, one, _wanted(settings, name)) for name, label, one in asked)))
    finally:
        for provider in built:
            await provider.close()
        await transport.close()
        await tasks.finish(1.0)


def _each(label: str, provider: Provider) -> Iterator[tuple[str, Provider]]:
    """Everything that is asked with a key of its own."""
    if isinstance(provider, Fleet):
        for at in provider.replicas():
            member = provider.replica(at)
            if member is not None:
                yield from _each(f"{label} at {at}", member)
    elif isinstance(provider, KeyPool):
        for key, member in provider.members():
            yield f"{label}, {key}", member
    else:
        yield label, provider


def _wanted(settings: Settings, name: str) -> list[str]:
    """Models of that upstream that routes lead to."""
    places = (entry.to.partition("/") for chosen in settings.models.values() for entry in chosen.route)
    return sorted({model for provider, _, model in places if provider == name})


async def _answer(label: str, provider: Provider, wanted: list[str]) -> Told:
    began = time.perf_counter()
    try:
        found = await provider.listing() if isinstance(provider, Listing) else None
    except GatewayError as error:
        return Told(label, good=False, words=error.message)
    if found is None:
        return Told(label, good=True, words="lists no models, so it was not asked")
    took = (time.perf_counter() - began) * 1e3
    lacking = [model for model in wanted if model not in found] if found else []
    words = f"takes its key, {len(found)} models, {took:.0f} ms"
    if lacking:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        words += f"; not among them: {', '.join(lacking[:_NAMED])}{more}"
    return Told(label, good=True, words=words)
