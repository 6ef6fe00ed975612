"""Which processes there are, with which arguments; what the supervisor says; what it must not load."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.sim import SimEngine
from gateway.parts import build_engines
from gateway.serve import Started, plans_for
from gateway.serve_banner import Ready, banner, base_url, loading
from gateway.serve_engines import engine_sockets
from gateway.settings import EngineSettings, ProviderSettings, Settings, TelemetrySettings


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def started(tmp_path: Path, sock: socket.socket, **fields: Any) -> Started:
    (tmp_path / "run").mkdir(exist_ok=True)
    return Started(Settings(home=tmp_path, **fields), None, [sock], 99, None, (97, 98))


def test_the_default_is_encoder_engine_and_one_worker(tmp_path: Path, sock: socket.socket) -> None:
    """What `make serve` starts."""
    encoder, engine, worker = plans_for(started(tmp_path, sock), {})
    assert encoder.command[4:] == ["cache.encoder", "--socket", f"{tmp_path}/run/encoder.sock", "--model", "minilm"]
    assert engine.command[4:] == ["engine.process", "--model", "demo", "--socket", f"{tmp_path}/run/engine-local.sock"]
    assert worker.command[4:] == [
        *("gateway.server", "--fd", str(sock.fileno()), "--supervisor", str(os.getpid())),
        *("--born", "98"),
        *("--admin", f"{tmp_path}/run/admin.sock"),
    ]
    assert worker.fds == (sock.fileno(), 99, 98)


def test_a_folder_of_somebody_elses_is_not_taken_for_our_package(
    tmp_path: Path, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People start it where their project is, and `cache` and `engine` are common names of folders."""
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "__init__.py").write_text("raise SystemExit('theirs')\n")
    plans = plans_for(started(tmp_path, sock), {})
    assert "-P" not in plans[0].command
    monkeypatch.chdir(tmp_path)
    for plan in plans_for(started(tmp_path, sock), {}):
        command = [*plan.command[: plan.command.index("-m")], "-c", "import gateway.settings"]
        done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr


def test_a_simulated_engine_needs_no_process(tmp_path: Path, sock: socket.socket) -> None:
    """It lives in the worker."""
    engines = {
        "s": EngineSettings(model="sim"),
        "t": EngineSettings(model="tiny-random:qwen3", threads=3, memory=1 << 30, device="cpu", speculate="off"),
    }
    plans = plans_for(started(tmp_path, sock, engines=engines), {})
    assert [plan.name for plan in plans] == ["encoder", "engine t", "worker 0"]
    said = plans[1].command
    for flag, value in (("--threads", "3"), ("--memory-mib", "1024"), ("--device", "cpu"), ("--speculate", "off")):
        assert said[said.index(flag) + 1] == value


def test_replicas_are_processes_with_a_socket_each(tmp_path: Path, sock: socket.socket) -> None:
    """Workers must find each of them where it listens."""
    engine = EngineSettings(model="demo", replicas=2, sleep_after=60, sleep_level=2, slo_ttft_ms=250)
    plans = plans_for(started(tmp_path, sock, engines={"big": engine}), {})
    assert [plan.name for plan in plans] == ["encoder", "engine big 0", "engine big 1", "worker 0"]
    paths = [str(path) for path in engine_sockets(tmp_path / "run", "big", 2)]
    assert [plan.command[plan.command.index("--socket") + 1] for plan in plans[1:3]] == paths
    assert plans[1].command[-6:] == ["--sleep-after", "60", "--sleep-level", "2", "--slo-ttft-ms", "250"]


def test_one_worker_of_several_owns_the_control_planes_socket(tmp_path: Path, sock: socket.socket) -> None:
    """A Unix socket's file belongs to whoever bound it last."""
    server = {"workers": 3}
    fields = {"database": "postgresql://u@h/n", "redis": "redis://h"}
    plans = plans_for(started(tmp_path, sock, server=server, engines={}, **fields), {})
    assert ["--admin" in plan.command for plan in plans if plan.kind == "worker"] == [True, False, False]


def test_flags_and_the_port_reach_the_workers_by_environment(tmp_path: Path, sock: socket.socket) -> None:
    """Children load the settings themselves."""
    plans = plans_for(started(tmp_path, sock), {"host": "127.0.0.1", "server": "granian"})
    for plan in plans:
        assert plan.environment["NEARHIT_SERVER__SERVER"] == "granian"
        assert plan.environment["NEARHIT_SERVER__PORT"] == str(sock.getsockname()[1])
    assert Path(plans[-1].environment["PROMETHEUS_MULTIPROC_DIR"]).is_dir()
    assert "PROMETHEUS_MULTIPROC_DIR" not in plans[0].environment
    assert plans[-1].environment["OMP_NUM_THREADS"] == "1"


def test_an_operators_thread_count_stands(tmp_path: Path, sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """They know their machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert {plan.environment["OMP_NUM_THREADS"] for plan in plans_for(started(tmp_path, sock), {})} == {"7"}


def test_the_encoder_does_not_keep_what_it_compiled_for_every_length(
    tmp_path: Path, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand shapes of texts were kept at once: it grew from 460 MB to a gigabyte within a thousand passes."""
    encoder, *others = plans_for(started(tmp_path, sock), {})
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    assert [encoder.environment[name] for name in names] == ["32", "32"]
    assert not any(name in plan.environment for plan in others for name in names)
    monkeypatch.setenv(names[0], "500")
    assert plans_for(started(tmp_path, sock), {})[0].environment[names[0]] == "500"


def test_the_supervisor_stays_small() -> None:
    """The port must open within two seconds, and the process that restarts the others must not weigh what they do."""
    heavy = ("litestar", "torch", "sqlalchemy", "numpy", "uvicorn")
    code = f"import sys, gateway.serve; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("fe80::1", "http://[fe80::1]:80"),
        ("box", "http://box:80"),
    ],
)
def test_the_base_url_is_one_that_can_be_pasted(host: str, url: str) -> None:
    """Nobody can connect to 0.0.0.0 in a browser."""
    assert base_url(host, 80) == url


def test_the_first_banner_shows_both_keys_and_how_to_turn_things_on(tmp_path: Path) -> None:
    """The one page a newcomer reads."""
    ready = Ready(url="http://h:1", seconds=3.21, api_key="sk-nh-a", admin_key="sk-nh-b")
    text = banner(Settings(home=tmp_path), ready)
    for part in (
        "http://h:1/v1",
        "sk-nh-a",
        "sk-nh-b",
        "http://h:1/ui",
        "/docs",
        "/metrics",
        "OPENAI_API_KEY",
        "redis:",
        "postgresql:",
        "local (demo)",
    ):
        assert part in text, part
    assert text.endswith("\n")


def test_a_later_banner_shows_no_key(tmp_path: Path) -> None:
    """They cannot be read again, and what an operator configured is not repeated."""
    settings = Settings(
        home=tmp_path,
        admin_key="configured-admin-key",  # pyright: ignore[reportArgumentType] - pydantic wraps it
        cache={"mode": "off"},  # pyright: ignore[reportArgumentType] - pydantic builds it
        redis="redis://h",
        engines={},
        providers={"o": ProviderSettings(kind="openai")},
        telemetry=TelemetrySettings(otlp="http://o"),
    )
    text = banner(settings, Ready(url="http://h:1", seconds=1, api_key=None, admin_key=None))
    assert "configured-admin-key" not in text
    assert "sk-nh-" not in text
    for part in ("NEARHIT_ADMIN_KEY", "o (openai)", "http://o", "nearhit keys create"):
        assert part in text, part


def test_what_is_loading_is_named() -> None:
    """Twenty seconds of silence look like a hang."""
    assert loading({"local": "reading weights", "encoder": "starting"}) == (
        "nearhit: loading: encoder (starting), local (reading weights)"
    )


def test_a_simulated_engine_has_the_window_its_settings_name(tmp_path: Path) -> None:
    """`context` was left out of account there: what a real model would refuse passed the rehearsal."""
    engines = {"s": EngineSettings(model="sim", context=64), "t": EngineSettings(model="sim")}
    built = build_engines(Settings(home=tmp_path, engines=engines))
    assert isinstance(built["s"], SimEngine)
    assert isinstance(built["t"], SimEngine)
    assert (built["s"]._context, built["t"]._context) == (64, 8192)
