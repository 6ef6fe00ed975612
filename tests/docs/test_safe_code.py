"""What our code must never contain, read from its syntax trees: each of these has been somebody's way in."""

import ast
import site
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("gateway", "cache", "engine", "policies")
STARTS_PROCESSES = {  # none of them in the answer to a request
    "gateway/serve_child.py",
    "gateway/cli/serve.py",
    "engine/parallel.py",
    "engine/kernels/compiled.py",
}
NUMBERS_AND_OWN_NAMES = {  # what is put in there is a number or a constant of ours
    "gateway/bench/pages.py": 2,
    "gateway/db/session.py": 1,
    "gateway/ledger/inserts.py": 1,
    "gateway/ledger/openings.py": 1,
    "gateway/ledger/request_rows.py": 1,
    "gateway/ledger/sum_rows.py": 1,
}
PTH = ("distutils-precedence.pth", "a1_coverage.pth", "_nearhit.pth", "_editable_impl_nearhit.pth", "nearhit.pth")


@cache
def modules() -> list[tuple[str, ast.Module]]:
    paths = [path for package in OURS for path in sorted((ROOT / package).rglob("*.py"))]
    return [(path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8"))) for path in paths]


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    return [(path, node) for path, tree in modules() for node in ast.walk(tree)]


def called(node: ast.AST) -> str:
    """`yaml.load`, `eval` … of a call, empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return ast.unparse(node.func)


def built(node: ast.expr) -> bool:
    """Text that is put together from values."""
    if isinstance(node, ast.JoinedStr):
        return any(isinstance(part, ast.FormattedValue) for part in node.values)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod | ast.Add)
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".format")


def test_no_statement_is_built_from_text() -> None:
    """SQL injection in an error path opened a peer before any key was checked; known places hold no foreign text."""
    found: Counter[str] = Counter()
    for path, tree in modules():
        for node in ast.walk(tree):
            name = called(node).rpartition(".")[2]
            if name in ("text", "exec_driver_sql") and isinstance(node, ast.Call) and node.args and built(node.args[0]):
                found[path] += 1
    assert {path: count for path, count in found.items() if count > NUMBERS_AND_OWN_NAMES.get(path, 0)} == {}


def test_nothing_that_runs_data_is_called() -> None:
    """Pickle, eval and unsafe loaders turn a file or a message into code."""
    banned = {"eval", "exec", "yaml.load", "torch.load", "pickle.load", "pickle.loads", "marshal.loads", "os.system"}
    found = [f"{path} {called(node)}" for path, tree in modules() for node in ast.walk(tree) if called(node) in banned]
    assert found == []


def test_modules_that_can_run_data_are_not_imported() -> None:
    """What is not imported cannot be reached by a mistake either."""
    banned = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    found: list[str] = []
    for path, tree in modules():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{path} {name}" for name in names if name.split(".")[0] in banned]
    assert found == []


def test_processes_are_started_in_few_places() -> None:
    """A gateway that starts processes from requests has been a remote shell more than once."""
    found = {
        path
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import) and any(alias.name == "subprocess" for alias in node.names)
    }
    assert {path for path in found if "bench/" not in path} <= STARTS_PROCESSES


def test_the_frameworks_own_caches_are_not_used() -> None:
    """Keys of a framework's response cache have collided; ours are derived and checked."""
    found = [
        f"{path} {node.id if isinstance(node, ast.Name) else node.attr}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
        and (node.id if isinstance(node, ast.Name) else node.attr) in ("ResponseCacheConfig", "FileStore")
    ]
    assert found == []


def test_nothing_runs_by_itself_when_python_starts() -> None:
    """A `.pth` file in a package was how a poisoned release stole credentials; ours bring none."""
    found = [path.name for folder in site.getsitepackages() for path in Path(folder).glob("*.pth")]
    unknown = [name for name in found if name not in PTH and not name.startswith(("__editable__", "_virtualenv"))]
    assert unknown == []


@pytest.mark.parametrize(
    ("source", "bad"),
    [('text(f"SELECT {x}")', True), ('text("SELECT 1")', False), ('text("a" + b)', True), ('text("%s" % x)', True)],
)
def test_the_check_bites(source: str, bad: bool) -> None:
    """A check that cannot fail protects nobody."""
    call = ast.parse(source).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert built(call.value.args[0]) is bad
