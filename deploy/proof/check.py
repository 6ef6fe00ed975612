"""Asks the running stack what docs/containers.md promises: two gateways, one PostgreSQL, one Redis.

    check.py PORT_A PORT_B CONTAINER_A CONTAINER_B         NEARHIT_ADMIN_KEY in the environment

Standard library only, because it runs outside of any environment. Ends with 1 at the first thing that does not hold.
"""

# ruff: noqa: INP001, T201, S310, S603, S607, TID251 - a script: prints, talks to loopback, runs podman, reads its environment

import concurrent.futures
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from decimal import Decimal
from typing import Any

QUESTION = "What is time to first token?"
PARAPHRASES = (
    "Please tell me: what is time to first token?",
    "Can you tell me what time to first token is?",
    "Could you please tell me what is time to first token?",
)
PATIENCE = 120.0
BUDGET_NEWS = 10.0  # a gateway looks for limits set by others every few seconds


class Answer:
    """One reply, read whole; header names in lower case."""

    def __init__(self, status: int, headers: dict[str, str], raw: bytes) -> None:
        self.status, self.headers, self.raw = status, headers, raw

    @property
    def json(self) -> Any:
        return json.loads(self.raw)  # no msgspec here: this runs outside of any environment

    @property
    def mark(self) -> str:
        return self.headers.get("x-nearhit-cache", "")


class Gateway:
    """One of the two, by its port and the name of its container."""

    def __init__(self, port: str, container: str) -> None:
        self.base, self.container = f"http://127.0.0.1:{port}", container

    def call(self, method: str, path: str, key: str, body: object = None, **headers: str) -> Answer:
        raw = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named |= {"authorization": f"Bearer {key}", "content-type": "application/json"}
        request = urllib.request.Request(self.base + path, data=raw, method=method, headers=named)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return Answer(reply.status, {k.lower(): v for k, v in reply.headers.items()}, reply.read())
        except urllib.error.HTTPError as error:
            return Answer(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())

    def ask(
        self, key: str, question: str, model: str = "local/demo", *, max_tokens: int | None = None, **headers: str
    ) -> Answer:
        body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": question}]}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        return self.call("POST", "/v1/chat/completions", key, body, **headers)

    def ready(self) -> bool:
        try:
            return self.call("GET", "/health/ready", "").status == 200
        except OSError:
            return False

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["podman", "exec", self.container, *command], capture_output=True, text=True, check=False, timeout=60
        )


def expect(what: str, held: bool, seen: object = "") -> None:
    print(f"{'ok  ' if held else 'FAIL'} {what}{f'   [{seen}]' if seen != '' else ''}", flush=True)
    if not held:
        sys.exit(1)


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.5)
    return condition()


def locked_down(gateway: Gateway) -> None:
    """What the Dockerfile and the compose file promise about the container."""
    user = gateway.run("id", "-u").stdout.strip()
    expect(f"{gateway.container} runs as a user without rights", user == "10001", user)
    written = gateway.run("sh", "-c", "touch /opt/nearhit/x || touch /x || touch /etc/x")
    expect("its root cannot be written", written.returncode != 0, written.stderr.strip().splitlines()[-1:])
    expect("its data folder can", gateway.run("touch", "/data/probe").returncode == 0)
    caps = gateway.run("sh", "-c", "grep CapEff /proc/1/status").stdout.split()[-1:]
    expect("it has no capabilities", caps == ["0000000000000000"], caps)


def new_key(gateway: Gateway, admin: str, team: str) -> str:
    made = gateway.call("POST", "/api/v1/keys", admin, {"name": "proof", "team": team, "project": "proof"})
    expect(f"a key of team {team} is made", made.status < 300, made.status if made.status < 300 else made.raw[:300])
    return made.json["key"]


def shared_cache(a: Gateway, b: Gateway, key: str) -> None:
    first = a.ask(key, QUESTION)
    expect(
        "A answers a first question itself", first.status == 200 and first.mark == "miss", (first.status, first.mark)
    )
    [choice] = first.json["choices"]
    said = choice["message"]["content"]
    print(f"     {choice['finish_reason']}: {said}")
    again: list[Answer] = []

    def same_on_b() -> bool:
        again.append(b.ask(key, QUESTION))
        return again[-1].mark == "hit-exact"

    hit = until(same_on_b, 20)
    expect("the same question is an exact hit on B", hit, again[-1].headers.get("cache-status"))
    # On a machine that builds images beside, an embedding may come later than a request waits for one: then others.
    told = [b.ask(key, text) for text in PARAPHRASES]
    like = next((one for one in told if one.mark == "hit-semantic"), told[0])
    near = f"{like.headers.get('cache-status')}, similarity {like.headers.get('x-nearhit-cache-similarity')}"
    expect("a paraphrase is a semantic hit on B", like.mark == "hit-semantic", near)
    expect("with the same answer", like.json["choices"][0]["message"]["content"] == said)
    expect(
        "that costs nothing", Decimal(like.headers["x-nearhit-cost-usd"]) == 0, like.headers.get("x-nearhit-saved-usd")
    )


def shared_budget(a: Gateway, b: Gateway, admin: str) -> None:
    """A limit set through A holds on B, and both together, under load, never spend more than it."""
    key = new_key(a, admin, "spender")

    def spend(number: int) -> Answer:
        return (a, b)[number % 2].ask(key, f"What is batching? {number}", max_tokens=24, cache_control="no-store")

    once = max(Decimal(spend(number).headers["x-nearhit-cost-usd"]) for number in range(4))
    limit = once * 30
    asked = {"limit_usd": f"{limit:f}", "window": "total", "timezone": "UTC", "mode": "hard"}
    set_to = a.call("PUT", "/api/v1/budgets/team:spender", admin, asked)
    expect("a hard budget is set through A", set_to.status < 300, limit if set_to.status < 300 else set_to.raw[:300])
    time.sleep(BUDGET_NEWS)
    before = Decimal(budget(a, admin)["spent_usd"])
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(spend, range(120)))
    paid = sum(Decimal(answer.headers["x-nearhit-cost-usd"]) for answer in answers if answer.status == 200)
    by_b = [answer.status for answer in answers[1::2]]
    counted = {status: sum(answer.status == status for answer in answers) for status in (200, 429)}
    expect("120 requests at both: some answered, the rest refused", sum(counted.values()) == 120, counted)
    expect("B answered some and refused some", 200 in by_b and 429 in by_b)
    refusal = next(answer for answer in answers[1::2] if answer.status == 429).json["error"]
    expect("a refusal says so in OpenAI's words", refusal["code"] == "insufficient_quota", refusal["message"])
    expect("what was paid for stays within the limit", before + paid <= limit, f"{before} + {paid} of {limit}")
    for gateway in (a, b):
        settled = until(lambda gateway=gateway: Decimal(budget(gateway, admin)["spent_usd"]) == before + paid, 30)
        expect(f"{gateway.container} shows exactly that", settled, budget(gateway, admin)["spent_usd"])


def budget(gateway: Gateway, admin: str) -> dict[str, Any]:
    rows = gateway.call("GET", "/api/v1/budgets", admin).json["data"]
    return next(row for row in rows if row["scope"] == "team:spender")


def mock_upstream(a: Gateway, key: str) -> None:
    reply = a.ask(key, "a bill, please", model="mock", x_nearhit_cache="off")
    expect(
        "the mock upstream answers through A",
        reply.status == 200,
        reply.headers.get("x-nearhit-provider", reply.raw[:300]),
    )
    expect("it is known as free", Decimal(reply.headers["x-nearhit-cost-usd"]) == 0)


def survives(a: Gateway, key: str) -> None:
    """kill -9, start again: keys, cache and ledger are in the services, not in the container."""
    subprocess.run(["podman", "kill", "--signal", "KILL", a.container], check=True, capture_output=True, timeout=60)
    subprocess.run(["podman", "start", a.container], check=True, capture_output=True, timeout=60)
    expect("A is ready again after kill -9", until(a.ready))
    told: list[Answer] = []

    def looked_up() -> bool:
        told.append(a.ask(key, QUESTION))
        return told[-1].mark != "bypass"

    # What Redis holds is served once it has been heard what was purged meanwhile; until then it is bypassed.
    until(looked_up, 10)
    there = told[-1].mark == "hit-exact"
    expect("its key and its cache are still there", there, told[-1].headers.get("cache-status"))


def drains(b: Gateway) -> None:
    subprocess.run(["podman", "stop", "--time", "60", b.container], check=True, capture_output=True, timeout=90)
    shown = subprocess.run(
        ["podman", "inspect", b.container, "--format", "{{.State.ExitCode}}"],
        check=True,
        capture_output=True,
        text=True,
    )
    expect("B ends by itself on SIGTERM", shown.stdout.strip() == "0", shown.stdout.strip())


def main() -> None:
    a, b = Gateway(sys.argv[1], sys.argv[3]), Gateway(sys.argv[2], sys.argv[4])
    admin = os.environ["NEARHIT_ADMIN_KEY"]
    expect("both gateways are ready", until(a.ready) and until(b.ready))
    locked_down(a)
    key = new_key(a, admin, "proof")
    expect("a key made through A is known to B", b.call("GET", "/v1/models", key).status == 200)
    expect("an unknown key is not", b.call("GET", "/v1/models", "sk-nh-nobody").status == 401)
    shared_cache(a, b, key)
    mock_upstream(a, key)
    shared_budget(a, b, admin)
    survives(a, key)
    counted = b.call("GET", "/metrics", admin).raw.decode()
    expect("B counts what it did", 'nearhit_requests_total{cache="hit-semantic"' in counted)
    drains(b)
    print("everything held")


if __name__ == "__main__":
    main()
