"""Who may import whom: what the gateway loads at start, what a policy may touch, and that the linter would notice."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "sentence_transformers", "transformers", "opentelemetry.sdk")
# what a pure decision needs of the standard library: no I/O, no clock, no chance, no concurrency
PURE = {
    *("__future__", "abc", "bisect", "collections", "collections.abc", "dataclasses", "datetime", "decimal", "enum"),
    *("fractions", "functools", "hashlib", "heapq", "importlib", "itertools", "math", "operator", "pkgutil", "re"),
    *("statistics", "string", "struct", "types", "typing", "unicodedata", "zoneinfo"),
}
ALLOWED = {"msgspec", "numpy", "policies"}
# words that ship beside the code, read once when it is imported: as much its own as what is written in it
SHIPPED = {ROOT / "policies" / "reuse" / "lexicon.py": {"importlib.resources"}}


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=90, cwd=folder)


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


# 16 MB of a worker that has no engine and whose people sign on in no other way, 8 of one that sends no alerts, 3 of one
# on SQLite, 6 and 4 of what a worker never uses itself: how a schema is moved, how a terminal is painted
SELDOM = (
    *("tokenizers", "llguidance", "cryptography", "faiss", "redis", "asyncpg", "sqlalchemy.dialects.postgresql"),
    *("aiohttp", "aiosmtplib", "alembic", "mako", "rich", "pygments"),
)
STARTED = """
import asyncio, sys
from pathlib import Path
from gateway.app import create_app
from gateway.settings import load

async def main() -> None:
    async with create_app(load(Path(sys.argv[1]))).lifespan():
        print([name for name in %r if name in sys.modules])

asyncio.run(main())
"""


@pytest.mark.parametrize("module", ["gateway.app", "gateway.cli", "engine.client", "cache.embedder"])
def test_start_loads_nothing_heavy(module: str) -> None:
    """torch alone takes a second and 200 MB in every worker; only the encoder's and the engines' processes need it."""
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = run([sys.executable, "-c", code], ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_worker_loads_what_it_is_configured_for() -> None:
    """A worker shall stay below 180 MB; what only some configurations use has to wait until one of them is read."""
    code = f"import sys, gateway.app; print([name for name in {SELDOM!r} if name in sys.modules])"
    done = run([sys.executable, "-c", code], ROOT)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_a_started_worker_has_loaded_no_more(tmp_path: Path) -> None:
    """Nor is it loaded on the way to being ready, by the first start in a new home, which makes the database."""
    config = tmp_path / "nearhit.yaml"
    config.write_text(f"home: {tmp_path / 'home'}\nengines: {{}}\ncache: {{mode: exact}}\n")
    done = run([sys.executable, "-c", STARTED % (SELDOM,), config], ROOT)
    assert (done.returncode, done.stdout.strip().splitlines()[-1:]) == (0, ["[]"]), done.stderr


@pytest.mark.parametrize("path", sorted((ROOT / "policies").rglob("*.py")), ids=lambda path: path.stem)
def test_policies_are_pure(path: Path) -> None:
    """What decides about money and reuse is property-tested in milliseconds because it touches nothing outside."""
    pure = PURE | SHIPPED.get(path, set())
    foreign = {name for name in imported(path) if name not in pure and name.split(".")[0] not in ALLOWED}
    assert not foreign
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "print", "input", "eval", "exec"}


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("policies/crooked.py", "import time"),
        ("policies/crooked.py", "import cache.types"),
        ("cache/crooked.py", "import engine.api"),
        ("engine/crooked.py", "import gateway.call"),
        ("gateway/crooked.py", "import torch"),
        ("gateway/providers/crooked.py", "import gateway.providers.openai"),
    ],
)
def test_the_import_linter_bites(place: str, line: str, tmp_path: Path) -> None:
    """A contract whose names rotted passes everything; so each one is broken on purpose."""
    for package in ("gateway", "engine", "cache", "policies"):
        shutil.copytree(
            ROOT / package,
            tmp_path / package,
            ignore=lambda _, names: [n for n in names if "." in n and not n.endswith(".py")],
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    crooked = tmp_path / place
    crooked.write_text(f"{line}\n")
    program = Path(sys.executable).with_name("lint-imports")
    done = run([program, "--no-cache"], tmp_path)
    assert done.returncode == 1, done.stdout
    name = place.removesuffix(".py").replace("/", ".")
    assert name in done.stdout
