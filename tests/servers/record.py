"""`python -m tests.servers.record KIND URL CASE [CASE …] [--model NAME]`: a real server's bytes as goldens.

Plays cases of tests/golden/<kind> (`NAME.asked.json`) through the provider to a running server and writes what came
back as `NAME.answer`: the status, the type of the content, the body as it was, chunks put together.
`NAME.pinned.json` is then to be written and read by a person, as always (tests/golden/README.md).
"""

import argparse
import asyncio
import sys
from contextlib import suppress

import aiohttp
import msgspec

from gateway.call import Body
from gateway.errors import GatewayError
from gateway.providers import Sending, load
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from tests.servers.place import first_model
from tests.unit.upstream.raw_upstream import Heard, raw_upstream, response
from tests.unit.upstream.test_golden import GOLDEN, Case

decode = msgspec.json.Decoder().decode


async def recorded(kind: str, url: str, name: str, model: str) -> bytes:
    """The answer to one case, in the form of a golden. The provider speaks to us, and we to the server."""
    asked = decode((GOLDEN / f"{name}.asked.json").read_bytes())
    found: list[bytes] = []

    async def passed_on(writer: asyncio.StreamWriter, heard: Heard) -> None:
        path = heard.line.split(" ")[1].removeprefix("/v1")
        headers = {"content-type": "application/json"}
        async with aiohttp.ClientSession() as client, client.post(url + path, data=heard.body, headers=headers) as told:
            body = await told.read()
            status, kind_of = f"{told.status} {told.reason}", told.headers["content-type"]
        found.append(f"HTTP/1.1 {status}\ncontent-type: {kind_of}\n\n".encode() + body)
        await fixed_once(writer, status, kind_of, body)

    async with raw_upstream(passed_on) as up:
        transport = DirectTransport()
        settings = ProviderSettings(kind=kind, base_url=up.url, **asked.get("settings", {}))
        provider = load(kind).build("up", settings, transport=transport, tasks=Tasks())
        body: Body = {**asked["body"], "model": model, "stream": asked["stream"]}
        sending = Sending(
            id="a-1",
            operation=asked["operation"],
            model=model,
            body=body,
            stream=asked["stream"],
            tenant="t",
            timeout=60,
            idle=60,
        )
        with suppress(GatewayError):  # a refusal is recorded like an answer
            _ = [chunk async for chunk in provider.send(sending)]
        await transport.close()
    return found[0]


async def fixed_once(writer: asyncio.StreamWriter, status: str, kind: str, body: bytes) -> None:
    writer.write(response(status, body, f"content-type: {kind}"))
    await writer.drain()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.servers.record", description=__doc__)
    parser.add_argument("kind")
    parser.add_argument("url", help="with /v1")
    parser.add_argument("cases", nargs="+", help="names in tests/golden/<kind>, without `.asked.json`")
    parser.add_argument("--model", help="as the server calls it; else the first it lists")
    asked = parser.parse_args()
    model = asked.model or asyncio.run(first_model(asked.url))
    for case in asked.cases:
        name = f"{asked.kind}/{case}"
        (GOLDEN / f"{name}.answer").write_bytes(asyncio.run(recorded(asked.kind, asked.url, name, model)))
        sys.stdout.write(f"{name}: {Case.of(name).status}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
