"""Starts what the suites run against: the scripted reference server as an upstream, and nearhit in front of it.

Knows: processes and their settings. Does not know: suites.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

MODEL = "ref-model"
ROOT = Path(__file__).parents[2]
_KEY = "sk-ref"
_ADMIN = "sk-compatibility-admin-key"
_ROUTES = ("omni-moderation-latest", MODEL)


class Stage(Struct, frozen=True, kw_only=True):
    """Where nearhit answers (with `/v1`), a key for it, and the models that suites are to ask for."""

    base_url: str
    key: str
    model: str
    embed_model: str


@contextmanager
def ended(command: list[str], env: dict[str, str], cwd: Path) -> Generator[None]:
    """A process that does not outlive the block; what it says goes to where this one's errors go."""
    process = subprocess.Popen(command, env=env, cwd=cwd, stdout=sys.stderr)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def reference(suites: Path, suites_home: Path) -> Generator[str]:
    """The reference server's address, with `/v1`."""
    port = _free_port()
    env = {**os.environ, "PORT": str(port), "API_KEY": _KEY, "MODEL": ",".join(_ROUTES)}  # noqa: TID251 - children inherit it
    uvicorn = str(suites_home / "venv-ref" / "bin" / "uvicorn")
    command = [uvicorn, "app:app", "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"]
    with ended(command, env, suites / "refserver"):
        _wait(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}/v1"


@contextmanager
def gateway(home: Path, upstream: str | None) -> Generator[Stage]:
    """nearhit as it is installed, in front of `upstream`; None: alone, with its bundled engine and encoder."""
    port = _free_port()
    env = {**os.environ, "NEARHIT_HOME": str(home), "PYTHONPATH": str(ROOT), "NEARHIT_ADMIN_KEY": _ADMIN}  # noqa: TID251 - the same
    if upstream is not None:
        ref = {"ref": {"kind": "openai", "base_url": upstream, "api_key": _KEY}}
        routes = {name: {"route": [f"ref/{name}"], "free": True} for name in _ROUTES}
        env |= {"NEARHIT_PROVIDERS": _dumps(ref), "NEARHIT_MODELS": _dumps(routes)}
        env["NEARHIT_ENGINES"] = _dumps({"local": {"model": "sim"}})
    home.mkdir(parents=True)
    with ended([sys.executable, "-m", "gateway", "serve", "--port", str(port)], env, home):
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}/health/ready", within=180.0)
        model, embed_model = (MODEL, MODEL) if upstream is not None else ("chat", "embed")
        yield Stage(base_url=f"{url}/v1", key=_key(url), model=model, embed_model=embed_model)


def _dumps(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _key(url: str) -> str:
    body = msgspec.json.encode({"name": "suites", "team": "suites"})
    headers = {"authorization": f"Bearer {_ADMIN}", "content-type": "application/json"}
    request = urllib.request.Request(f"{url}/api/v1/keys", body, headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return msgspec.json.decode(answer.read())["key"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def _wait(url: str, within: float = 60.0) -> None:
    until = time.monotonic() + within
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
