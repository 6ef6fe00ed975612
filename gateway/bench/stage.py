"""The processes of `nearhit bench gateway`: two upstreams, the gateway with its encoder, a key and a budget.

Knows: settings of the measured gateway, which core each process runs on. Does not know: cases, figures.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
from msgspec import Struct

from gateway.bench.asks import Target
from gateway.bench.processes import BenchError, await_port, children, cores, memory_mb, pin_self, running, spare_port
from gateway.settings import environment

HOST = "127.0.0.1"
ADMIN_KEY = "sk-nh-admin-0123456789abcdef0123456789abcdef"
MODEL = "openai/gpt-4o-mini"
AT_ONCE = ("--tokens", "16")
PACED = ("--tokens", "51", "--ttft-ms", "20", "--tpot-ms", "5")
SAYING = ("--say", "So it was, is and will be, whatever anybody asks, on every day of every year.")


class Gateway(Struct, kw_only=True):
    """One `nearhit serve`: reached straight and through the paced upstream. `pids`: the worker, then the encoder."""

    plain: Target
    paced: Target
    pids: tuple[int, ...]
    port_s: float
    ready_s: float
    rss_start_mb: float


class Stage(Struct, kw_only=True):
    """The processes of a run. `exact` has no semantic tier, `semantic` has everything but a reader, `learned` that too.

    `floor` does nothing at all; `hop` syncs a record and asks the upstream (`gateway.bench.floor`).
    """

    direct: Target
    paced: Target
    floor: Target
    hop: Target
    exact: Gateway
    semantic: Gateway
    learned: Gateway

    def gateway(self, name: str) -> Gateway:
        """By its field's name."""
        return {"exact": self.exact, "semantic": self.semantic, "learned": self.learned}[name]


def peer(url: str) -> Target:
    """`http://host:port/v1?model=…&key=…&pid=…&name=…`; with a pid of this machine its CPU is measured too."""
    parts = urlsplit(url)
    if parts.hostname is None or parts.scheme != "http":
        raise BenchError(f"a peer is given as http://host:port/v1?model=…, not {url!r}")
    asked = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return Target(
        name=asked.get("name", parts.netloc),
        host=parts.hostname,
        port=parts.port or 80,
        path=parts.path.rstrip("/") or "/v1",
        model=asked.get("model", "gpt-4o-mini"),
        key=asked.get("key", "none"),
        pid=int(asked["pid"]) if "pid" in asked else None,
    )


def start(stack: ExitStack, folder: Path) -> Stage:
    """Both upstreams and both gateways. Raises BenchError when one does not come up."""
    ours, theirs, plain = _apart()
    direct = [_upstream(stack, folder, core=theirs, environment=plain, pace=pace) for pace in (AT_ONCE, PACED)]
    saying = _upstream(stack, folder, core=theirs, environment=plain, pace=SAYING)
    exact, semantic, learned = [
        _gateway(stack, folder, mode, _config(mode, upstreams), core=ours, environment=plain)
        for mode, upstreams in (("exact", direct), ("semantic", direct), ("learned", [saying, direct[1]]))
    ]
    floor, hop = [
        _floor(stack, folder, name, core=ours, environment=plain, more=more)
        for name, more in (("floor", ()), ("hop", ("--hop", str(direct[0].port), str(folder / "hop"))))
    ]
    return Stage(
        direct=direct[0], paced=direct[1], floor=floor, hop=hop, exact=exact, semantic=semantic, learned=learned
    )


def alone(stack: ExitStack, folder: Path, pace: tuple[str, ...], *, entries: int | None = None) -> Gateway:
    """One gateway with the exact cache before one upstream of that pace. Raises BenchError.

    `entries`: how many answers it keeps at most, where that is to be few.
    """
    ours, theirs, plain = _apart()
    if entries is not None:
        plain["NEARHIT_CACHE__MAX_ENTRIES"] = str(entries)
    upstream = _upstream(stack, folder, core=theirs, environment=plain, pace=pace)
    return _gateway(stack, folder, "exact", _config("exact", [upstream, upstream]), core=ours, environment=plain)


def pair(stack: ExitStack, folder: Path, pace: tuple[str, ...], more: str) -> tuple[Gateway, list[Target]]:
    """The same before two upstreams, of which `paced` reaches the second; `more` settings, in lines of YAML."""
    ours, theirs, plain = _apart()
    upstreams = [_upstream(stack, folder, core=theirs, environment=plain, pace=pace) for _ in range(2)]
    settings = _config("exact", upstreams) + more
    return _gateway(stack, folder, "exact", settings, core=ours, environment=plain), upstreams


def _apart() -> tuple[int | None, int | None, dict[str, str]]:
    """The gateway's core, that of everything else, this process included, and the environment of all."""
    own = cores()
    ours, theirs = (own[0], own[-1]) if len(own) > 1 else (None, None)
    if theirs is not None:
        pin_self(theirs)
    return ours, theirs, {name: value for name, value in environment().items() if not name.startswith("NEARHIT_")}


def _floor(
    stack: ExitStack,
    folder: Path,
    name: str,
    *,
    core: int | None,
    environment: dict[str, str],
    more: tuple[str, ...] = (),
) -> Target:
    port = spare_port()
    process = stack.enter_context(
        running([str(port), *more], core=core, environment=environment, folder=folder, module="gateway.bench.floor")
    )
    await_port(port, process)
    return Target(name=name, host=HOST, port=port, model="gpt-4o-mini", pid=process.pid)


def _upstream(
    stack: ExitStack, folder: Path, *, core: int | None, environment: dict[str, str], pace: tuple[str, ...]
) -> Target:
    port = spare_port()
    arguments = ["scripted", "--port", str(port), "--bill", str(folder / f"bill-{port}.jsonl"), *pace]
    process = stack.enter_context(running(arguments, core=core, environment=environment, folder=folder))
    await_port(port, process)
    return Target(name="direct", host=HOST, port=port, model="gpt-4o-mini", pid=process.pid)


def _gateway(
    stack: ExitStack,
    folder: Path,
    mode: str,
    settings: str,
    *,
    core: int | None,
    environment: dict[str, str],
) -> Gateway:
    port, config = spare_port(), folder / f"{mode}.yaml"
    config.write_text(settings)
    given = {"NEARHIT_HOME": str(folder / mode), "NEARHIT_ADMIN_KEY": ADMIN_KEY, "HF_HUB_OFFLINE": "1"}
    arguments = ["serve", "--config", str(config), "--port", str(port)]
    serve = stack.enter_context(running(arguments, core=core, environment=environment | given, folder=folder))
    opened = await_port(port, serve)
    ready = opened + _await_ready(port)
    key, pids = _key(port), _pids(serve.pid)
    return Gateway(
        plain=Target(name="nearhit", host=HOST, port=port, model=MODEL, key=key),
        paced=Target(name="nearhit", host=HOST, port=port, model="paced", key=key),
        pids=pids,
        port_s=round(opened, 2),
        ready_s=round(ready, 2),
        rss_start_mb=round(memory_mb(pids[0]), 1),
    )


def _config(mode: str, upstreams: list[Target]) -> str:
    """The upstream as the provider `openai`, so that the bundled price list applies; no engine.

    `exact` and `semantic` run the policy `guarded`: scripted answers would teach one that learns that nothing may be
    reused. `learned` is the default policy without audits before an upstream that always says the same, as one does
    whose answers may be reused: it decides and reads as in a scope without labels and serves what it has read.
    """
    wide = "max_error_rate: 0.5, max_wrong_hit_rate: 0.9, audit_budget_usd: '0', "
    cache = f"mode: semantic, policy: learned, {wide}" if mode == "learned" else f"mode: {mode}, policy: guarded, "
    return f"""
providers:
  openai: {{kind: openai, base_url: "http://{HOST}:{upstreams[0].port}/v1", api_key: none}}
  paced: {{kind: openai, base_url: "http://{HOST}:{upstreams[1].port}/v1", api_key: none}}
models:
  paced: {{route: [paced/gpt-4o-mini]}}
engines: {{}}
cache: {{{cache}embed_timeout: 2s}}
"""


def _await_ready(port: int) -> float:
    """Seconds until /health/ready answers 200. Raises BenchError with its last words after 90 s."""
    begun = time.perf_counter()
    said = ""
    while time.perf_counter() - begun < 90:
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=5)
        except httpx.TimeoutException:  # the port is open before its worker is there to answer
            continue
        if answer.status_code == 200:
            return time.perf_counter() - begun
        said = answer.text[:300]
        time.sleep(0.05)
    raise BenchError(f"the gateway is not ready: {said}")


def _key(port: int) -> str:
    """A key of a team of its own, under a hard budget that is never reached; a price for the paced upstream."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
        client.headers["authorization"] = f"Bearer {ADMIN_KEY}"
        made = client.post("/api/v1/keys", json={"name": "bench", "team": "bench", "project": "bench"})
        limit = {"limit_usd": "1000.00", "window": "month", "timezone": "UTC", "mode": "hard"}
        held = client.put("/api/v1/budgets/team:bench", json=limit)
        price = {"input_usd": "0.15", "output_usd": "0.60"}  # the upstream `openai` has one from the bundled list
        priced = client.put("/api/v1/prices/paced/gpt-4o-mini", json=price)
        for answer in (made, held, priced):
            if answer.status_code >= 300:
                raise BenchError(f"{answer.request.url} answered {answer.status_code}: {answer.text[:300]}")
        return str(msgspec.json.decode(made.content)["key"])


def _pids(supervisor: int) -> tuple[int, ...]:
    """The worker, then the encoder."""
    found = children(supervisor)
    picked = [[pid for pid, line in found.items() if name in line] for name in ("gateway.server", "cache.encoder")]
    if not picked[0]:
        raise BenchError(f"no worker among the children of `nearhit serve`: {sorted(found.values())}")
    return tuple(pids[0] for pids in picked if pids)
