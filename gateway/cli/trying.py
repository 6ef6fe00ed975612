"""`nearhit try "prompt" ["prompt" …]`: ask the running gateway and see what the cache did.

Knows: the data plane as any client sees it. Does not know: anything inside the gateway; its own key is an ordinary one.
"""

import os
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import msgspec

from gateway.cli import show
from gateway.cli.connection import control, running
from gateway.cli.options import ReadOptions, settings_of
from gateway.cli.wrong import Wrong
from gateway.settings import Settings

_TIMEOUT = 120.0
_LONGEST_ANSWER = 200
_KEY_FILE = "try_key"
_decode = msgspec.json.Decoder().decode


def try_prompts(
    *prompts: str,
    model: str = "chat",
    url: str | None = None,
    key: str | None = None,
    max_tokens: int | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008 - frozen
) -> int:
    """Ask each prompt in turn and print how it was answered: cache mark, time, cost, what was saved.

    Parameters
    ----------
    prompts
        What to ask. Ask the same thing in other words the second time.
    model
        Any name the gateway knows.
    url
        Base URL (default: the gateway of this home).
    key
        API key (default: one made for this command and kept in the home).
    max_tokens
        Longest answer.
    """
    if not prompts:
        show.line('give at least one prompt, such as: nearhit try "What is time to first token?"')
        return 2
    settings = settings_of(options)
    base = url or base_url(settings)
    secret = key or own_key(settings)
    body: dict[str, object] = {"model": model}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    with httpx.Client(base_url=base, timeout=_TIMEOUT, trust_env=False) as client:
        client.headers["authorization"] = f"Bearer {secret}"
        rows = [_ask(client, {**body, "messages": [{"role": "user", "content": prompt}]}) for prompt in prompts]
    if options.json:
        show.json(rows)
    else:
        _print(rows)
    return 0


def _ask(client: httpx.Client, body: dict[str, object]) -> dict[str, Any]:
    began = time.perf_counter()
    try:
        answer = client.post("/v1/chat/completions", json=body)
    except httpx.HTTPError as error:
        raise Wrong(f"no gateway answers at {client.base_url}: start one with nearhit serve ({error})") from error
    took = (time.perf_counter() - began) * 1_000
    try:
        found = _decode(answer.content)
    except msgspec.DecodeError as error:
        raise Wrong(f"{client.base_url} is no gateway: it answered {answer.status_code} with something else") from error
    if answer.status_code >= 400:
        raise Wrong(str(found.get("error", {}).get("message", f"answered {answer.status_code}")))
    told = answer.headers
    return {
        "cache": told.get("x-nearhit-cache", "-"),
        "ms": round(took, 1),
        "cost_usd": told.get("x-nearhit-cost-usd"),
        "saved_usd": told.get("x-nearhit-saved-usd"),
        "similarity": told.get("x-nearhit-cache-similarity"),
        "model": told.get("x-nearhit-model", found.get("model")),
        "provider": told.get("x-nearhit-provider"),
        "request_id": told.get("x-request-id"),
        "text": found["choices"][0]["message"].get("content") or "",
    }


def _print(rows: list[dict[str, Any]]) -> None:
    table: list[list[str]] = []
    for number, row in enumerate(rows, 1):
        where = "/".join(part for part in (row["provider"], row["model"]) if part) or "-"
        note = f"similarity {float(row['similarity']):.3f}" if row["similarity"] else where
        cost, saved = show.usd(row["cost_usd"] or "0"), row["saved_usd"]
        told = show.usd(saved) if saved and saved != "0" else "-"
        table.append([str(number), row["cache"], show.millis(row["ms"]), cost, told, note])
    show.table(("", "cache", "time", "cost", "saved", ""), table, right=("time", "cost", "saved"))
    for number, row in enumerate(rows, 1):
        text = " ".join(row["text"].split())
        show.line(f"\n{number}  {text[:_LONGEST_ANSWER]}{'…' if len(text) > _LONGEST_ANSWER else ''}")


def base_url(settings: Settings) -> str:
    """Of the gateway that runs on this home: it notes its port, which may have been chosen by the system."""
    port = settings.server.port
    noted = settings.home / "run" / "port"
    if noted.exists():
        port = int(noted.read_text("ascii").strip() or port)
    host = settings.server.host
    shown = "127.0.0.1" if host in ("0.0.0.0", "", "::") else f"[{host}]" if ":" in host else host  # noqa: S104 - shown, not bound
    return f"http://{shown}:{port}"


def own_key(settings: Settings) -> str:
    """An ordinary key, made at the first use, and when the one of before is taken no longer.

    It is kept where only the owner reads it.
    """
    path = settings.home / _KEY_FILE
    kept = path.read_text("ascii").strip() if path.exists() else ""
    if not running(settings):
        if kept:
            return kept  # for a gateway elsewhere
        raise Wrong("no gateway runs on this home: start one with nearhit serve, or give --url and --key")
    if kept and _is_taken(settings, kept):
        return kept
    body = {"name": "nearhit try", "team": "default", "project": "default"}
    with control(settings) as gateway:
        key = str(gateway.ask("POST", "/api/v1/keys", body=body)["key"])
    _keep(path, key)
    return key


def _is_taken(settings: Settings, key: str) -> bool:
    """False where it was revoked or renewed, has expired, or is of another database."""
    asking = {"authorization": f"Bearer {key}"}
    try:
        answer = httpx.get(f"{base_url(settings)}/v1/models", headers=asking, timeout=_TIMEOUT, trust_env=False)
    except httpx.HTTPError:
        return True  # whoever uses it is told
    return answer.status_code != HTTPStatus.UNAUTHORIZED


def _keep(path: Path, key: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(key + "\n")
