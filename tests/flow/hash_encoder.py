"""An encoder on a gateway's own socket that embeds by word overlap: the semantic tier without a model."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from cache import wire
from cache.embedder import HashEncoder

SECONDS = 0.018  # of computing that it says a text took


@asynccontextmanager
async def hash_encoder(home: Path) -> AsyncGenerator[HashEncoder, None]:
    """Serve until the block ends. Start it before the gateway."""
    encoder, open_ = HashEncoder(), set[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_.add(writer)
        hello = wire.Hello(name=encoder.name, dimension=encoder.dimension, window=encoder.window)
        writer.write(wire.frame(hello))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                ask = wire.decode_ask(await wire.read_frame(reader))
                found = await encoder.encode(ask.texts)
                raw = found.vectors.astype("<f4").tobytes() if ask.vectors else b""
                answer = wire.Answer(id=ask.id, tokens=found.tokens, vectors=raw, seconds=SECONDS * len(ask.texts))
                writer.write(wire.frame(answer))
        writer.close()

    (home / "run").mkdir(parents=True, exist_ok=True)
    server = await asyncio.start_unix_server(serve, path=str(home / "run" / "encoder.sock"))
    try:
        yield encoder
    finally:
        server.close()
        for writer in open_:
            writer.close()
        await asyncio.sleep(0)
