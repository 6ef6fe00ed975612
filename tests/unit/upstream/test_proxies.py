"""Upstreams behind a proxy: which one is asked, what it is told, and what clients read when it refuses."""

import asyncio
import base64
import contextlib
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import Struct, field

from gateway.parts import build_upstream
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport import ConnectFailed
from gateway.transport.direct import DirectTransport
from gateway.transport.proxies import Proxies, Proxy, of_environment
from tests.services import program
from tests.unit.upstream.raw_upstream import fixed, raw_upstream, response

NAME = "up.example"  # nobody but the proxy can find it
BOTH = Proxies({"https": "http://proxy.example:3128", "http": "http://plain.example"}, "lab.example, .dev,10.0.0.0/8")


@pytest.mark.parametrize(
    ("origin", "found"),
    [
        (("https", "api.openai.com", 443), "proxy.example"),
        (("http", "api.openai.com", 80), "plain.example"),
        (("https", "lab.example", 443), ""),
        (("https", "gpu.LAB.example.", 443), ""),
        (("https", "notlab.example", 443), "proxy.example"),
        (("https", "a.dev", 443), ""),
        (("https", "10.1.2.3", 443), ""),
        (("https", "11.1.2.3", 443), "proxy.example"),
        (("http", "localhost", 8000), ""),
        (("http", "127.8.0.1", 8000), ""),
        (("http", "::1", 8000), ""),
        (("http", "x.localhost", 8000), ""),
    ],
)
def test_which_proxy_stands_before_an_origin(origin: tuple[str, str, int], found: str) -> None:
    """A server on this machine must not be asked through a proxy, and a service outside not without."""
    proxy = BOTH.before(*origin)
    assert (proxy.host if proxy else "") == found


@pytest.mark.parametrize(
    ("no", "direct"),
    [("*", True), ("up.example:443", True), ("up.example:8443", False), ("", False), ("[::1]:80, up.example", True)],
)
def test_exceptions_may_name_a_port_or_all(no: str, direct: bool) -> None:
    """As Go's and Python's own clients read NO_PROXY: people have one value for all their programs."""
    assert (Proxies({"all": "proxy.example:1"}, no).before("https", NAME, 443) is None) is direct


def test_a_proxy_of_another_kind_is_no_proxy_and_its_password_no_word() -> None:
    """To go past it silently would be worse than to refuse; and what is printed at the start goes into logs."""
    given = Proxies({"all": "socks5://me:hush@proxy.example:1080"})
    with pytest.raises(ValueError, match=r"ALL_PROXY names a proxy of socks5://.*http:// proxies only") as told:
        given.before("https", NAME, 443)
    assert given.before("https", "localhost", 443) is None
    good = Proxies({"https": "http://me:hu%73h@proxy.example:3128"})
    proxy = good.before("https", NAME, 443)
    assert proxy == Proxy("proxy.example", 3128, "Basic " + base64.b64encode(b"me:hush").decode())
    assert not any("hu" in str(one) for one in (told.value, given, good, proxy))
    for wrong in ("http://", "http://x:port", "http://[::1"):
        with pytest.raises(ValueError, match="not the address of a proxy"):
            Proxies({"all": wrong}).before("https", NAME, 443)


async def test_a_gateway_does_not_start_where_a_provider_needs_what_is_no_http_proxy() -> None:
    """It would fail at every request instead; a provider on this machine needs none."""
    transport, tasks = DirectTransport(proxies=Proxies({"all": "socks5h://me:hush@p.example"})), Tasks()
    with pytest.raises(ValueError, match=r"providers\.far: ALL_PROXY names a proxy of socks5h://") as told:
        build_upstream("far", ProviderSettings(kind="vllm", base_url="https://far.example/v1"), transport, tasks)
    assert "hush" not in str(told.value)
    build_upstream("near", ProviderSettings(kind="vllm", base_url="http://127.0.0.1:8000/v1"), transport, tasks)


def test_small_letters_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere: curl's, Go's and Python's clients read both, and agree."""
    for name in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{name}_proxy", raising=False)
        monkeypatch.delenv(f"{name.upper()}_PROXY", raising=False)
    assert of_environment() == Proxies()
    monkeypatch.setenv("HTTPS_PROXY", "http://large.example")
    monkeypatch.setenv("https_proxy", "http://small.example")
    monkeypatch.setenv("NO_PROXY", "lab.example")
    assert of_environment() == Proxies({"https": "http://small.example"}, "lab.example")


class Through(Struct):
    """A proxy as it was asked: every head, in order."""

    port: int = 0
    heads: list[str] = field(default_factory=list[str])


@asynccontextmanager
async def proxy(answer: bytes = b"", to: int = 0) -> AsyncGenerator[Through]:
    """It connects whatever is asked for to the port `to` of this machine, or only says `answer`."""
    state, tasks, writers = Through(), Tasks(), list[asyncio.StreamWriter]()

    async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 16):
                writer.write(piece)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        state.heads.append(head.decode())
        if answer:
            writer.write(answer)
            await writer.drain()
            writer.close()
            return
        there, onward = await asyncio.open_connection("127.0.0.1", to)
        writers.append(onward)
        if head.startswith(b"CONNECT "):
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            onward.write(head)
        await asyncio.gather(copied(reader, onward), copied(there, writer))

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.spawn(serve(reader, writer), "proxied")

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
        for one in writers:
            one.close()
        await tasks.finish(0.0)
        await asyncio.sleep(0.01)  # so that the sockets are closed


@asynccontextmanager
async def asking(port: int, trust: ssl.SSLContext | None = None) -> AsyncGenerator[DirectTransport]:
    there = f"http://me:hush@127.0.0.1:{port}"
    transport = DirectTransport(trust=trust, proxies=Proxies({"http": there, "https": there}))
    try:
        yield transport
    finally:
        await transport.close()


async def fetched(transport: DirectTransport, url: str) -> tuple[int, bytes]:
    exchange = await transport.open("POST", url, {"Authorization": "Bearer key"}, b"{}", 5.0)
    try:
        return exchange.status, await exchange.whole(1 << 20, 5.0)
    finally:
        exchange.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and a certificate for the upstream in one file, signed by itself."""
    command = [str(program("openssl")), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    command += ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_bytes((tmp_path / "key.pem").read_bytes() + (tmp_path / "cert.pem").read_bytes())
    return both


async def test_tls_goes_through_a_tunnel_that_is_kept(certificate: Path) -> None:
    """The proxy learns a name and a port, the upstream's certificate is checked, and nobody connects per request."""
    here = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    here.load_cert_chain(certificate)
    trust = ssl.create_default_context(cafile=str(certificate))
    async with raw_upstream(fixed(response("200 OK", b"hello")), tls=here) as up, proxy(to=up.port) as between:
        async with asking(between.port, trust) as transport:
            for _ in range(2):
                assert await fetched(transport, f"https://{NAME}/v1/x") == (200, b"hello")
            with pytest.raises(ConnectFailed, match="certificate is not trusted"):
                await fetched(transport, "https://other.example/v1/x")
        assert [head.split("\r\n")[0] for head in between.heads] == [
            f"CONNECT {NAME}:443 HTTP/1.1",
            "CONNECT other.example:443 HTTP/1.1",
        ]
        assert all("Proxy-Authorization: Basic bWU6aHVzaA==" in head for head in between.heads)
        assert not any("Bearer" in head for head in between.heads)
        assert [heard.line for heard in up.heard] == ["POST /v1/x HTTP/1.1"] * 2
        assert not any("proxy-authorization" in heard.headers for heard in up.heard)


async def test_what_is_not_encrypted_is_sent_to_the_proxy_as_it_is() -> None:
    """Many proxies make tunnels to port 443 only."""
    async with raw_upstream(fixed(response("200 OK", b"hello"))) as up, proxy(to=up.port) as between:
        async with asking(between.port) as transport:
            assert await fetched(transport, f"http://{NAME}:8000/v1/x?y=1") == (200, b"hello")
            assert await fetched(transport, f"{up.url}/direct") == (200, b"hello")
        assert [heard.line for heard in up.heard] == [
            f"POST http://{NAME}:8000/v1/x?y=1 HTTP/1.1",
            "POST /v1/direct HTTP/1.1",
        ]
        assert up.heard[0].headers["host"] == f"{NAME}:8000"
        assert len(between.heads) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("status", ["407 No", "502 Bad"])
async def test_a_proxy_that_refuses_is_named_and_not_quoted(scheme: str, status: str) -> None:
    """Else the upstream is blamed, or the client told to show a password that it does not have."""
    async with proxy(response(status, b"hush")) as between, asking(between.port) as transport:
        if (scheme, status) == ("http", "502 Bad"):  # whose it is cannot be told
            assert (await fetched(transport, f"http://{NAME}/"))[0] == 502
            return
        with pytest.raises(ConnectFailed, match=rf"the proxy 127\.0\.0\.1 in between answered {status[:3]}$") as told:
            await fetched(transport, f"{scheme}://{NAME}/")
        assert "hush" not in str(told.value)


@pytest.mark.parametrize(("answer", "why"), [(b"SSH-2.0\r\n\r\n", "speak HTTP"), (b"HTTP/1.1 2", "gave no answer")])
async def test_what_is_no_proxy_is_no_way(answer: bytes, why: str) -> None:
    """A wrong port is a common mistake, and must end at once."""
    async with proxy(answer) as between, asking(between.port) as transport:
        with pytest.raises(ConnectFailed, match=why):
            await fetched(transport, f"https://{NAME}/")


async def test_a_proxy_that_is_not_there_is_named() -> None:
    """Nobody is reached then, and nothing is wrong with any of the upstreams."""
    async with proxy() as between:
        port = between.port
    async with asking(port) as transport:
        for scheme in ("http", "https"):
            with pytest.raises(ConnectFailed, match=r"the proxy 127\.0\.0\.1 in between: ConnectionRefusedError"):
                await fetched(transport, f"{scheme}://{NAME}/")
