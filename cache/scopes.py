"""Every scope's learning, by scope and encoder: read when needed, changed by events, shared through the store.

Knows the policy and which name the store keeps a scope's learning under. Does not know entries or judges.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from cache.folded import Folded
from cache.learning import Counted, Event, Fixed, Scope, ScopeForm, basis_of, learning
from cache.partitions import Key
from cache.store import Store
from policies.reuse import Budget, LearningPolicy, ReusePolicy, Verdict


class Scopes:
    """`most` scopes in memory."""

    def __init__(self, store: Store, policy: ReusePolicy, *, most: int, monotonic: Callable[[], float]) -> None:
        self.policy: LearningPolicy[Any] = learning(policy)
        self.basis = basis_of(self.policy)
        self._counts = not isinstance(self.policy, Fixed)
        self._held = Folded[Scope, Event](store, ScopeForm(self.policy), most=most, monotonic=monotonic)
        self._fresh = ScopeForm(self.policy).fresh()

    async def get(self, key: Key) -> Scope:
        """Raises StoreDown."""
        return await self._held.get(name_of(key))

    def count(self, key: Key, verdict: Verdict, *, served: bool) -> None:
        """Note a verdict in a scope that is in memory; where nothing is kept yet, there is nothing to spend either."""
        name = name_of(key)
        if self._counts and self._held.peek(name) is not None:
            self._held.put(name, Counted(verdict, served))

    async def learn(self, key: Key, event: Event, *, soon: bool) -> Scope:
        """Raises StoreDown when the scope cannot be read."""
        return await self._held.add(name_of(key), event, soon=soon)

    def headroom(self, scope: Scope, budget: Budget) -> dict[str, float]:
        """How the scope stands, for people."""
        brief: Callable[[Any, Budget], dict[str, float]] | None = getattr(self.policy, "brief", None)
        return {} if brief is None else brief(scope.state, budget)

    async def flush(self) -> None:
        await self._held.flush()

    async def close(self) -> None:
        await self._held.close()


def name_of(key: Key) -> bytes:
    """Under which the store keeps a scope's learning."""
    return b"l:" + hashlib.blake2b(key[0] + b"\0" + key[1].encode(), digest_size=32).digest()
