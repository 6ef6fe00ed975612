"""Several gateways of one installation on one Redis, in one event loop, each with an upstream of its own to count at.

They share the secret, so that a request means the same to all of them, and nothing else.
"""

import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cache.semantic import SemanticCache
from cache.store.redis import RedisStore
from gateway.metrics import Metrics
from tests.live import Live, live, settings
from tests.waiting import until


class Gateways(list[Live]):
    """What is counted over all of them."""

    @property
    def calls(self) -> int:
        """How often an upstream was asked."""
        return sum(upstream(gateway).calls for gateway in self)

    async def rows(self) -> list[dict[str, Any]]:
        return [row for gateway in self for row in await gateway.rows()]

    def waits(self) -> dict[str, int]:
        """How waits for another worker's answer have ended."""
        found: dict[str, int] = {}
        for gateway in self:
            telemetry = gateway.services.telemetry
            assert telemetry is not None
            metrics: Metrics = telemetry._metrics
            for sample in next(iter(metrics.waits.collect())).samples:
                if sample.name.endswith("_total"):
                    result = sample.labels["result"]
                    found[result] = found.get(result, 0) + int(sample.value)
        return found


def upstream(gateway: Live) -> Any:
    return gateway.services.providers["up"]


def behave(gateway: Live, **config: Any) -> None:
    """What its upstream does from now on."""
    up = upstream(gateway)
    up._config = up._config.__class__(**config)


def cache_of(gateway: Live) -> SemanticCache:
    found = gateway.services.cache
    assert found is not None
    return found


@asynccontextmanager
async def gateways(
    home: Path, redis_url: str, *upstreams: dict[str, Any], more: dict[str, Any] | None = None, **cache: Any
) -> AsyncGenerator[Gateways]:
    """One for each upstream, which behaves as it says; all of them follow Redis's changes. `more`: settings of all."""
    secret = f"{uuid.uuid4().hex}{uuid.uuid4().hex}"
    async with AsyncExitStack() as stack:
        found = Gateways()
        for number, config in enumerate(upstreams):
            chosen = settings(
                home / str(number),
                upstream=config,
                secret=secret,
                redis=redis_url,
                cache={"store": "redis", "mode": "exact", **cache},
                **(more or {}),
            )
            gateway = await stack.enter_async_context(live(chosen))
            upstream(gateway).billing = "stops-on-close"  # a test that is over waits for no answer
            found.append(gateway)
        for gateway in found:
            store = cache_of(gateway)._store
            assert isinstance(store, RedisStore)
            # How fast this machine is just now is not what is tested here.
            store._link.fast, store._link.lookup = store._link.slow, 10.0
            await until(lambda store=store: store._follower._last is not None)
        yield found
