"""Runs each suite against a running nearhit and reads what it says about itself.

Knows: how the runners are called and how they tell their results. Does not know: what is under test.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from tests.compatibility.stage import Stage

_PYTHON = {"pydantic_ai": "pyai", "llamaindex": "llamaindex", "litellm_sdk": "litellm"}
_SDK = ("openai", "anthropic", "instructor")
NAMES = (*_SDK, *_PYTHON, "node_clients", "langchain_standard")
_LONGEST = 1_800
_LONGEST_REASON = 160
# `FAIL <suite> <test> <type of the error> <its words>`; in Node `FAIL <test> <words>`.
_PY_FAIL = re.compile(r"^\s*FAIL \S+ (?P<name>.*?) (?P<why>[A-Z]\w*(?:Error|Exception|Exit|Behavior|Timeout)\b.*)$")
_NODE_TEST = re.compile(r"""\bt\((['"`])(?P<name>.+?)\1,""")
_NODE_MODELS = ("compat", "openai.chat", "openai.responses", "anthropic")
_SUB = re.compile(r"^SUB \S+: (\d+) passed, (\d+) failed", re.MULTILINE)
_NODE = re.compile(r"^RESULT node_clients: (\d+) passed, (\d+) failed", re.MULTILINE)
_PYTEST = re.compile(r"^=* ?(.*) in [\d.]+s", re.MULTILINE)


class Failure(Struct, frozen=True, kw_only=True):
    """A test that failed, and what it said."""

    name: str
    why: str


class Result(Struct, frozen=True, kw_only=True):
    """What a suite says about itself. `skipped`: what it leaves out by its own choice."""

    suite: str
    passed: int
    failures: list[Failure]
    skipped: int = 0


class Place(Struct, frozen=True, kw_only=True):
    """Where the runners are and where their environments are."""

    suites: Path
    home: Path


def run_all(place: Place, stage: Stage, wanted: list[str]) -> list[Result]:
    """Every suite that is installed, or the `wanted` ones."""
    found: list[Result] = []
    for name, run in _runners().items():
        if not wanted or name in wanted:
            sys.stderr.write(f"running {name}\n")
            found.append(run(place, stage, name))
    return found


def _runners() -> dict[str, Callable[[Place, Stage, str], Result]]:
    python = dict.fromkeys((*_SDK, *_PYTHON), _python)
    return {**python, "node_clients": _node, "langchain_standard": _langchain}


def _environment(place: Place, stage: Stage) -> dict[str, str]:
    here = dict(os.environ)  # noqa: TID251 - children inherit it
    told = {"BASE_URL": stage.base_url, "API_KEY": stage.key, "MODEL": stage.model, "EMBED_MODEL": stage.embed_model}
    quiet = {"NO_COLOR": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
    here.pop("PYTHONPATH", None)
    return here | told | quiet | {"AI_SDK_LOG_WARNINGS": "false", "PYTHONDONTWRITEBYTECODE": "1"}


def _said(command: list[str], cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_LONGEST, check=False
    )
    return done.stdout.decode("utf-8", "replace")


def _python(place: Place, stage: Stage, name: str) -> Result:
    python = place.home / f"venv-{_PYTHON.get(name, 'sdk')}" / "bin" / "python"
    told = _said([str(python), "-W", "ignore", "py_clients.py", name], place.suites, _environment(place, stage))
    found = [one for one in map(_PY_FAIL.match, told.splitlines()) if one]
    return _counted(name, told, _SUB.search(told), [(one["name"], one["why"]) for one in found])


def _node(place: Place, stage: Stage, name: str) -> Result:
    script = (place.suites / "node-clients" / "smoke.mjs").read_text("utf-8")
    folder = place.home / "node-clients"
    (folder / "smoke.mjs").write_text(script, "utf-8")  # imports are looked up beside the script
    told = _said(["node", "smoke.mjs"], folder, _environment(place, stage))
    tests = {one["name"].replace("${n}", model) for one in _NODE_TEST.finditer(script) for model in _NODE_MODELS}
    failures: list[tuple[str, str]] = []
    for line in told.splitlines():
        said = line.strip().removeprefix("FAIL ")
        if line.strip().startswith("FAIL "):
            test = max((one for one in tests if said.startswith(one)), key=len, default="")
            failures.append((test or said, said[len(test) :]))
    return _counted(name, told, _NODE.search(told), failures)


def _counted(name: str, told: str, summary: re.Match[str] | None, found: list[tuple[str, str]]) -> Result:
    failures = [Failure(name=test, why=_short(why)) for test, why in found]
    if summary is None:
        return Result(suite=name, passed=0, failures=[Failure(name="the suite itself", why=_short(told[-400:]))])
    missing = int(summary[2]) - len(failures)
    failures += [Failure(name="unnamed", why="see the suite's own output")] * missing
    return Result(suite=name, passed=int(summary[1]), failures=failures)


def _langchain(place: Place, stage: Stage, name: str) -> Result:
    loops = [f"-o=asyncio_default_{what}_loop_scope=session" for what in ("fixture", "test")]
    options = ["-p", "no:cacheprovider", "-o=asyncio_mode=auto", *loops, "--timeout", "90", "-rfEs", "--tb=line"]
    python = str(place.home / "venv-langchain" / "bin" / "python")
    hosts = ["--disable-socket", "--allow-hosts=127.0.0.1,localhost,::1"]
    command = [python, "-m", "pytest", "-q", *options, *hosts, "test_standard.py"]
    told = _said(command, place.suites / "langchain", _environment(place, stage))
    lines = [line for line in told.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    failures: list[Failure] = []
    for line in lines:
        test, _, why = line.partition(" - ")
        failures.append(Failure(name=test.partition("::")[2], why=_short(why)))
    summary = _PYTEST.findall(told)
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) (\w+)", summary[-1] if summary else "")}
    if not summary:
        failures.append(Failure(name="the suite itself", why=_short(told[-400:])))
    passed, left_out = counts.get("passed", 0), counts.get("skipped", 0) + counts.get("xfailed", 0)
    return Result(suite=name, passed=passed + counts.get("xpassed", 0), failures=failures, skipped=left_out)


def _short(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:_LONGEST_REASON]
