"""A way through an http proxy to an upstream that speaks TLS: CONNECT, over a socket that is connected already.

Knows: the request and the head of its answer. Does not know: which proxy (`gateway.transport.proxies`), TLS, what is
said in the tunnel. What a proxy writes in its refusal is not repeated: it may quote what it was told.
"""

import asyncio
import re
import socket

from gateway.transport import ConnectFailed
from gateway.transport.proxies import Proxy
from gateway.transport.trouble import words

_LARGEST_HEAD = 16 << 10
_PIECE = 4 << 10
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")


def authorization(proxy: Proxy) -> str:
    """The header that says who asks, with its line end."""
    return f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""


def refusal(proxy: Proxy, status: int) -> ConnectFailed:
    """Nothing has been sent on."""
    return ConnectFailed(f"the proxy {proxy.host} in between answered {status}")


async def made(sock: socket.socket, proxy: Proxy, host: str, port: int) -> None:
    """Have the proxy connect `sock` to there. Raises ConnectFailed."""
    loop = asyncio.get_running_loop()
    there = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    head = b""
    try:
        asked = f"CONNECT {there} HTTP/1.1\r\nHost: {there}\r\n{authorization(proxy)}\r\n"
        await loop.sock_sendall(sock, asked.encode("ascii"))
        while not (end := head.partition(b"\r\n\r\n"))[1]:
            piece = await loop.sock_recv(sock, _PIECE)
            if not piece or len(head) > _LARGEST_HEAD:
                raise ConnectFailed(f"the proxy {proxy.host} in between gave no answer")
            head += piece
    except OSError as error:
        raise ConnectFailed(f"the proxy {proxy.host} in between: {words(error)}") from error
    status = _STATUS.match(head)
    if status is not None and not status[1].startswith(b"2"):
        raise refusal(proxy, int(status[1]))
    if status is None or end[2]:  # whoever is behind it waits for TLS to begin, and says nothing before
        raise ConnectFailed(f"the proxy {proxy.host} in between does not speak HTTP")
