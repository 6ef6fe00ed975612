"""What holds for every test: a clean environment, no network beyond loopback, a clock that stands still."""

import gc
import os
import socket
import sys
from collections.abc import Generator
from pathlib import Path

import certifi
import pytest
from hypothesis import settings

# Triton reads this when it is first imported, by whichever test: without a GPU its kernels run in its interpreter.
os.environ.setdefault("TRITON_INTERPRET", "1")  # noqa: TID251 - for tests alone

from gateway.db import migrate
from tests import empty_database
from tests.clock import FrozenClock
from tests.proofs import examples, wanted
from tests.services import MISSING, postgres_url, redis_url

__all__ = ["postgres_url", "redis_url"]

gc.disable()  # until all is collected: what is imported stays, and looking through it again and again takes seconds

# A busy machine is no reason to fail: 200 ms for an example is Hypothesis's default outside of CI.
settings.register_profile("patient", parent=settings.default, deadline=None, max_examples=examples(100))
settings.load_profile("patient")

_PREFIXES = ("NEARHIT_", "OTEL_", "PROMETHEUS_")
_SUFFIXES = ("_API_KEY",)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_LOOPBACK = ("localhost", "::1", "0.0.0.0", "::", "")


class LeftLoopbackError(RuntimeError):
    """A test tried to reach another machine."""


def _is_local(host: object) -> bool:
    if isinstance(host, bytes | bytearray):
        host = host.decode("ascii", "replace")
    return host is None or (isinstance(host, str) and (host in _LOOPBACK or host.startswith("127.")))


def _refuse_outbound(event: str, args: tuple[object, ...]) -> None:
    """Audit hook: cannot be removed or patched away, and also sees sockets opened by libraries written in Python."""
    if event == "socket.connect":
        address = args[1]
        if isinstance(address, tuple) and not _is_local(address[0]):
            raise LeftLoopbackError(f"a test connects to {address[0]!r}; only loopback is allowed")
    elif event == "socket.getaddrinfo" and not _is_local(args[0]):
        host = args[0]
        if isinstance(host, str) and host.endswith(".invalid"):
            # reserved never to exist (RFC 2606): the answer every resolver gives, without asking one
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        raise LeftLoopbackError(f"a test looks up {host!r}; only loopback is allowed")


sys.addaudithook(_refuse_outbound)


@pytest.fixture(autouse=True, scope="session")
def _one_certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every new HTTP client reads all the world's certificates, for 40 ms; on loopback one is as good."""
    first, mark, _ = Path(certifi.where()).read_text("ascii", "replace").partition("-----END CERTIFICATE-----\n")
    path = tmp_path_factory.mktemp("tls") / "one.pem"
    path.write_text("-----BEGIN" + first.rpartition("-----BEGIN")[2] + mark)
    return path


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, _one_certificate: Path) -> None:
    """Nothing that is set on the machine may change a test: no settings, no provider keys, no proxies, no model hub."""
    for name in list(os.environ):  # noqa: TID251 - wiping the environment takes reading it
        if name.startswith(_PREFIXES) or name.endswith(_SUFFIXES) or name.upper() in _PROXIES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("SSL_CERT_FILE", str(_one_certificate))


@pytest.fixture(autouse=True)
def _same_threads() -> Generator[None]:
    """A model is laid out for as many threads as there are when it is loaded: a test that sets them sets them back."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else 0
    yield
    if torch is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)


_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # noqa: TID251 - which of the processes that run tests this is


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Processes that collect in one order compile every file at the same moment: of four each begins elsewhere."""
    report = yield
    number = int(_WORKER.removeprefix("gw") or 0) % 4
    if isinstance(collector, pytest.Directory):
        middle = len(report.result) // 2 if number > 1 else 0
        report.result[:] = [*report.result[middle:], *report.result[:middle]]
        if number % 2:
            report.result.reverse()
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Marks, and an order that does not depend on where the collecting began: all processes must have the same.

    A test that asks for a server carries its marker, so that `-m "not postgres"` leaves it out. Where proofs are
    wanted, a test of inputs that Hypothesis draws is one, and one that is reduced elsewhere: it then has all of them.
    """
    if _WORKER:
        items.sort(key=lambda item: item.path)
    for item in items:
        asked = getattr(item, "fixturenames", ())
        for fixture, marker in (("redis_url", "redis"), ("postgres_url", "postgres")):
            if fixture in asked:
                item.add_marker(marker)
        drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
        if wanted() and (drawn or item.get_closest_marker("reduced")):
            item.add_marker("proof")
    yield


def pytest_collection_finish() -> None:
    """What was imported stays: looking through it at every collection would take a third of the run."""
    gc.freeze()  # with what is garbage by now: to find it would take longer than a process has use for its room
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _migrated_once() -> Generator[None]:
    """Two thousand tests begin with an empty SQLite database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate, "upgrade_database", empty_database.upgrade_database)
        yield


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was missing, so that a green run on a bare machine does not pass for a full one."""
    if MISSING:
        terminalreporter.write_line(f"not on this machine, so its tests were skipped: {', '.join(sorted(MISSING))}")
