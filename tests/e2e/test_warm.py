"""`nearhit cache warm` and `nearhit cache tune` against a running gateway, as an operator runs them."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from tests.e2e.process import Process, new_key, serving_lightly

CONFIG = """
engines: {local: {model: sim}}
cache: {mode: exact, store: memory}
ledger: {max_output_tokens: 64}
"""


class House:
    """A gateway with the exact tier, one application's key, and the warm command on a file of ours."""

    def __init__(self, process: Process, file: Path) -> None:
        self.process = process
        self.file = file
        self.key = new_key(process)

    def ask(self, text: str, key: str | None = None) -> httpx.Response:
        body = {"model": "chat", "messages": [{"role": "user", "content": text}]}
        headers = {"authorization": f"Bearer {key or self.key}"}
        return httpx.post(f"{self.process.url}/v1/chat/completions", json=body, headers=headers, timeout=30)

    def warm(self, *arguments: str, code: int = 0) -> Any:
        done = self.process.run("cache", "warm", *arguments, "--key", self.key, "--json")
        assert done.returncode == code, done.stdout + done.stderr
        return msgspec.json.decode(done.stdout)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generator[House, None, None]:
    folder = tmp_path_factory.mktemp("warm")
    with serving_lightly(folder / "home", config=CONFIG) as process:
        yield House(process, folder / "w.jsonl")


def test_a_warmed_gateway_answers_from_the_first_request_on(house: House) -> None:
    """Planted and asked answers serve the key they were warmed for and nobody else; a run goes on where it stopped."""
    house.file.write_text('{"prompt": "who are you?", "answer": "The house."}\n{"prompt": "asked?"}\noops\n')
    told = house.warm(str(house.file), code=1)
    assert (told["planted"], told["asked"], [bad["number"] for bad in told["bad"]]) == (1, 1, [3])
    hit = house.ask("who are you?")
    assert hit.headers["x-nearhit-cache"] == "hit-exact"
    assert hit.json()["choices"][0]["message"]["content"] == "The house."
    assert float(hit.headers["x-nearhit-saved-usd"]) > 0
    assert house.ask("asked?").headers["x-nearhit-cache"] == "hit-exact"
    assert house.ask("who are you?", new_key(house.process, "zeta")).headers["x-nearhit-cache"] == "miss"
    again = house.warm(str(house.file), code=1)
    assert (again["done_before"], again["planted"], again["asked"]) == (2, 0, 0)
    house.file.write_text('{"prompt": "who are you?", "answer": "The house."}\n{"prompt": "asked?"}\n')
    assert house.warm(str(house.file))["done_before"] == 2
    assert house.warm(str(house.file))["planted"] == 1


def test_what_was_asked_most_is_asked_again_within_the_cap(house: House) -> None:
    """Money is spent on purpose here, so the cap must hold to the nano, also when it is too small for anything."""
    house.ask("asked often?")
    house.ask("asked often?")
    told = house.warm("--from-log", "7d", "--max-usd", "1")
    assert told["asked"] >= 1
    assert told["kept_before"] == 0
    assert 0 < float(told["cost_usd"]) <= 1
    little = house.warm("--from-log", "7d", "--max-usd", "0.000000001", code=1)
    assert (little["asked"], little["cost_usd"]) == (0, "0")
    assert "cap" in little["stopped"]
    house.process.run("cache", "warm", "--from-log", "7d")


def test_only_an_operator_plants_and_only_what_may_be_kept(house: House) -> None:
    """Whoever can plant an answer can put words into the gateway's mouth."""
    body = {"key": house.key, "model": "chat", "prompt": "x", "answer": "y"}
    url = f"{house.process.url}/api/v1/cache/plant"
    mine = {"authorization": f"Bearer {house.key}"}
    admin = {"authorization": "Bearer sk-e2e-admin-key-long-enough"}
    assert httpx.post(url, json=body, headers=mine, timeout=10).status_code == 403
    assert httpx.post(url, json={**body, "key": "sk-nh-none"}, headers=admin, timeout=10).status_code == 401
    assert httpx.post(url, json={**body, "model": "none/such"}, headers=admin, timeout=10).status_code == 404
    assert httpx.post(url, json={**body, "messages": []}, headers=admin, timeout=10).status_code == 400
    assert httpx.post(url, json={**body, "answer": ""}, headers=admin, timeout=10).status_code == 400
    planted = httpx.post(url, json=body, headers=admin, timeout=10).json()["entry"]
    log = httpx.get(f"{house.process.url}/api/v1/audit?action=cache.plant&limit=1", headers=admin, timeout=10).json()
    [row] = log["data"]
    assert (row["actor"], row["target"], row["after"]["model"]) == ("admin", str(planted), "chat")


def test_a_wrong_call_says_what_is_missing(house: House) -> None:
    """Exit code 2 before a cent is spent."""
    for arguments in (
        [],
        ["--from-log", "7d"],
        [str(house.file), "--at-once", "0"],
        [str(house.file), "--max-usd", "x"],
    ):
        assert house.process.run("cache", "warm", *arguments).returncode == 2
    assert house.process.run("cache", "warm", "no-such-file").returncode == 1


def test_tune_tells_how_little_it_knows(house: House) -> None:
    """Other budgets over a log with nothing judged: figures, and the warning that they are estimates."""
    house.ask("what is a budget?")
    done = house.process.run("cache", "tune", "--budget", "0.5%", "--budget", "0.02", "--json")
    told = msgspec.json.decode(done.stdout)
    assert [row["max_error_rate"] for row in told["data"]] == [0.005, 0.02]
    assert told["requests"] >= told["explained"] > 0
    assert told["judged"] == 0
    assert any("judged" in warning for warning in told["warnings"])
    shown = house.process.run("cache", "tune").stdout
    assert "as it was" in shown
    assert house.process.run("cache", "tune", "--budget", "much").returncode == 2
