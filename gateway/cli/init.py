"""`nearhit init`: a commented nearhit.yaml to start from, or one made of another gateway's configuration."""

import calendar
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import yaml
from cyclopts import Parameter

from gateway.cli import show
from gateway.cli.wrong import Wrong
from gateway.moving import Moved, target_of
from gateway.setting_types import no_yaml

_TEMPLATE = """\
# nearhit.yaml: every line can be left out; unknown keys are errors. `nearhit config show` says what holds and why.
# Every setting can also come from the environment: NEARHIT_SERVER__PORT=8090, NEARHIT_CACHE__MODE=exact …

server: {{host: 127.0.0.1, port: {port}}}

# null is SQLite in the data folder; more than one worker needs PostgreSQL (and Redis for the cache).
database: null                  # postgresql://user@host/nearhit
redis: null                     # redis://127.0.0.1:6379/0

# Upstreams. A provider whose usual key is in the environment (OPENAI_API_KEY …) is on without a line here.
providers:
{providers}

# The bundled engine: no key, no network.
engines:
  local: {{model: demo, hour_usd: "0.50"}}

# Names clients may ask for; `provider/model` always works.
models:
  chat: {{route: [{route}]}}
  embed: {{route: [local/minilm]}}

cache:
  mode: semantic                # off | exact | shadow | semantic
  max_error_rate: 0.01          # wrong answers / all requests
  max_wrong_hit_rate: 0.05      # wrong answers / answers served from the cache
  ttl: 24h
  scope: project                # user | key | project | team | org

budgets: []                     # - {{scope: org, limit_usd: "50.00", window: month, mode: hard}}

telemetry: {{otlp: null, capture_content: false}}
"""
_NO_PROVIDER = """\
  # openai: {kind: openai, api_key: "${OPENAI_API_KEY}"}
  # lab:    {kind: openai, base_url: "http://127.0.0.1:8000/v1", api_key: none}   # vLLM, SGLang, Ollama …
  {}"""


@dataclass
class Fresh:
    """What a new file is to say.

    Parameters
    ----------
    port
        Port of the gateway.
    upstream
        Base URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1.
    model
        The model's name there; `chat` then leads to it first.
    """

    port: int = 8080
    upstream: str | None = None
    model: str | None = None


def init(
    source: Path | None = None,
    *,
    path: Path = Path("nearhit.yaml"),
    peer: Annotated[Literal["litellm", "portkey", "helicone"] | None, Parameter(name="--from")] = None,
    fresh: Annotated[Fresh | None, Parameter(name="*")] = None,
    force: bool = False,
) -> None:
    """Write a commented nearhit.yaml, or with --from one that does what another gateway's configuration does.

    Parameters
    ----------
    source
        With --from: LiteLLM's config.yaml, a Portkey config as JSON, or a file of Portkey's or Helicone's headers.
    path
        Where to write it.
    peer
        Whose configuration it is: litellm, portkey or helicone.
    fresh
        What a new file is to say.
    force
        Overwrite a file that is there.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise Wrong(f"{path} is no place for a file: name one in a folder that is there")
    if path.exists() and not force:
        raise Wrong(f"{path} is there already; --force overwrites it")
    if (peer is None) != (source is None):
        raise Wrong("--from and a file belong together: nearhit init --from litellm config.yaml")
    if peer is not None and source is not None:
        _move(peer, source, path)
        return
    _write(fresh or Fresh(), path)


def _move(peer: str, source: Path, path: Path) -> None:
    """Write what could be moved, and say what could not."""
    from gateway.moving import helicone, litellm, portkey

    try:
        text = source.read_text("utf-8")
        if peer == "litellm":
            read = yaml.safe_load(text)
            if not isinstance(read, dict):
                raise ValueError("it holds no mapping")
            found = litellm.moved(cast("dict[str, Any]", read))
        else:
            found = (helicone if peer == "helicone" else portkey).moved(text)
    except yaml.YAMLError as error:
        raise Wrong(f"cannot move {source}: {no_yaml(error)}") from None
    except (OSError, ValueError) as error:
        raise Wrong(f"cannot move {source}: {error}") from error
    _say_unpriced(found)
    path.write_text(found.written(source.name), "utf-8")
    for sentence in found.left:
        show.line(f"not moved: {sentence}")
    show.line(f"wrote {path}; check it with: nearhit config check")


def _say_unpriced(found: Moved) -> None:
    """Other gateways take what they know no price of for free; here it is refused until it has one or is marked so."""
    from gateway import price_table

    now, told, unpriced = calendar.timegm(time.gmtime()), "\n".join(found.left), list[str]()
    providers = cast("dict[str, dict[str, Any]]", found.config.get("providers", {}))
    routes = [one["route"] for one in found.config.get("models", {}).values()]
    targets = dict.fromkeys(target_of(entry) for route in routes for entry in route)
    for target in targets:
        name, _, model = target.partition("/")
        known = price_table.find(name, providers[name].get("base_url"), model, providers[name]["kind"])
        priced = known is not None and price_table.list_price(*known, now, "") is not None
        if not priced and f"prices set {target} " not in told:
            unpriced.append(target)
    for name in providers.keys() - {target.partition("/")[0] for target in targets}:  # asked for by any model's name
        if not price_table.knows(name, providers[name].get("base_url"), providers[name]["kind"]):
            unpriced.append(f"{name}/<model>")
    if unpriced:
        unpriced.sort()
        found.left.append(
            f"no list price is known of {', '.join(unpriced)}: until one is set (nearhit prices set {unpriced[0]} "
            "INPUT-USD OUTPUT-USD) or the model has `free: true`, requests are refused with 402"
        )


def _write(fresh: Fresh, path: Path) -> None:
    upstream, model, port = fresh.upstream, fresh.model, fresh.port
    if (upstream is None) != (model is None):
        raise Wrong("--upstream and --model belong together")
    providers, route = _NO_PROVIDER, "local/demo"
    if upstream is not None:
        providers = f"  lab: {{kind: openai, base_url: {_quoted(upstream)}, api_key: none}}"
        route = f"{_quoted(f'lab/{model}')}, local/demo"
    path.write_text(_TEMPLATE.format(port=port, providers=providers, route=route), "utf-8")
    show.line(f"wrote {path}; check it with: nearhit config check, start with: nearhit serve")


def _quoted(text: str) -> str:
    """As YAML takes any text."""
    return msgspec.json.encode(text).decode()
