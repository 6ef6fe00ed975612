"""`nearhit init`: a commented nearhit.yaml to start from."""

from pathlib import Path

from gateway.cli import show
from gateway.cli.wrong import Wrong

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


def init(
    *,
    path: Path = Path("nearhit.yaml"),
    port: int = 8080,
    upstream: str | None = None,
    model: str | None = None,
    force: bool = False,
) -> None:
    """Write a commented nearhit.yaml.

    Parameters
    ----------
    path
        Where to write it.
    port
        Port of the gateway.
    upstream
        Base URL of an OpenAI-compatible server, such as http://127.0.0.1:8000/v1.
    model
        The model's name there; `chat` then leads to it first.
    force
        Overwrite a file that is there.
    """
    if path.exists() and not force:
        raise Wrong(f"{path} is there already; --force overwrites it")
    if (upstream is None) != (model is None):
        raise Wrong("--upstream and --model belong together")
    providers, route = _NO_PROVIDER, "local/demo"
    if upstream is not None:
        providers = f'  lab: {{kind: openai, base_url: "{upstream}", api_key: none}}'
        route = f'"lab/{model}", local/demo'
    path.write_text(_TEMPLATE.format(port=port, providers=providers, route=route), "utf-8")
    show.line(f"wrote {path}; check it with: nearhit config check, start with: nearhit serve")
