"""Several equal servers as one upstream: a written list, or the ones the network names at the moment.

Knows: which servers there are, and that each has a provider of its own. Does not know: which of them is asked
(`gateway.routing`), their language, their load. A server that has gone finishes what it was asked.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from urllib.parse import urlsplit

import structlog
from msgspec.structs import replace

from gateway.allowance import Account, Accounted
from gateway.call import Body, Chunk
from gateway.errors import UpstreamFailed
from gateway.providers import Billing, Provider, Sending, TellsTokens, TokenPath
from policies.money import Usage

log = structlog.get_logger("nearhit.upstream")

_MOST = 256
_DNS_TIMEOUT = 5.0
Build = Callable[[str], Provider]  # of an address


class Fleet:
    """Obeys gateway.providers.Provider and gateway.upstreams.Replicated.

    `wanted`: addresses (`http://host:port/v1`), `dns://host:port/v1` for every address of a name, `srv://name/v1` for
    the servers of a service record. `generation` changes with the servers.
    """

    def __init__(self, name: str, wanted: Sequence[str], build: Build) -> None:
        """Raises ValueError for an address that is none, and as `build` does."""
        self.name = name
        self.generation = 0
        self._wanted = list(wanted)
        self._build = build
        self._members: dict[str, Provider] = {}
        self._turn = 0
        for address in wanted:
            if urlsplit(address).scheme not in ("http", "https", "dns", "srv"):
                raise ValueError(f"providers.{name}: replicas are http://, https://, dns:// or srv:// addresses")
        self._put(_labelled(address for address in wanted if not _is_named(address)))
        self.billing: Billing = build("http://127.0.0.1:9/v1").billing

    @property
    def is_named(self) -> bool:
        """Whether the network has to be asked who they are."""
        return any(_is_named(address) for address in self._wanted)

    def replicas(self) -> list[str]:
        return list(self._members)

    def replica(self, name: str) -> Provider | None:
        return self._members.get(name)

    async def refresh(self) -> None:
        """Ask the network again. Names that cannot be looked up keep the servers they had."""
        found: list[str] = []
        for address in self._wanted:
            if not _is_named(address):
                found.append(address)
                continue
            try:
                async with asyncio.timeout(_DNS_TIMEOUT):
                    found += await _looked_up(address)
            except (OSError, TimeoutError, ValueError) as error:
                log.warning("a name could not be looked up", provider=self.name, name=address, error=repr(error)[:200])
                return
        self._put(dict(list(_labelled(found).items())[:_MOST]))

    def _put(self, found: dict[str, str]) -> None:
        if found.keys() != self._members.keys():
            self._members = {
                label: self._members.get(label) or self._build(address) for label, address in sorted(found.items())
            }
            self.generation += 1

    # -- as one provider, for who does not choose ------------------------------------------------------------------

    async def send(self, sending: Sending) -> AsyncGenerator[Chunk, None]:
        """To the servers in turns."""
        async with aclosing(self._any().send(sending)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _any(self) -> Provider:
        if not self._members:
            raise UpstreamFailed(f"{self.name} has no servers at the moment.")
        self._turn += 1
        return list(self._members.values())[self._turn % len(self._members)]

    async def consumed(self, attempt: str) -> Usage | None:  # noqa: ARG002 - the protocol's signature
        """Nobody tells what a closed call has cost."""
        return None

    async def models(self) -> list[str]:
        return await self._any().models()

    async def told_of_tokens(self, path: TokenPath, body: Body) -> Body | None:
        """By the servers in turns: all have the same model."""
        member = self._any()
        return await member.told_of_tokens(path, body) if isinstance(member, TellsTokens) else None

    def accounts(self) -> list[Account]:
        """Those of every server."""
        return [
            replace(account, name=f"{label} {account.name}".rstrip())
            for label, member in self._members.items()
            if isinstance(member, Accounted)
            for account in member.accounts()
        ]

    def ready(self) -> str | None:
        return None if self._members else "no servers known"

    async def close(self) -> None:
        for member in self._members.values():
            await member.close()


def _is_named(address: str) -> bool:
    return urlsplit(address).scheme in ("dns", "srv")


def _labelled(addresses: Iterable[str]) -> dict[str, str]:
    """Each address under the name that is told of it: host and port, with the path where several share those."""
    found = {address.rstrip("/"): urlsplit(address.rstrip("/")) for address in addresses}
    shared = Counter(parts.netloc for parts in found.values())
    return {
        parts.netloc + (parts.path if shared[parts.netloc] > 1 else ""): address for address, parts in found.items()
    }


async def _looked_up(address: str) -> list[str]:
    """The addresses behind a name, sorted. Raises OSError, ValueError."""
    parts = urlsplit(address)
    path = parts.path or "/v1"
    if parts.scheme == "srv":
        from gateway.fleet_srv import services

        return sorted(f"http://{host}:{port}{path}" for host, port in await services(parts.netloc))
    if parts.hostname is None or parts.port is None:
        raise ValueError("dns:// needs a name and a port")
    loop = asyncio.get_running_loop()
    rows = await loop.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    hosts = {f"[{row[4][0]}]" if row[0] == socket.AF_INET6 else str(row[4][0]) for row in rows}
    return sorted(f"http://{host}:{parts.port}{path}" for host in hosts)
