"""Writes what the documentation derives from the code: docs/configuration.md, docs/files.md and README.md's rooms.

    python docs/generate.py            write
    python docs/generate.py --check    write nothing; exit 1 and name what is stale (tests/docs/test_generated.py does)

A setting without a sentence in ABOUT, and a module without a docstring, is an error: nothing is documented by silence.
"""

# ruff: noqa: INP001, T201 - a script beside the pages it writes, not a package

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gateway import setting_types, settings  # noqa: E402 - the tree this script stands in, not an installed one

ROOMS = ("gateway", "cache", "engine", "policies")
PACKAGES = (*ROOMS, "migrations", "tests", "docs", "deploy")
SENTENCE = re.compile(r"(.+?)(?:\.(?=\s|$)|$)", re.DOTALL)
WIDEST = 96

# One sentence per setting, in the order of the page.
ABOUT: dict[str, str] = {
    "home": "Folder of all that nearhit writes: database, cache, journals, sockets, secrets. One `nearhit serve` each.",
    "admin_key": "Fixes the admin key instead of generating one at the first start. Also `NEARHIT_ADMIN_KEY`.",
    "secret": "The installation's secret, which verifies API keys. Several gateways on one database need the same.",
    "database": "`postgresql://user@host/name`; left out: SQLite in `home`, which serves exactly one worker.",
    "redis": "`redis://host:6379/0`: keeps the cache for several workers or gateways. Never holds money.",
    "server.host": "Address to listen on.",
    "server.port": "Port to listen on; 0 takes a free one.",
    "server.workers": "Gateway processes on the port. More than one needs PostgreSQL, and Redis unless caching is off.",
    "server.server": "The HTTP server.",
    "server.max_body": "Largest request body; a larger one is answered 413.",
    "server.body_timeout": "How long a body may take to arrive; then 408.",
    "server.header_timeout": "How long the request head may take to arrive.",
    "server.drain_timeout": "How long running answers may go on after SIGTERM.",
    "server.hang_timeout": "A worker that stands still for so long is killed and started again; `null`: never.",
    "server.log": "What every process says: text for people, or one line of JSON for each event.",
    "server.max_in_flight": "Requests answered at once per worker; more are refused with 503 and `retry-after`.",
    "providers.<name>.kind": "Which module of `gateway/providers/` speaks to it.",
    "providers.<name>.base_url": "Where it is, `/v1` included.",
    "providers.<name>.api_key": "Its credential, best as `${NAME}` of the environment; `none` sends none.",
    "providers.<name>.first_chunk_timeout": "Longest wait for the first chunk; then the next candidate is tried.",
    "providers.<name>.answer_timeout": "The same for answers that are not streamed; left out: the request's own time.",
    "providers.<name>.idle_timeout": "Longest gap between chunks; then the answer counts as broken off.",
    "providers.<name>.max_in_flight": "Calls at once.",
    "providers.<name>.billing": "What a connection closed early costs there: the tokens so far (the default of"
    " `vllm`, `llamacpp`, `dynamo`, `ray`, `prefill_decode`, which stop then), or the whole answer.",
    "providers.<name>.batch": "`own`: what comes by `/v1/batches` goes to the provider's own batch service.",
    "engines.<name>.model": (
        "`demo`, `tiny-random:<arch>`, a folder with config.json and safetensors, or `sim`, which computes nothing: "
        "of the settings of engines it has only `context` and the price."
    ),
    "engines.<name>.hour_usd": "Price of an hour of its hardware, from which its tokens get a price.",
    "engines.<name>.tokens_per_second": "Tokens written a second, for that price; left out: assumed, and labelled so.",
    "engines.<name>.prefill_tokens_per_second": "Tokens read a second; left out: ten times those written.",
    "engines.<name>.busy_share": "Of its paid hours, the share it is expected to work; idle hours make tokens dearer.",
    "engines.<name>.threads": "CPU threads; left out: torch decides.",
    "engines.<name>.max_queue": "Requests that may wait; more are refused with `retry-after`.",
    "models.<name>.route": "Candidates: `provider/model`, or a map with `to`, `weight`, `context`, `lacks`.",
    "models.<name>.strategy": "The order of candidates, or how several answer: see docs/routing.md.",
    "models.<name>.free": "This route really costs nothing, so no price is asked for.",
    "cache.mode": "`shadow` looks up and judges but never serves; `exact` serves only repeated requests.",
    "cache.policy": "Which module of `policies/reuse/` decides about reuse.",
    "cache.max_error_rate": "Wrong answers among all requests that the operator accepts.",
    "cache.max_wrong_hit_rate": "Wrong answers among those served from the cache. Both limits hold.",
    "cache.max_temperature": "Above it nothing is reused or coalesced; an absent temperature counts as 1.",
    "cache.ttl": "How long an answer may be reused.",
    "cache.scope": "Who shares answers. Never wider than an organization.",
    "cache.store": "Where entries live; `auto` is Redis when configured, else SQLite in `home`.",
    "cache.embed_timeout": "Longest wait for an embedding, and for a reading; then nothing is served by meaning.",
    "cache.max_entries": "Entries kept; the oldest unused go first.",
    "cache.herd_wait": "Longest wait for a near-identical request's answer that is just being made; 0: none.",
    "cache.wait_for_others": "Longest wait for an answer that another worker on the same Redis is making; 0: none.",
    "cache.wait_beyond_first": "How long a stream goes on waiting once the other worker has its first token.",
    "cache.audit_budget_usd": "What checking hits and a judging model may cost a day in all; `0`: no audits.",
    "cache.encoder_hour_usd": "An hour of what the encoder computes on; its time comes off what the cache saved.",
    "cache.audit_charge": "Whether audits also draw on the budgets of the tenant whose hit they check.",
    "cache.audit_share": "Share of hits by meaning that is audited at least; null: as the policy asks.",
    "cache.judge.model": "The configured model that says whether two answers are the same; null: no model, no network.",
    "cache.judge.batch": "Pairs of answers a judging model is asked about at once.",
    "cache.encoder": "The embedding model: `minilm`, which is bundled, or a folder; another one begins the cache anew.",
    "cache.encryption_key_file": "Keys of 32 bytes, newest first: it seals kept answers, all of them open; null: none.",
    "budgets[].scope": "`org`, `team:<t>`, `project:<t>/<p>`, `key:<id>`, `user:<id>`, `model:<m>` or `tag:<k>=<v>`.",
    "budgets[].limit_usd": "The limit as a decimal string; left out: only rates are limited.",
    "budgets[].window": "What the limit is per.",
    "budgets[].timezone": "Where a window begins at midnight.",
    "budgets[].mode": "`hard` refuses what would exceed it, `soft` only warns.",
    "budgets[].alerts": "Shares of the limit at which a warning is due.",
    "budgets[].rpm": "Requests per minute, with or without a limit in money; hits count too.",
    "budgets[].tpm": "Tokens per minute; hits do not count.",
    "budgets[].on_exhausted": "`refuse`, or `degrade:<model>`: that model answers instead.",
    "budgets[].degrade_at": "Share of the limit from which it does; 1: only instead of a refusal.",
    "alerts.webhook.url": "Gets a signed POST for each alert; nothing else is ever called. `https://`, or loopback.",
    "alerts.webhook.secret": "Signs each POST (Standard Webhooks): `whsec_` and base64, or at least 16 characters.",
    "alerts.webhook.plain_http": "Allows `http://` to another machine.",
    "alerts.email.host": "The mail server.",
    "alerts.email.port": "Its port.",
    "alerts.email.security": "TLS from the first byte, by STARTTLS, or none.",
    "alerts.email.username": "Login at the mail server, with `password`; left out: none.",
    "alerts.email.password": "Its password; never sent without TLS, except to loopback.",
    "alerts.email.sender": "The address that alerts come from.",
    "alerts.email.to": "Everybody who gets each alert.",
    "ledger.durability": "What survives: `fsync` a power cut, `write` a kill, `off` nothing (throw-away runs only).",
    "ledger.max_output_tokens": "Output limit that is put in when the request has none, so that a hold has a bound.",
    "telemetry.otlp": "Collector of OTLP over HTTP, e.g. `http://localhost:4318`; left out: nothing is exported.",
    "telemetry.capture_content": "Puts prompts (never answers) into exported traces.",
    "telemetry.sample": "Share of requests whose trace is kept. Errors and slow requests are always kept.",
    "telemetry.slow": "From this duration on a request counts as slow.",
    "retention.requests": "Days that rows of single requests are kept; their sums, the ledger and closed months stay.",
    "retention.hours": "Days that sums of usage by hour are kept; after that a span must be whole days (UTC).",
    "retention.days": "Days that sums of usage by day are kept.",
    "kept.max_file": "Largest file a client may upload.",
    "kept.project_files": "Bytes of files one project may keep; more is refused.",
    "kept.output_ttl": "How long the files that a batch wrote are kept.",
    "kept.batch_lines": "Requests one batch may hold.",
    "kept.project_batches": "Batches of one project that may be unfinished at once.",
    "kept.batch_in_flight": "Requests of batches that one worker has under way at once, at low priority.",
    "kept.retry_interrupted": "Send a batch's request again that a killed worker had sent; it may be billed twice.",
    "kept.batch_look": "How often a provider's own batch is asked whether it is done.",
    "kept.batch_patience": "How long a cancelled batch waits for a provider that says nothing of it any more.",
    "kept.responses_ttl": "How long a response of the Responses API can be fetched and continued; 0: none is kept.",
    "kept.project_responses": "Bytes of responses one project may keep; the oldest go first.",
    "exports[].name": "Begins the names of its files: small letters, digits and dashes.",
    "exports[].what": "`focus`: charges as FOCUS. `entries`: the ledger. `statement`: what each team owes.",
    "exports[].format": "`csv`; `parquet` for `focus` and `entries`; `jsonl` for `entries`.",
    "exports[].every": "`day`: each day that is over (`focus`, `statement`: of the month so far). `month`: each month.",
    "exports[].folder": "Where the files are put; each is complete or not there.",
    "exports[].focus_version": "Of the FOCUS specification.",
    "telemetry.explain_days": "How long the reasons for hits and misses are kept; 0 keeps none.",
    "oidc.issuer": "An OpenID Connect provider where people sign in to `/ui`; https, or http to this machine.",
    "oidc.client_id": "The name under which that provider knows nearhit.",
    "oidc.client_secret": "Its secret; left out for a public client (PKCE is used in any case).",
    "oidc.scopes": "What is asked for; must hold `openid`.",
    "oidc.name_claim": "The claim that names a person in the audit log.",
    "oidc.role_claim": "The claim that lists a person's groups; may lie deeper (`realm_access.roles`).",
    "oidc.roles": "`{group: role}` or `{group: role@team}`; the first match counts, nobody else gets in.",
    "oidc.redirect_url": "`/ui/oidc/back` as browsers reach it, where a proxy in front changes scheme or host.",
    "telemetry.ttft_target": "A streamed answer that begins within this, and keeps `tpot_target`, counts as goodput.",
    "telemetry.tpot_target": "The most time per later token for an answer to count as goodput.",
    "engines.<name>.quant": "Weights in fewer bits: none, int8, int4, fp8 (where the device has it).",
    "engines.<name>.kv_dtype": "Type of the keys and values kept: auto, float32, bfloat16, int8, fp8.",
    "engines.<name>.max_sequences": "Requests that run at once.",
    "engines.<name>.context": "Shortens the model's window, in tokens.",
    "engines.<name>.memory": "For keys and values, whole MiB. Left out: a quarter of RAM, of a GPU most of the rest.",
    "engines.<name>.device": "Where it is computed: auto (a GPU if there is one), cpu, cuda.",
    "engines.<name>.deterministic": "On a GPU: the same tokens in any batch. A processor always does that.",
    "engines.<name>.speculate": "Guesses that are verified: off, predicted, ngram, or the folder of a smaller model.",
    "engines.<name>.tensor_parallel": "Processes that share one model: one per GPU.",
    "engines.<name>.replicas": "Processes of this model; each request goes where it costs least.",
    "engines.<name>.sleep_after": "Idle for so long, a process drops its cache. Left out: never.",
    "engines.<name>.sleep_level": "2 drops the weights too; waking then takes as long as reading them.",
    "engines.<name>.slo_ttft_ms": "An answer that begins within this, and keeps `slo_tpot_ms`, counts as goodput.",
    "engines.<name>.slo_tpot_ms": "The most time per later token for an answer to count as goodput.",
    "models.<name>.canary.to": "The target under trial.",
    "models.<name>.canary.share": "Of requests (of sessions, where they have one) that it answers.",
    "models.<name>.cheapest_from": "From this share of any of the asker's budgets on, the order is by price.",
    "models.<name>.fallback_on": "Answers that go to the next candidate: refusal, content_filter, context.",
    "models.<name>.hedge": "Silence after which the next candidate is asked as well, or `p95` of what was measured.",
    "models.<name>.min_logprob": "For `cascade`: the mean log probability per token that is good enough.",
    "models.<name>.of": "For `ensemble`: how many candidates answer.",
    "models.<name>.shadow.to": "A target that is asked as well, for comparison; clients neither wait nor pay for it.",
    "models.<name>.shadow.share": "Of answered requests that are asked there too.",
    "models.<name>.shadow.budget_usd": "What all shadows of this model may cost a day.",
    "models.<name>.slo.ttft": "For `slo`: time to the first token that is promised.",
    "models.<name>.slo.tpot": "For `slo`: time per further token that is promised.",
    "models.<name>.sticky": "Whose requests stay at one target while they can: none, session, user.",
    "providers.<name>.api_keys": "Several keys, one of which is taken for each call; one that is limited rests.",
    "providers.<name>.replicas": "Addresses of equal servers, or `dns://name:port`, `srv://name`.",
    "server.lag_target": "How long the event loop may keep a request waiting before newcomers are turned away.",
    "server.mirror_headers": "Gateways whose cost and cache reply headers are sent too.",
    "distillation.projects": "Projects (`team/name`) that consent to have prompts and answers kept as training lines.",
    "distillation.max_size": "Of one project's file; at this size nothing more is added.",
}

# Files that are not Python, and so have no docstring to quote.
OTHER_FILES = {
    "pyproject.toml": "dependencies, entry point, and the rules of every tool, each with its reason",
    "Makefile": "what people and CI both run; `make help` lists it",
    "Dockerfile": "one image: gateway, encoder, engine and both models; non-root, read-only root",
    "docker-compose.yml": "the same product on PostgreSQL and Redis",
    ".ci/run": "what CI runs on a clean clone",
    "deploy/nearhit.yaml": "settings of the gateway in the stack",
    "deploy/secrets.sh": "prints a fresh .env for the stack",
    "deploy/prove_containers.sh": "builds and runs the whole stack with podman and checks it",
    "docs/decisions.md": "dated log of decisions and of experiments, failed ones too",
    "docs/configuration.md": "every setting (generated)",
    "docs/files.md": "every file and what it says it is (generated)",
    "docs/pictures.py": "takes the pictures that the documentation shows",
    "docs/request-life.md": "one request from socket to ledger, with the names in the code",
    "docs/months.md": "closing a month, statements, FOCUS and other exports, invoices",
    "docs/cache.md": "the cache for operators: what is matched, the two budgets, audits, feedback, tune, warm, limits",
    "docs/telemetry.md": "metrics, spans, how traces are chosen",
    "docs/api.md": "what applications can rely on: dialects, idempotency, files, batches, responses, what is passed on",
    "docs/compatibility.md": "other people's clients, and how they fare (generated)",
    "docs/containers.md": "the image and the stack, and the record of their proof",
    "docs/benchmarks.md": "how the figures under docs/benchmarks/ were made, caveats first",
}


def settings_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every leaf as (dotted path, field); names chosen by the user stand as `<name>`, list items as `[]`."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        inner = section_of(field.annotation)
        if inner is None:
            yield path, field
        else:
            found, middle = inner
            yield from settings_of(found, f"{path}{middle}.")


def section_of(annotation: Any) -> tuple[type[BaseModel], str] | None:
    if type(None) in get_args(annotation):  # a section that may be left out
        annotation = next(one for one in get_args(annotation) if one is not type(None))
    origin, inner = get_origin(annotation), get_args(annotation)
    candidates = {None: (annotation, ""), dict: (inner[-1:] or (None,))[0], list: (inner[:1] or (None,))[0]}
    if origin is None:
        found, middle = candidates[None]
    else:
        found, middle = candidates.get(origin), {dict: ".<name>", list: "[]"}.get(origin, "")
    is_section = isinstance(found, type) and issubclass(found, BaseModel)
    return (found, middle) if is_section else None


def kind_of(field: FieldInfo) -> str:
    return _kind(field.annotation, field.metadata).replace("|", "\\|")


_WORDS = {SecretStr: "secret", str: "text", int: "number", float: "number", bool: "yes/no", Path: "folder", Any: "any"}


def _kind(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """In words of YAML, not of Python."""
    read_by = {setting_types.seconds: "duration", setting_types.octets: "size"}
    for one in metadata:
        if getattr(one, "func", None) in read_by:
            return read_by[one.func]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is None:
        is_section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        return "map" if is_section else _WORDS.get(annotation, str(annotation))
    if origin is Annotated:
        return _kind(inner[0], inner[1:])
    if origin is Literal:
        return " | ".join(f"`{choice}`" for choice in inner)
    if origin in (list, dict):
        return f"{'list' if origin is list else 'map'} of {_kind(inner[-1])}"
    return " or ".join(_kind(one) for one in inner if one is not type(None))


def default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return ""
    kind = kind_of(field)
    if kind == "duration":
        return f"`{duration(float(value))}`"
    if kind == "size":
        return f"`{value // (1 << 20)}MiB`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def duration(value: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if value >= length and value % length == 0 and not (unit == "d" and value == length):
            return f"{value / length:g}{unit}"
    return f"{value * 1_000:g}ms"


def configuration() -> str:
    """The page, or an exit that names what ABOUT lacks or has too much."""
    found = dict(settings_of(settings.Settings))
    missing, gone = sorted(set(found) - set(ABOUT)), sorted(set(ABOUT) - set(found))
    if missing or gone:
        sys.exit(f"docs/generate.py: ABOUT lacks {missing}, and describes {gone}, which are no settings")
    rows = [
        f"| `{path}` | {'file' if path.endswith('_file') else kind_of(field)} | {default_of(field)} | {ABOUT[path]} |"
        for path, field in sorted(found.items(), key=lambda item: list(ABOUT).index(item[0]))
    ]
    keys = "".join(f"`{variable}` ({name}), " for name, (variable, _) in settings.WELL_KNOWN.items()).rstrip(", ")
    return f"""# Configuration

<!-- generated by docs/generate.py from gateway/settings.py; `make docs` writes it -->

Order, the later wins: defaults, `nearhit.yaml` (or `--config PATH`), environment, flags. An unknown key is an error.
`server.port` is `NEARHIT_SERVER__PORT` in the environment; a whole section is JSON, e.g. `NEARHIT_MODELS='{{…}}'`.
`${{NAME}}` in the file is replaced by the environment's value; an unset name is an error.
Durations are written `150ms`, `10s`, `24h`; sizes `16MiB`. `nearhit config show` says where each value came from.

A provider whose usual key is in the environment is on without being configured: {keys}.
Azure also wants `AZURE_OPENAI_ENDPOINT`, and Bedrock `AWS_REGION`; without it they stay off.

| setting | kind | default | meaning |
|---|---|---|---|
{chr(10).join(rows)}
"""


def first_sentence(path: Path) -> str:
    """What a module says it is, in at most one line of the tree."""
    said = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    if not said:
        if path.name == "__init__.py" or "versions" in path.parts:
            return ""
        sys.exit(f"docs/generate.py: {path.relative_to(ROOT)} has no docstring")
    text = " ".join((SENTENCE.match(said) or [said, said])[1].split())
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1].rsplit(' ', 1)[0]} …"


def files() -> str:
    """One line per file, grouped by folder; a folder's own line is its package's docstring."""
    at_the_top = ("pyproject.toml", "Makefile", "Dockerfile", "docker-compose.yml", ".ci/run")
    lines = [f"{name:28} {OTHER_FILES[name]}" for name in at_the_top]
    for package in PACKAGES:
        for folder, inside in folders_of(package):
            lines += ["", f"{name_of(folder):28} {about(folder)}".rstrip()]
            for path in inside:
                told = first_sentence(path) if path.suffix == ".py" else OTHER_FILES[path.relative_to(ROOT).as_posix()]
                lines.append(f"  {path.name:26} {told}".rstrip())
    return f"""# Every file

<!-- generated by docs/generate.py from the docstrings; `make docs` writes it -->

The rooms these stand in are in the [README](../README.md#rooms).

```text
{chr(10).join(lines)}
```
"""


def rooms() -> str:
    """One line per folder of the product."""
    rows = [f"{name_of(folder):28} {about(folder)}".rstrip() for package in ROOMS for folder, _ in folders_of(package)]
    return "\n".join(rows)


def folders_of(package: str) -> Iterator[tuple[Path, list[Path]]]:
    """Each folder with what is in it, but for the file that speaks for the folder."""
    found = files_of(package)
    for folder in sorted({path.parent for path in found}):
        yield folder, [path for path in found if path.parent == folder and path != folder / "__init__.py"]


def name_of(folder: Path) -> str:
    return folder.relative_to(ROOT).as_posix() + "/"


def about(folder: Path) -> str:
    own = folder / "__init__.py"
    return first_sentence(own) if own.exists() else ""


def files_of(package: str) -> list[Path]:
    python = [path for path in (ROOT / package).rglob("*.py") if "__pycache__" not in path.parts]
    others = [ROOT / name for name in OTHER_FILES if name.startswith(f"{package}/") and (ROOT / name).exists()]
    return sorted({*python, *others})


def readme() -> str:
    text = (ROOT / "README.md").read_text("utf-8")
    before, start, rest = text.partition("<!-- rooms -->\n")
    _, end, after = rest.partition("<!-- /rooms -->")
    if not start or not end:
        sys.exit("docs/generate.py: README.md has no <!-- rooms --> … <!-- /rooms -->")
    return f"{before}{start}```text\n{rooms()}\n```\n{end}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check, stale = parser.parse_args().check, list[str]()
    for name, write in {"docs/configuration.md": configuration, "docs/files.md": files, "README.md": readme}.items():
        path, text = ROOT / name, write()
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, "utf-8")
    if stale:
        print(f"{'stale' if check else 'written'}: {', '.join(stale)}{'; run `make docs`' if check else ''}")
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main())
