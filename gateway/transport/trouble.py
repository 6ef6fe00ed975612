"""Why a connection came to nothing, in words that a client may read.

The system's words name the address that was tried, and asyncio's do: whoever asks a gateway has no business with its
operator's network. Does not know: sockets, upstreams.
"""

import os
import socket
import ssl


def words(error: BaseException) -> str:
    """What broke, without the peer's own bytes or its address."""
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None)  # of aiohttp's own errors
    if isinstance(inner, BaseException):
        return words(inner)
    name = type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message.partition(',')[0]}"  # then whom it is not for
    if isinstance(error, ssl.SSLError):
        return f"{name}: {error.reason}"  # its numbers are no system's
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return f"{name}: {os.strerror(error.errno)}"
    if isinstance(error, socket.gaierror):
        return f"{name}: {error.strerror}"  # the name that was not found is not in it
    return name
