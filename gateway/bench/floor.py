"""What no gateway in Python can go below on this machine: the same server with next to nothing behind it.

`python -m gateway.bench.floor PORT` answers every POST with the same JSON body. `… PORT --hop UPSTREAM FOLDER` journals
that a request came, waits until the record in FOLDER is durable, sends the body to UPSTREAM, a port of this machine,
and answers what comes back: a server, a sync and an upstream's call. Knows no key, price, cache or budget.
"""

import argparse
from pathlib import Path
from typing import Any

import uvicorn

from gateway.ledger.journal import Journal
from gateway.ledger.records import Opened, Progress
from gateway.transport.direct import DirectTransport

_BODY = b'{"object":"chat.completion","choices":[]}'
_JSON = (b"content-type", b"application/json")
_PATIENCE = 60.0
_LARGEST = 1 << 20


async def app(scope: Any, receive: Any, send: Any) -> None:
    """ASGI: reads the body, answers."""
    if scope["type"] == "http":
        await _body_of(receive)
        await _answer(send, _BODY)


class Hop:
    """ASGI: reads the body, has its record synced, answers what the upstream said."""

    def __init__(self, upstream: int, folder: Path) -> None:
        self._url = f"http://127.0.0.1:{upstream}/v1/chat/completions"
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        self._journal = Journal(folder, Opened("floor", "floor", 0.0))
        self._transport: DirectTransport | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if self._transport is None:
            self._transport = DirectTransport()
            self._journal.open()
        body = await _body_of(receive)
        self._journal.append(Progress("0" * 36, len(body), 0))
        if (durable := self._journal.synced()) is not None:
            await durable
        exchange = await self._transport.open("POST", self._url, self._headers, body, _PATIENCE)
        try:
            answer = await exchange.whole(_LARGEST, _PATIENCE)
        finally:
            exchange.close()
        await _answer(send, answer)


async def _body_of(receive: Any) -> bytes:
    pieces: list[bytes] = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(pieces)


async def _answer(send: Any, body: bytes) -> None:
    told = [_JSON, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": told})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.floor", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--hop", nargs=2, metavar=("UPSTREAM", "FOLDER"))
    given = parser.parse_args()
    uvicorn.run(
        Hop(int(given.hop[0]), Path(given.hop[1])) if given.hop else app,
        host="127.0.0.1",
        port=given.port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
    )


if __name__ == "__main__":
    main()
