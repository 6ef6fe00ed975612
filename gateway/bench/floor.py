"""An application that does nothing, on the same server: what no gateway in Python can go below on this machine.

`python -m gateway.bench.floor PORT`. Answers every POST with the same JSON body. Knows nothing.
"""

import sys
from typing import Any

import uvicorn

_BODY = b'{"object":"chat.completion","choices":[]}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """ASGI: reads the body, answers."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _BODY})


def main() -> None:
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,
    )


if __name__ == "__main__":
    main()
