"""What servers say of themselves: their load, from metrics of vLLM and its like, and whether a bundled engine is back.

Read every second while they are asked. Knows: the names of the three figures at each of them, what is done when a
server does not answer. Does not know: how the figures are weighed (`policies.routing`), who the servers are
(`gateway.fleet`).
"""

import asyncio
import re
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import structlog

from gateway.deployments import Deployments, Load
from gateway.fleet import Fleet
from gateway.transport import Transport, TransportError
from gateway.upstreams import Upstreams

log = structlog.get_logger("nearhit.upstream")

# Waiting, running, the share of the KV cache in use: the names of llm-d's extractor and of each engine.
NAMES = {
    "vllm": ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"),
    "sglang": ("sglang:num_queue_reqs", "sglang:num_running_reqs", "sglang:token_usage"),
    # Where it was started with --metrics; how full its cache is it does not tell.
    "llamacpp": ("llamacpp:requests_deferred", "llamacpp:requests_processing", ""),
    # Its frontend speaks for all of its workers: those without a first token yet, and all of them with those.
    "dynamo": ("dynamo_frontend_queued_requests", "dynamo_frontend_inflight_requests", ""),
}
_ALL_COUNTED = ("dynamo",)  # what waits is among what runs
_LARGEST = 2 << 20
_TIMEOUT = 1.0
_AT_ONCE = 16
_MOST = 1e9  # requests, more than any server has
_LINE = re.compile(rb"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^}\n]*\})?[ \t]+([0-9.eE+-]+)", re.MULTILINE)
_IDLE = Load(running=0.0, waiting=0.0)


def load_of(kind: str, metrics: bytes) -> Load | None:
    """The load in a Prometheus exposition, ranks of one server added up; None where it tells none that can be."""
    waiting, running, used = (name.encode() for name in NAMES[kind])
    sums: dict[bytes, float] = {}
    for name, written in _LINE.findall(metrics):
        if name not in (waiting, running, used):
            continue
        value = _amount(written)
        if value is None:
            return None
        sums[name] = min(1.0, max(sums.get(name, 0.0), value)) if name == used else sums.get(name, 0.0) + value
    if running not in sums:
        return None
    queued = sums.get(waiting, 0.0)
    running_now = max(0.0, sums[running] - queued) if kind in _ALL_COUNTED else sums[running]
    return Load(running=running_now, waiting=queued, kv_used=sums.get(used, 0.0))


def _amount(written: bytes) -> float | None:
    """None for what is no number, or none that a load can have: it would draw every request, or none for ever."""
    try:
        value = float(written)
    except ValueError:
        return None
    return value if 0 <= value <= _MOST else None


class LoadWatch:
    """One per worker. `every`: seconds between two readings of the same server; `monotonic`: that of `deployments`."""

    def __init__(
        self,
        upstreams: Upstreams,
        deployments: Deployments,
        transport: Transport,
        *,
        every: float = 1.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upstreams = upstreams
        self._deployments = deployments
        self._transport = transport
        self._every = every
        self._monotonic = monotonic
        self._silent: set[str] = set()
        self._away: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.once()
            await asyncio.sleep(self._every)

    async def once(self) -> None:
        """Read every server that a request has been sent to, a few at a time."""
        self._look_at_engines()
        gate = asyncio.Semaphore(_AT_ONCE)
        places = {(one.target.provider, one.target.replica) for one in self._deployments}
        wanted = [(name, replica) for name, replica in places if self._upstreams.kind(name) in NAMES]
        await asyncio.gather(*(self._read(gate, name, replica) for name, replica in wanted))

    def _look_at_engines(self) -> None:
        """A bundled engine that was away is asked as soon as it is ready: nobody waits for its circuit as well."""
        for deployment in self._deployments:
            name = deployment.target.provider
            provider = self._upstreams.providers.get(name)
            if provider is None or self._upstreams.kind(name) != "local":
                continue
            key = str(deployment.target)
            if provider.ready() is not None:
                self._away.add(key)
            elif key in self._away:
                self._away.discard(key)
                deployment.came_back(self._monotonic())

    async def _read(self, gate: asyncio.Semaphore, name: str, replica: str) -> None:
        url = self._url(name, replica)
        if url is None:
            return
        async with gate:
            load = await self._asked(self._upstreams.kind(name), url)
        if load is None and url not in self._silent:
            log.warning("a server tells no load; only our own requests count there", provider=name, url=url)
        (self._silent.add if load is None else self._silent.discard)(url)
        for deployment in self._deployments:
            if (deployment.target.provider, deployment.target.replica) == (name, replica):
                deployment.loaded(load or _IDLE)

    async def _asked(self, kind: str, url: str) -> Load | None:
        """Metrics are asked for without a credential: they stand beside the API, not behind it."""
        try:
            exchange = await self._transport.open("GET", url, {"Accept-Encoding": "identity"}, b"", _TIMEOUT)
            try:
                raw = await exchange.whole(_LARGEST, _TIMEOUT)
            finally:
                exchange.close()
        except TransportError:
            return None
        return load_of(kind, raw) if exchange.status == 200 else None

    def _url(self, name: str, replica: str) -> str | None:
        found = self._upstreams.settings.providers.get(name)
        if found is None:
            return None
        base = f"http://{replica}" if replica else found.base_url
        if replica:
            host, _, _ = replica.partition("/")  # metrics stand at the root of a server
            written = next((one for one in found.replicas if urlsplit(one).netloc == host), None)
            base = written or base
        if base is None:
            return None
        parts = urlsplit(base)
        return f"{parts.scheme}://{parts.netloc}/metrics"


async def keep_current(upstreams: Upstreams, *, every: float) -> None:
    """Until cancelled: fleets that the network names are looked up again, every so many seconds."""
    while True:
        for provider in list(upstreams.providers.values()):
            if isinstance(provider, Fleet) and provider.is_named:
                await provider.refresh()
        await asyncio.sleep(every)
