"""Service records of the DNS (RFC 2782), asked of the servers in /etc/resolv.conf over UDP.

Knows: one question, its answer, compressed names. Does not know: caching (who asks does so every few seconds), DNSSEC,
other records. Python's own resolver cannot ask for these.
"""

import asyncio
import secrets
import struct
from pathlib import Path

_SRV, _IN = 33, 1
_TIMEOUT = 2.0
_LARGEST = 4_096
_MOST_JUMPS = 32


async def services(name: str, *, servers: list[tuple[str, int]] | None = None) -> list[tuple[str, int]]:
    """Hosts and ports of the records of lowest priority. Raises OSError where nobody answers or the name has none."""
    error: Exception = OSError("no name server is configured")
    for server in servers or _configured():
        try:
            found = await _asked(name, server)
        except (OSError, TimeoutError, ValueError, struct.error, IndexError) as problem:
            error = problem
            continue
        if not found:
            raise OSError(f"{name} has no service records")
        best = min(priority for priority, _, _ in found)
        return [(host, port) for priority, host, port in found if priority == best]
    raise OSError(f"{name} could not be looked up: {error!r}")


def _configured() -> list[tuple[str, int]]:
    try:
        lines = Path("/etc/resolv.conf").read_text("ascii", "replace").splitlines()
    except OSError:
        return []
    return [(line.split()[1], 53) for line in lines if line.startswith("nameserver ")]


class _Answer(asyncio.DatagramProtocol):
    """The first datagram with our number in it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:  # noqa: ARG002 - connected to one peer
        if not self.done.done() and len(data) <= _LARGEST and data[:2] == self.number.to_bytes(2, "big"):
            self.done.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(exc)


async def _asked(name: str, server: tuple[str, int]) -> list[tuple[int, str, int]]:
    number = secrets.randbits(16)
    transport, answer = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Answer(number), remote_addr=server
    )
    try:
        transport.sendto(_question(number, name))
        async with asyncio.timeout(_TIMEOUT):
            return _records(await answer.done)
    finally:
        transport.close()


def _question(number: int, name: str) -> bytes:
    """Raises ValueError for a name that is none."""
    labels = [label.encode("ascii") for label in name.rstrip(".").split(".")]
    if not all(0 < len(label) < 64 for label in labels):
        raise ValueError(f"{name!r} is no name")
    asked = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + asked + struct.pack(">HH", _SRV, _IN)


def _records(data: bytes) -> list[tuple[int, str, int]]:
    """Priority, host and port of each record."""
    _, flags, questions, answers, _, _ = struct.unpack_from(">HHHHHH", data)
    if flags & 0x000F:
        raise ValueError(f"the name server answered with code {flags & 0x000F}")
    at = 12
    for _ in range(questions):
        _, at = _name(data, at)
        at += 4
    found: list[tuple[int, str, int]] = []
    for _ in range(answers):
        _, at = _name(data, at)
        kind, _, _, length = struct.unpack_from(">HHIH", data, at)
        at += 10
        if kind == _SRV:
            priority, _, port = struct.unpack_from(">HHH", data, at)
            host, _ = _name(data, at + 6)
            found.append((priority, host, port))
        at += length
    return found


def _name(data: bytes, at: int) -> tuple[str, int]:
    """A name, and where what follows it begins."""
    labels: list[str] = []
    after = 0
    for _ in range(_MOST_JUMPS):
        length = data[at]
        if length >= 0xC0:
            after = after or at + 2
            at = (length & 0x3F) << 8 | data[at + 1]
        elif length:
            labels.append(data[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
        else:
            return ".".join(labels), after or at + 1
    raise ValueError("a name without an end")
