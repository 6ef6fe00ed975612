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


def test_start_loads_nothing_heavy() -> None:
    """torch alone takes a second and 200 MB in every worker; only the encoder's and the engines' processes need it.

    Nor does a worker load what only some configurations use: it shall stay below 180 MB.
    """
    told = [
        "import sys, gateway.app",
        f"print([name for name in {SELDOM!r} if name in sys.modules])",
        "import gateway.cli, engine.client, cache.embedder",
        f"print([name for name in {HEAVY!r} if name in sys.modules])",
    ]
    done = run([sys.executable, "-c", "\n".join(told)], ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "[]"]


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


CROOKED = {
    "policies.crooked_clock": "time",
    "policies.crooked_upwards": "cache.types",
    "cache.crooked": "engine.api",
    "engine.crooked": "gateway.call",
    "gateway.crooked": "torch",
    "gateway.providers.crooked": "gateway.providers.openai",
}


def test_the_import_linter_bites(tmp_path: Path) -> None:
    """A contract whose names rotted passes everything; so each one is broken on purpose."""
    for package in ("gateway", "engine", "cache", "policies"):
        shutil.copytree(
            ROOT / package,
            tmp_path / package,
            ignore=lambda _, names: [n for n in names if "." in n and not n.endswith(".py")],
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, other in CROOKED.items():
        (tmp_path / f"{module.replace('.', '/')}.py").write_text(f"import {other}\n")
    program = Path(sys.executable).with_name("lint-imports")
    done = run([program, "--no-cache"], tmp_path)
    assert done.returncode == 1, done.stdout
    told = " ".join(done.stdout.split())  # a long name is put on a line of its own
    unseen = [module for module, other in CROOKED.items() if f"{module} -> {other} (l.1)" not in told]
    assert not unseen, done.stdout
