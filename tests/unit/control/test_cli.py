"""The command line as a person types it: what it prints, how it exits, and that help costs nothing."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.cli import build, connection, main, show
from gateway.cli.connection import running
from gateway.serve_banner import Ready, banner
from gateway.serve_home import lock
from gateway.settings import Settings, load


class Cli:
    """Runs commands in this process on a home of their own."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0, home: bool = True) -> str:
        """Standard output, after checking the exit code."""
        where = ["--home", str(self.home)] if home else []
        with pytest.raises(SystemExit) as ended:
            main([*arguments, *where])
        out, self.err = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, out + self.err
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        return msgspec.json.decode(self(*arguments, "--json", code=code))


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "home", capsys)


@contextmanager
def imports(code: str) -> Generator[set[str], None, None]:
    """The modules a fresh interpreter has after running `code`."""
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    yield set(done.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["keys", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """Help that takes a second is help nobody asks for twice."""
    code = f"from gateway.cli import main\ntry:\n    main({arguments!r})\nexcept SystemExit:\n    pass"
    with imports(code) as found:
        assert "gateway.cli" in found
        assert not found & {"litestar", "sqlalchemy", "torch", "httpx", "pydantic", "numpy", "faiss", "redis"}


def test_every_command_can_be_imported_and_says_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    """A command is named by text; a wrong text would be found by the first person who needs it."""
    app = build()

    def visit(part: Any, path: list[str]) -> int:
        found = 0
        for name in part:
            if name.startswith("-"):
                continue
            command = part[name]
            found += 1
            children = [child for child in command if not child.startswith("-")]
            if children:
                found += visit(command, [*path, name])
            else:
                command.help_print([])
                assert len(capsys.readouterr().out) > 25, [*path, name]
        return found

    assert visit(app, []) >= 35


def test_a_wrong_call_exits_with_2(cli: Cli) -> None:
    """Scripts tell a wrong call from a wrong state by the exit code."""
    cli("nothing", code=2, home=False)
    cli("keys", "create", code=2)
    cli("budgets", "set", "org", "1", "--window", "fortnight", code=2)
    cli("cache", "purge", code=2)
    assert "fractions" in cli("budgets", "set", "org", "1", "--alerts", "half", code=2)
    cli("scripted", "--port", "99999", code=2)


def test_what_the_system_refuses_is_told_in_a_sentence(cli: Cli, tmp_path: Path) -> None:
    """A port that is taken and a folder that is not there ended in a trace of forty lines."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cli("scripted", "--port", str(taken.getsockname()[1]), code=1, home=False)
    assert cli.err.startswith("nearhit: ")
    assert "address already in use" in cli.err
    cli("init", "--path", str(tmp_path / "nowhere" / "nearhit.yaml"), code=1, home=False)
    assert cli.err.startswith("nearhit: ")


def test_a_table_in_a_pipe_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """`nearhit audit list | grep` found half an instant: a long column took the others' room."""
    show.table(("at", "after"), [["2026-11-22T15:04:36.569Z", "x" * 400]])
    assert "2026-11-22T15:04:36.569Z" in capsys.readouterr().out


def test_keys_without_a_running_gateway(cli: Cli) -> None:
    """The first key is often made before the first start."""
    made = cli("keys", "create", "support bot", "--team", "acme", "--models", "chat,embed", "--expires", "30d")
    key = made.splitlines()[0]
    assert key.startswith("sk-nh-")
    (row,) = cli.json("keys", "list")
    assert (row["name"], row["team"], row["models"], row["state"]) == (
        "support bot",
        "acme",
        ["chat", "embed"],
        "active",
    )
    assert key not in cli("keys", "list")
    rotated = cli.json("keys", "rotate", row["id"])
    assert rotated["key"] != key
    assert "revoked" in cli("keys", "revoke", row["id"])
    assert cli.json("keys", "list")[0]["state"] == "revoked"
    cli("keys", "revoke", "nobody", code=1)
    assert "no key" in cli.err
    assert cli("keys", "rotate", "admin").startswith("sk-nh-admin000-")


def test_budgets_prices_usage_cache_and_books_without_a_running_gateway(cli: Cli) -> None:
    """Every group of commands answers on an empty home, in words and as JSON."""
    assert "$12.50" in cli("budgets", "set", "project:acme/web", "12.5", "--window", "day")
    (budget,) = cli.json("budgets", "list")
    assert (budget["scope"], budget["limit_usd"]) == ("project:acme/web", "12.5")
    assert "project:acme/web" in cli("budgets", "list")
    assert "60 rpm" in cli("budgets", "set", "project:acme/web", "--rpm", "60")
    told = cli("budgets", "set", "project:acme/web", "--on-exhausted", "degrade:embed", "--degrade-at", "0.9")
    assert "degrade:embed at 0.9" in told
    (budget,) = cli.json("budgets", "list")
    assert (budget["limit_usd"], budget["rpm"], budget["window"]) == ("12.5", 60, "day")
    assert "$12.50" not in cli("budgets", "set", "project:acme/web", "none", "--tpm", "9")
    assert "rate" in cli("budgets", "list")
    cli("budgets", "retire", "project:acme/web")
    assert cli.json("budgets", "list") == []
    cli("budgets", "set", "org", code=1)
    cli("budgets", "set", "org", "--rpm", "lots", code=2)
    cli("budgets", "set", "planet:x", "1", code=1)
    assert "unknown scope" in cli.err
    assert "$0.15 in" in cli("prices", "set", "lab/qwen", "0.15", "0.6")
    assert {"local/demo", "lab/qwen"} <= {row["model"] for row in cli.json("prices", "show")["data"]}
    assert "lab/qwen" in cli("prices", "show", "lab/qwen")
    assert "has a price" in cli("prices", "check")
    assert cli.json("usage", "--by", "team")["total"]["requests"] == 0
    assert "total" in cli("usage")
    cli("usage", "--by", "colour", code=1)
    assert cli.json("cache", "stats")["total"]["entries"] == 0
    assert "nothing judged" in cli("cache", "stats")
    assert cli.json("cache", "search", "words") == []
    assert "0 kept answers" in cli("cache", "purge", "--everything")
    cli("cache", "explain", "nope", code=1)
    assert "no request" in cli.err
    assert cli.json("ledger", "verify") == {"agrees": True, "problems": []}


def test_reconcile_compares_with_a_bill(cli: Cli, tmp_path: Path) -> None:
    """A call on the bill that the books do not know must not pass."""
    bill = tmp_path / "bill.jsonl"
    bill.write_text(
        '{"id":"c","model":"m","prompt_tokens":1,"completion_tokens":1,"ended":"complete","attempt":"a.1"}\n'
    )
    cli("ledger", "reconcile", "--bill", str(bill), code=1)
    assert cli.json("ledger", "reconcile", "--bill", str(bill), code=1)["calls"] == 1
    cli("ledger", "reconcile", "--bill", str(tmp_path / "none"), code=1)
    assert "cannot read" in cli.err


def test_months_are_closed_and_exported(cli: Cli, tmp_path: Path) -> None:
    """What finance does at the end of a month, without a gateway that runs."""
    assert [row["state"] for row in cli.json("months")] == ["running"]
    sealed = cli.json("close", "2026-01")
    assert (sealed["state"], sealed["spent_usd"]) == ("sealed", "0")
    assert "sealed" in cli("months")
    cli("close", "2026-01", code=1)
    assert "closed already" in cli.err
    cli("close", "january", code=1)
    for form in ("csv", "parquet"):
        file = tmp_path / f"focus.{form}"
        assert str(file) in cli("export", "focus", "--month", "2026-01", "--format", form, "--output", str(file))
        assert file.read_bytes().startswith(b"PAR1" if form == "parquet" else b"AvailabilityZone,BilledCost,")
    cli("export", "focus", "--month", "soon", "--output", str(tmp_path / "none"), code=1)
    assert not list(tmp_path.glob("none*"))
    for what in ("entries", "usage", "requests"):
        cli("export", what, "--output", str(tmp_path / what))
        assert (tmp_path / what).stat().st_size > 0
    cli("export", "statement", "--month", "2026-01", "-o", str(tmp_path / "s.csv"))
    assert (tmp_path / "s.csv").read_text().startswith("team,kind,name,")
    cli("ledger", "adjust", "nothing", "1", "--reason", "none", code=1)
    assert "there is no entry" in cli.err
    bill = tmp_path / "invoice.csv"
    bill.write_text("day,model,amount\n2026-01-05,gpt-5,2.50\n")
    told = cli("ledger", "invoice", "openai", "--file", str(bill), code=1)
    assert "unexplained" in told
    assert "the ledger has nothing of 'openai' on these days" in told  # a mistyped name looks like a bill for nothing
    assert "compared: 2026-01-05 to 2026-01-05" in told
    assert cli.json("ledger", "invoice", "openai", "--file", str(bill), "--tolerance", "1")["agrees"]


def test_the_schema_is_told_and_brought_up_to_date(cli: Cli) -> None:
    """An operator upgrades before the new version serves."""
    assert cli.json("db", "current", code=1)["current"] is None
    assert "at revision" in cli("db", "upgrade")
    found = cli.json("db", "current")
    assert found["current"] == found["head"]


def test_the_configuration_says_where_each_value_comes_from(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first question when a setting seems to be ignored."""
    Path("nearhit.yaml").write_text(
        'server: {port: 9001}\nproviders:\n  lab: {kind: openai, api_key: "secret-in-file"}\n'
    )
    monkeypatch.setenv("NEARHIT_CACHE__MODE", "exact")
    monkeypatch.setenv("OPENAI_API_KEY", "secret-in-environment")
    monkeypatch.setenv("NEARHIT_SERVER__HOST", "")
    rows = {row["name"]: row for row in cli.json("config", "show")}
    assert (rows["server.port"]["value"], rows["server.port"]["source"]) == (9001, "file nearhit.yaml")
    assert rows["cache.mode"]["source"] == "environment NEARHIT_CACHE__MODE"
    assert rows["server.host"]["source"] == "default"
    assert rows["providers.openai.kind"]["source"] == "environment OPENAI_API_KEY"
    assert rows["home"]["source"] == "flag --home"
    assert "secret-in" not in cli("config", "show")
    assert rows["providers.lab.api_key"]["value"] == "***"
    assert "valid" in cli("config", "check")
    Path("nearhit.yaml").write_text("server: {prot: 9001}\n")
    cli("config", "check", code=1)
    assert "server.prot" in cli.err
    assert "properties" in msgspec.json.decode(cli("config", "schema", home=False))


def test_no_credential_is_shown_wherever_it_was_written(cli: Cli) -> None:
    """Operators of every team read the settings on a page: headers, keys in addresses and of kinds stood there."""
    Path("nearhit.yaml").write_text(
        "telemetry: {otlp: 'http://u:canary1@127.0.0.1:4318/v1/traces?api_key=canary2&site=eu'}\n"
        "providers:\n"
        "  lab: {kind: openai, api_keys: [canary3, canary4], headers: {X-Auth: canary5, X-Title: ours},\n"
        "        base_url: 'http://127.0.0.1:1/v1?token=canary6', organization: acme}\n"
        "  bed: {kind: bedrock, secret_access_key: canary7, replicas: ['http://u:canary8@127.0.0.1:1']}\n"
    )
    assert "canary" not in cli("config", "show")
    rows = {row["name"]: row["value"] for row in cli.json("config", "show")}
    assert "canary" not in str(rows)
    assert rows["telemetry.otlp"] == "http://u:***@127.0.0.1:4318/v1/traces?api_key=***&site=eu"
    assert rows["providers.lab.organization"] == "acme"
    assert rows["providers.lab.api_keys"] == "***"
    assert rows["providers.bed.api_keys"] == []
    started = Ready(url="http://x", seconds=0.0, api_key=None, admin_key=None)
    [told] = [line for line in banner(load(), started).splitlines() if "  traces " in line]
    assert "canary" not in told


def test_a_new_configuration_is_valid_and_never_overwritten(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `init` writes must start, and must not eat what somebody wrote."""
    cli("init", home=False)
    assert "valid" in cli("config", "check")
    cli("init", code=1, home=False)
    cli("init", "--force", "--port", "8090", "--upstream", "http://127.0.0.1:8000/v1", "--model", "qwen", home=False)
    rows = {row["name"]: row["value"] for row in cli.json("config", "show")}
    assert rows["server.port"] == 8090
    assert rows["models.chat.route"] == ["lab/qwen", "local/demo"]
    cli("init", "--force", "--upstream", "http://127.0.0.1:1/v1", code=1, home=False)


def test_the_doctor_names_the_mend(cli: Cli) -> None:
    """A check that only says `failed` sends people to search the web."""
    cli("keys", "create", "x")
    cli.home.chmod(0o755)
    findings = {row["name"]: row for row in cli.json("doctor", code=1)}
    assert findings["data folder"]["good"] is False
    assert findings["data folder"]["mend"].startswith("chmod 700")
    assert findings["database"]["good"] is True
    assert findings["books"]["good"] is True
    assert "mend: chmod 700" in cli("doctor", code=1)


def test_a_home_in_use_is_left_alone(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes writing one SQLite file is how data is lost."""
    monkeypatch.setattr(connection, "_STARTING_SECONDS", 0.5)  # nobody is starting here
    from gateway.serve_home import lock

    cli("keys", "create", "x")
    import os

    held = lock(cli.home)
    try:
        cli("keys", "list", code=1)
        assert "in use" in cli.err
    finally:
        os.close(held)
    assert not running(Settings(home=cli.home))


def test_version_and_try_without_a_gateway(cli: Cli) -> None:
    """Both are what a newcomer types first."""
    assert cli("version", home=False).startswith("nearhit ")
    assert msgspec.json.decode(cli("version", "--json", home=False))["nearhit"]
    cli("try", "hello", code=1)
    assert "nearhit serve" in cli.err
    cli("try", code=2)


def test_a_whole_price_from_flags_and_from_a_file(cli: Cli, tmp_path: Path) -> None:
    """A contract is set in one line or from a file, and the tools that rest on it answer without a running gateway."""
    tiers, hours = ("--tier", "200000=200%", "--tier", "400000=5/20"), ("--hours", "sat,sun@00:00-24:00=50%")
    flags = ("--cached-usd", "0.2", "--reasoning-usd", "9", "--service", "batch=50%", "--effective-from", "2026-01-01")
    made = cli.json("prices", "set", "lab/qwen", "1", "8", *tiers, *hours, *flags)
    assert [tier["above"] for tier in made["tiers"]] == [200_000, 400_000]
    assert (made["rates"]["reasoning_usd"], made["service"], made["hours"][0]["days"]) == (
        "9",
        {"batch": "50"},
        "sat,sun",
    )
    terms = tmp_path / "terms.json"
    terms.write_text('{"input_usd": "3", "output_usd": "4", "tiers": [{"above": 10, "percent": 300}]}')
    told = cli("prices", "set", "lab/file", "--file", str(terms), "--request-usd", "0.01")
    assert "$3 in" in told
    assert "prompts above 10: 9 in" in told
    assert "sat,sun 00:00-24:00 UTC" in cli("prices", "show", "lab/qwen")
    cli("prices", "set", "lab/x", "1", "1", "--tier", "lots=50%", code=1)
    cli("prices", "set", "lab/x", "1", "1", "--hours", "8-9=50%", code=1)
    cli("prices", "set", "lab/x", "1", code=1)
    assert "output_usd" in cli.err


def test_a_price_to_come_is_told_with_its_dates(cli: Cli) -> None:
    """The example of docs/prices.md was answered with the price of its first night, called the one of now."""
    hours, dates = ("--hours", "00:00-24:00=50%"), ("--effective-from", "2097-01-01", "--effective-until", "2098-01-01")
    told = cli("prices", "set", "openai/gpt-5", "4", "8", *hours, *dates)
    assert "$4 in, $8 out" in told
    assert "(now)" not in told
    assert "from 2097-01-01T00:00:00Z, until 2098-01-01T00:00:00Z" in told
    told = cli("prices", "show", "openai/gpt-5")
    assert "another price, set already, from 2097-01-01T00:00:00Z" in told


def test_an_engine_is_priced_by_its_benchmark(cli: Cli, tmp_path: Path) -> None:
    """What `engine bench` printed becomes the price, and break-even and the calculator follow."""
    bench = tmp_path / "bench.txt"
    bench.write_text('model: demo\n{"prefill_tokens_per_s": 2000.0, "decode_tokens_per_s": 100.0}\n')
    assert "(measured)" in cli("prices", "engine", "--bench", str(bench), "--hour-usd", "3.60")
    even = cli.json("prices", "breakeven", "--prompt", "1000", "--completion", "100")
    assert (even["status"], even["day_usd"]) == ("measured", "86.4")
    assert "cheaper from" in cli("prices", "breakeven", "--models", "openai/gpt-5-mini")
    use = ("--prompt", "1000", "--completion", "100", "--requests", "1000")
    assert "as hardware: 1 engine(s)" in cli("prices", "calculate", "local/demo", *use)
    cli("prices", "engine", code=1)
    assert "--bench" in cli.err
    bench.write_text("not a result")
    cli("prices", "engine", "--bench", str(bench), code=1)


def test_charges_are_recomputed_and_a_month_replayed(cli: Cli, tmp_path: Path) -> None:
    """`recompute` proves every charge, `whatif` tells another month, `coverage` what both rest on."""
    assert "0 charges follow" in cli("usage", "recompute", "--check")
    assert cli.json("usage", "recompute", "--month", "2026-10")["agrees"] is True
    cli("usage", "recompute", "--month", "October", code=1)
    assert "confirmed" in cli("usage", "coverage")
    prices = tmp_path / "prices.json"
    prices.write_text('{"lab/m": {"input_usd": 1, "output_usd": 2}}')
    told = cli("usage", "whatif", "--month", "2026-10", "--prices", str(prices), "--model", "lab/a=lab/m")
    assert {"never asked in that time: lab/a", "never asked in that time: lab/m"} <= set(told.splitlines())
    cli("usage", "whatif", "--model", "lab/a", code=1)
    assert "openai/gpt-5=openai/gpt-5-mini" in cli.err


def test_a_command_waits_for_a_gateway_that_is_just_starting(tmp_path: Path) -> None:
    """The port answers before the admin socket does: `nearhit prices set` right then must not be turned away."""
    home = tmp_path / "home"
    (home / "run").mkdir(parents=True)
    held = lock(home)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def later() -> None:
        time.sleep(0.4)
        listening.bind(str(home / "run" / "admin.sock"))
        listening.listen()

    starting = threading.Thread(target=later)
    starting.start()
    try:
        assert connection._reached(Settings(home=home))
    finally:
        starting.join()
        listening.close()
        os.close(held)
    assert not connection._reached(Settings(home=home))  # nobody holds it any more: no waiting
