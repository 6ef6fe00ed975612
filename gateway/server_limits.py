"""What one HTTP connection may take, and what its one deadline can be for.

Does not know connections: `gateway.server_protocol` does.
"""

from enum import IntEnum

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """What one connection may take. Times in seconds, sizes in bytes.

    A client that is answered while it still sends may look for its answer only when it has sent all: what comes is
    thrown away for `linger`, longer the more of it comes at a fair speed, and never longer than `discard`.
    The first `surplus` beyond `connections` are told so, and waited for likewise; more of them are hung up on at once:
    each takes a file, of which the process has few to spare.
    """

    header_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 120.0
    linger: float = 10.0
    discard: float = 60.0
    header_bytes: int = 32_768
    header_count: int = 128
    uri_bytes: int = 16_384
    pipelined: int = 64
    connections: int = 10_000
    surplus: int = 64


class Waiting(IntEnum):
    """What the one deadline of a connection is for."""

    NOTHING = 0
    HEAD = 1
    BODY = 2
    END = 3  # of what is thrown away
