"""`nearhit serve` as its users run it: a process, the official OpenAI client, and kill -9."""

import asyncio
import concurrent.futures
import os
import signal
import subprocess
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from tests.e2e.process import NEARHIT, PATIENCE, Process, nearhit_apart, new_key, scripted, serving, serving_lightly
from tests.services import spare_port

ADMIN = {"authorization": "Bearer sk-e2e-admin-key-long-enough"}


class Served:
    """A ready gateway and an official client of it."""

    def __init__(self, process: Process, team: str = "acme") -> None:
        self.process = process
        self.key = new_key(process, team)
        self.client = openai.OpenAI(base_url=f"{process.url}/v1", api_key=self.key, max_retries=0, timeout=30)

    def ask(self, text: str, **more: Any) -> Any:
        """One question; the raw response, whose `.headers` say what the cache did."""
        return self.client.chat.completions.with_raw_response.create(
            model="chat", messages=[{"role": "user", "content": text}], **more
        )

    def mark(self, text: str, **more: Any) -> str:
        mark: str = self.ask(text, **more).headers["x-nearhit-cache"]
        time.sleep(0.3)  # what was kept must have reached the index
        return mark


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Generator[Served, None, None]:
    """One gateway with its encoder for the whole module: loading the encoder takes seconds."""
    # The encoder shares two cores with the tests: patience here says nothing about its usual speed.
    config = "engines: {local: {model: sim}}\ncache: {embed_timeout: 5s}\n"
    with serving(tmp_path_factory.mktemp("home"), config=config) as process:
        yield Served(process)


def test_the_official_client_is_answered_whole_and_streamed(served: Served) -> None:
    """An app swaps its base URL and nothing else."""
    whole = served.client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "Say hello"}])
    assert whole.usage is not None
    assert whole.usage.total_tokens > 0
    assert whole._request_id
    stream = served.client.chat.completions.create(
        model="chat",
        messages=[{"role": "user", "content": "Count from 1 to 9"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    usages = [chunk.usage for chunk in stream]
    assert usages[-1] is not None
    assert not any(usages[:-1])


@pytest.mark.parametrize(
    ("question", "paraphrase"),
    [
        ("What is time to first token?", "What does time to first token mean?"),
        ("How can I cancel my subscription?", "What's the way to cancel my subscription?"),
    ],
)
def test_a_paraphrase_is_a_semantic_hit(served: Served, question: str, paraphrase: str) -> None:
    """What the product is for, with the real encoder and the shipped policy, from a tenant's first request on."""
    tenant = Served(served.process, team=f"newcomer {len(question)}")
    assert tenant.mark(question) == "miss"
    told = tenant.ask(paraphrase)
    assert told.headers["x-nearhit-cache"] == "hit-semantic", told.headers["cache-status"]
    assert float(told.headers["x-nearhit-cache-similarity"]) > 0.8
    assert told.headers["x-nearhit-cost-usd"] == "0"


@pytest.mark.parametrize(
    ("question", "near"),
    [
        ("Where do I find invoice 48213?", "Where do I find invoice 48214?"),
        ("How do I enable dark mode in the app?", "How do I disable dark mode in the app?"),
        ("Can I cancel my order after it has shipped?", "Can I not cancel my order after it has shipped?"),
        ("Who is Alice Cooper?", "Who is Bob Cooper?"),
    ],
)
def test_a_near_miss_is_never_served(served: Served, question: str, near: str) -> None:
    """Another number, a negation, another name: nearer than most paraphrases, and a different answer."""
    assert served.mark(question) == "miss"
    assert served.mark(near) == "miss"


def test_embeddings_come_from_the_bundled_encoder_in_both_encodings(served: Served) -> None:
    """The official client asks for base64 by default; the numbers must be the same either way."""
    packed = served.client.embeddings.create(model="embed", input=["a", "b"])
    plain = served.client.embeddings.create(model="local/minilm", input=["a", "b"], encoding_format="float")
    assert len(packed.data[0].embedding) == 384
    assert packed.data[1].index == 1
    for one, two in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(two.embedding, abs=1e-5)


def test_errors_are_the_clients_own_exceptions(served: Served) -> None:
    """Apps catch these classes; a wrong status would make the client retry or crash."""
    with pytest.raises(openai.NotFoundError) as unknown:
        served.client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "x"}])
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        served.ask("x", temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{served.process.url}/v1", api_key="sk-wrong", max_retries=0).models.list()


def test_the_models_page_lists_what_can_be_asked_for(served: Served) -> None:
    """Chat front ends fill their menus from it."""
    names = [model.id for model in served.client.models.list()]
    assert {"chat", "embed", "local/sim", "local/minilm"} <= set(names)
    assert served.client.models.retrieve("local/sim").id == "local/sim"


def test_usage_on_the_command_line_agrees_with_the_api(served: Served) -> None:
    """Two views of one ledger must never differ."""
    served.ask("Will this be counted?")
    time.sleep(1.0)
    api = httpx.get(f"{served.process.url}/api/v1/usage?group_by=team", headers=ADMIN, timeout=10).json()
    shown = nearhit_apart(served.process.home, "usage", "--json")
    assert shown.returncode == 0, shown.stderr
    assert api["data"], api
    assert "acme" in shown.stdout


@pytest.mark.parametrize("lost", ["revoke", "rotate"])
def test_try_makes_itself_another_key(served: Served, lost: str) -> None:
    """Its own was revoked on the keys page; from then on the first command of the README said 401 for ever."""
    run = served.process.run
    assert run("try", "Is this asked?").returncode == 0
    rows = msgspec.json.decode(run("keys", "list", "--json").stdout)
    own, *_ = [row["id"] for row in rows if row["name"] == "nearhit try"]
    assert run("keys", lost, own).returncode == 0
    again = run("try", "Is this asked?")
    assert again.returncode == 0, again.stderr


def test_a_demo_leaves_what_lasts_alone(tmp_path: Path) -> None:
    """It promised to leave nothing behind, and wrote into the database that the nearhit.yaml beside it named."""
    (tmp_path / "nearhit.yaml").write_text("database: postgresql://nearhit@127.0.0.1:1/theirs\n")
    (tmp_path / "secret").write_text("postgresql://nearhit@127.0.0.1:1/theirs")
    told = {"NEARHIT_REDIS": "redis://127.0.0.1:1/0", "NEARHIT_CACHE__STORE": "redis"}
    told |= {"NEARHIT_DATABASE_FILE": str(tmp_path / "secret")}  # as containers hand it over
    port = spare_port()
    demo = Process([str(NEARHIT), "demo", "--port", str(port)], tmp_path, port, **told)
    try:
        demo.wait()
        assert demo.stop() == 0
    finally:
        demo.kill()
    assert not Path(demo.log.read_text().split(" is in ")[1].split(" and goes")[0]).exists()


def test_a_dead_encoder_costs_meaning_not_answers_and_comes_back(served: Served) -> None:
    """The encoder is a process of its own so that its death is a miss, and the supervisor starts it again."""
    found = subprocess.run(
        ["pgrep", "-f", f"cache.encoder --socket {served.process.home}"], capture_output=True, text=True, check=True
    )
    os.kill(int(found.stdout.split()[0]), signal.SIGKILL)
    assert served.ask("Is anybody there while the encoder is gone?").headers["x-nearhit-cache"] == "miss"
    end = time.monotonic() + PATIENCE
    while not _embeds(served):  # ready it is all the time: what is down is only told there
        assert time.monotonic() < end, "the encoder did not come back"
        time.sleep(0.1)


def _embeds(served: Served) -> bool:
    try:
        served.client.with_options(max_retries=0).embeddings.create(model="embed", input="Are you there?")
    except openai.InternalServerError:
        return False
    return True


def test_after_kill_9_the_cache_and_the_ledger_are_there(tmp_path: Path) -> None:
    """A power cut must lose neither an answer that was kept nor a cent that was spent."""
    config = "engines: {local: {model: sim}}\ncache: {mode: exact}\n"
    with serving_lightly(tmp_path / "home", config=config) as process:
        client = Served(process)
        assert client.mark("Will you remember me?") == "miss"
        time.sleep(0.7)
        before = httpx.get(f"{process.url}/api/v1/usage?group_by=team", headers=ADMIN, timeout=10).json()
        process.kill()
    with serving_lightly(tmp_path / "home", config=config) as process:
        again = openai.OpenAI(base_url=f"{process.url}/v1", api_key=client.key, max_retries=0)
        told = again.chat.completions.with_raw_response.create(
            model="chat", messages=[{"role": "user", "content": "Will you remember me?"}]
        )
        assert told.headers["x-nearhit-cache"] == "hit-exact"
        after = httpx.get(f"{process.url}/api/v1/usage?group_by=team", headers=ADMIN, timeout=10).json()
        assert after["data"][0]["cost_usd"] == before["data"][0]["cost_usd"]
        verified = process.run("ledger", "verify")
        assert verified.returncode == 0, verified.stdout + verified.stderr


def _config(port: int) -> str:
    return (
        "engines: {local: {model: sim}}\n"
        "cache: {mode: exact}\n"
        "providers: {lab: {kind: openai, api_key: none, billing: BILLING, "
        f"base_url: 'http://127.0.0.1:{port}/v1'}}}}\n"
    )


async def _storm(url: str, key: str, calls: int) -> None:
    """Calls of every kind at once: whole, streamed, and hung up on at some point."""

    async def one(client: httpx.AsyncClient, n: int) -> None:
        body = {
            "model": "lab/scripted",
            "messages": [{"role": "user", "content": f"question {n}"}],
            "stream": n % 2 == 0,
            "max_tokens": 20,
        }
        patience = 0.02 * (n % 7) if n % 3 == 0 else 20.0
        try:
            async with asyncio.timeout(patience or 0.001):
                await client.post(f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})
        except (TimeoutError, httpx.HTTPError):
            pass

    async with httpx.AsyncClient(timeout=30, limits=httpx.Limits(max_connections=None)) as client:
        await asyncio.gather(*(one(client, n) for n in range(calls)))


@pytest.mark.parametrize(
    ("billing", "kill"),
    [  # each way of billing and of ending once in every run; the other two pairs are the proof's
        pytest.param("bills-anyway", False, id="clean-bills-anyway"),
        pytest.param("stops-on-close", True, id="kill-9-stops-on-close"),
        pytest.param("stops-on-close", False, id="clean-stops-on-close", marks=pytest.mark.proof),
        pytest.param("bills-anyway", True, id="kill-9-bills-anyway", marks=pytest.mark.proof),
    ],
)
def test_the_ledger_equals_the_providers_own_bill(tmp_path: Path, billing: str, kill: bool) -> None:
    """Cancels, failures, cuts and a kill -9: every billed call is in the books, exact where the count was told."""
    flag = "--stop-on-close" if billing == "stops-on-close" else "--bill-anyway"
    options = ("--ttft-ms", "5", "--tpot-ms", "2", "--fail-rate", "0.1", "--cut-rate", "0.1", flag)
    with scripted(tmp_path / "lab", *options) as lab:
        config = _config(lab.port).replace("BILLING", billing)
        with serving_lightly(tmp_path / "home", config=config) as process:
            priced = process.run("prices", "set", "lab/scripted", "1", "2", "--effective-from", "2026-01-01")
            assert priced.returncode == 0, priced.stderr
            key = new_key(process)
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                storm = pool.submit(asyncio.run, _storm(process.url, key, 120))
                if kill:
                    # few, for what the upstream refuses makes the gateway wait with all the others
                    while httpx.get(f"{lab.url}/stats", timeout=30).json()["calls"] < 12 and not storm.done():
                        time.sleep(0.01)
                    process.kill()
                storm.result(60)
            time.sleep(2.0)
        # Whoever starts next finds the journal of the dead and settles what was in doubt.
        with serving_lightly(tmp_path / "home", config=config) as process:
            told = process.run("ledger", "reconcile", "--bill", str(lab.home / "bill.jsonl"), "--json")
            assert told.returncode == 0, told.stdout + told.stderr
            assert process.run("ledger", "verify").returncode == 0
