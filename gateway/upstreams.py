"""All upstreams of a worker by name, with the settings they were made of; a reload puts others in their place.

Knows: which provider answers for a target, how many requests each may have at once, which replicas a fleet has.
Does not know: how any of them works, routes. Answers under way keep the provider they began with.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from gateway import price_table
from gateway.catalog import Target
from gateway.providers import Provider
from gateway.providers.local import LocalProvider
from gateway.settings import Settings


@runtime_checkable
class Replicated(Protocol):
    """A provider that is several servers."""

    @property
    def generation(self) -> int:
        """Another number whenever the servers are others."""
        ...

    def replicas(self) -> list[str]: ...

    def replica(self, name: str) -> Provider | None: ...


class Room(asyncio.Semaphore):
    """How many requests an upstream may have at once. Whoever finds a place need not await it."""

    def enter(self) -> bool:
        """Take a place where one is free and nobody waits for it; it has to be given back by `release`."""
        if self._value <= 0 or self._waiters:
            return False
        self._value -= 1
        return True


class Upstreams:
    """`prices_read`: a number that changes when prices do."""

    def __init__(
        self, providers: Mapping[str, Provider], settings: Settings, prices_read: Callable[[], int] = lambda: 0
    ) -> None:
        self.prices_read = prices_read
        self.providers: dict[str, Provider] = {}
        self._generation = 0
        self._gates: dict[str, tuple[int, Room]] = {}
        self.put(providers, settings)

    def put(self, providers: Mapping[str, Provider], settings: Settings) -> None:
        """These from now on. Who is at a gate stays there unless its width has changed."""
        fresh = dict(providers)
        self.providers.clear()  # the same dict, so that everyone who holds it sees the new ones
        self.providers.update(fresh)
        self.settings = settings
        self._kinds = {name: found.kind for name, found in settings.providers.items()}
        self._fleets = [provider for provider in providers.values() if isinstance(provider, Replicated)]
        self._generation += 1
        before = self._gates
        self._gates = {}
        for name in providers:
            width = self._most(name)
            held = before.get(name)
            self._gates[name] = held if held is not None and held[0] == width else (width, Room(width))

    @property
    def generation(self) -> int:
        """Another number whenever a route may lead elsewhere."""
        servers = sum(fleet.generation for fleet in self._fleets) if self._fleets else 0
        return (self._generation << 32) + servers

    @property
    def beyond_engines(self) -> bool:
        """Whether anything is configured that is no engine of our own."""
        return not all(isinstance(provider, LocalProvider) for provider in self.providers.values())

    def of(self, target: Target) -> Provider | None:
        """None for what is gone."""
        provider = self.providers.get(target.provider)
        if target.replica and isinstance(provider, Replicated):
            return provider.replica(target.replica)
        return provider

    def spread(self, target: Target) -> list[Target]:
        """One target for each replica of a fleet, itself for everything else."""
        provider = self.providers.get(target.provider)
        if isinstance(provider, Replicated):
            return [Target(target.provider, target.model, name) for name in provider.replicas()] or [target]
        return [target]

    def gate(self, name: str) -> Room:
        return self._gates[name][1]

    def kind(self, name: str) -> str:
        """`local` for bundled engines."""
        return self._kinds.get(name, "local")

    def window(self, target: Target) -> int | None:
        """How many tokens the model reads at most; None where the bundled table does not know it."""
        found = self.settings.providers.get(target.provider)
        kind, base = (found.kind, found.base_url) if found else (None, None)
        return price_table.context_window(target.provider, base, target.model, kind)

    def loaded(self, target: Target) -> int | None:
        """The window of a bundled engine that is running: no answer of it is longer. None for everything else."""
        provider = self.providers.get(target.provider)
        return provider.window(target.model) if isinstance(provider, LocalProvider) else None

    def _most(self, name: str) -> int:
        found = self.settings.providers.get(name)
        return found.max_in_flight if found else self.settings.server.max_in_flight
