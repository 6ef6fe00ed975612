"""LiteLLM's deployments: a row of its model_list as a place of a route, and the provider that it leads to.

Knows: how models, addresses, keys and references to the environment are written there, and where LiteLLM looks for what
is not written. Does not know: groups, fallbacks, the rest of the file.
"""

import re
from decimal import Decimal
from typing import Any, cast
from urllib.parse import urlsplit

from gateway.moving import HOSTS, KINDS, LOCAL, Moved, key_of, usual_name
from gateway.moving.litellm_told import TIME, TIMES, by_reason

Part = dict[str, Any]

_NO_SECRET = frozenset({"", "none", "empty", "dummy"})
# The second is not LiteLLM's: files that pass through a shell or a chart before it reads them.
_REFERENCE = re.compile(r"^(?:os\.environ/([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)(?::?-[^}]*)?\})$", re.ASCII)
COSTS = ("input_cost_per_token", "output_cost_per_token")
_INFO = frozenset(  # of model_info: what says nothing about requests, or is heeded
    {"id", "base_model", "mode", "db_model", "created_at", "updated_at", "created_by", "updated_by", "description"}
)
_CREDENTIALS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_PARAMS = frozenset(
    {
        *("model", "api_key", "api_base", "base_url", "api_version", "organization", "custom_llm_provider", "weight"),
        *("rpm", "tpm", "max_budget", "budget_duration", *TIMES, "max_retries", "num_retries", "order"),
        *("aws_region_name", *_CREDENTIALS, "max_parallel_requests", "litellm_credential_name"),
    }
)
# Names without a provider that are OpenAI's.
_OPENAI = re.compile(
    r"gpt|o\d|chatgpt|text-embedding|text-moderation|omni|whisper|tts|dall-e|ft:|davinci|babbage|codex|sora"
)
_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")
_WAYS = {
    "bedrock": ("converse", "converse_like", "invoke"),
    "openai": ("responses", "chat"),
    "azure": ("responses", "chat", "o_series", "gpt5_series"),
}
_CALLED = re.compile(r"(?!local$)[A-Za-z0-9][A-Za-z0-9_.-]*")  # names that a provider may have
_LATEST = ("preview", "latest")  # as LiteLLM calls Azure's API without dates
# Services that speak OpenAI's language and have no kind of their own: where LiteLLM finds them, and their keys.
_SERVICES = {
    "litellm_proxy": ("${LITELLM_PROXY_API_BASE}", "LITELLM_PROXY_API_KEY"),
    "perplexity": ("https://api.perplexity.ai", "PERPLEXITYAI_API_KEY"),
    "cerebras": ("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "nvidia_nim": ("https://integrate.api.nvidia.com/v1", "NVIDIA_NIM_API_KEY"),
    "deepinfra": ("https://api.deepinfra.com/v1/openai", "DEEPINFRA_API_KEY"),
    "sambanova": ("https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    "moonshot": ("https://api.moonshot.ai/v1", "MOONSHOT_API_KEY"),
    "dashscope": ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    "minimax": ("https://api.minimax.io/v1", "MINIMAX_API_KEY"),
    "zai": ("https://api.z.ai/api/paas/v4", "ZAI_API_KEY"),
    "volcengine": ("https://ark.cn-beijing.volces.com/api/v3", "VOLCENGINE_API_KEY"),
    "novita": ("https://api.novita.ai/v3/openai", "NOVITA_API_KEY"),
    "nebius": ("https://api.studio.nebius.ai/v1", "NEBIUS_API_KEY"),
}
# Modes of model_info that have no endpoint here, and those whose requests only OpenAI's and Azure's models get.
_NOWHERE = frozenset({"rerank", "video_generation", "ocr", "search", "realtime", "vector_store"})
_PASSED = frozenset({"image_generation", "image_edit", "audio_transcription", "audio_speech", "moderation"})
_UNKNOWN = "write a provider (kind openai, if it speaks OpenAI's language) and its route"
_ABROAD = {
    "vertex_ai": "Vertex is not spoken here; Google's models are reached with an API key (kind gemini), Claude at "
    "Anthropic's or Bedrock's",
    "vertex_ai_beta": "Vertex is not spoken here; Google's models are reached with an API key (kind gemini)",
    "sagemaker": "SageMaker is not spoken here",
    "sagemaker_chat": "SageMaker is not spoken here",
}


def reference(value: Any) -> Any:
    """`os.environ/NAME` as `${NAME}`; everything else as it is."""
    read = _REFERENCE.match(value) if isinstance(value, str) else None
    return "${" + (read[1] or read[2]) + "}" if read else value


def secret(found: Moved, given: Part, field: str, usual: str) -> Any:
    """A reference, also for what stands there in plain text."""
    value = given.get(field)
    if not isinstance(value, str) or value.lower() in _NO_SECRET or _REFERENCE.match(value):
        return reference(value)
    name = found.secret(value, usual)
    found.say(f"{field} of {given.get('model')!r}: it stands there in plain text and is expected as ${{{name}}}")
    return "${" + name + "}"


def with_credentials(config: Part) -> Part:
    """The same with what `credential_list` holds written into the rows that name one of it."""
    kept: dict[str, Part] = {}
    for one in cast("list[Any]", config.get("credential_list") or []):
        if isinstance(one, dict) and isinstance(values := cast("Part", one).get("credential_values"), dict):
            kept[str(cast("Part", one).get("credential_name"))] = cast("Part", values)
    if not kept:
        return config
    rows: list[Part] = []
    for row in cast("list[Part]", config["model_list"]):
        given = cast("Part", row.get("litellm_params") or {})
        rows.append({**row, "litellm_params": {**kept.get(str(given.get("litellm_credential_name")), {}), **given}})
    return {**config, "model_list": rows}


def wildcard(found: Moved, name: str, row: Part) -> None:
    """A row of names with `*`: any model of a provider may be asked for here, so it only has to be there."""
    given = part(row, "litellm_params")
    told = str(given.get("model"))
    prefix, slash, _ = (told if told != "*" else name).partition("/")
    kind = KINDS.get(prefix) or ("openai" if prefix in _SERVICES else None)
    if not slash or not kind:
        what = _ABROAD.get(prefix) or (f"the provider of {told!r} is not known here; {_UNKNOWN}" if slash else _BARE)
        found.left.append(f"model_list {name!r}: {what}")
        return
    kind = _kind_there(kind, given)
    asked, own_name, _ = name.partition("/")
    provider = prefix
    if prefix in _SERVICES or any(given.get(field) for field in ("api_key", "api_base", "base_url", *_CREDENTIALS)):
        provider = _provider(found, kind, given, called=asked if own_name and _CALLED.fullmatch(asked) else prefix)
    elif kind != prefix or kind in (*LOCAL, "azure", "bedrock"):  # which no usual key switches on as it is there
        provider = _provider(found, kind, given, called=prefix)
    _name_lost(found, name, given, part(row, "model_info"), provider)
    if limits := sorted(given.keys() & {"rpm", "tpm", "max_budget"}):
        found.left.append(f"model_list {name!r}: {', '.join(limits)} of names with *: set `budgets` for models or keys")
    if "*" not in told:
        found.left.append(
            f"model_list {name!r}: all names led to one model; ask for `{provider}/{told.partition('/')[2]}`, or give "
            "each name a route to it"
        )
    elif f"{provider}/" != name.removesuffix("*"):
        found.left.append(f"model_list {name!r}: names with * are not needed, ask for `{provider}/<model>`")
    elif provider not in found.config.get("providers", {}):
        found.say(f"model_list {name!r}: not needed, `{name[:-1]}<model>` always works with {key_of(kind)}")


_BARE = "names with * are not needed, `provider/model` always works; a name without a provider needs a model of its own"


def place(found: Moved, name: str, row: Part) -> Any:
    """A place of a route; None where its provider has no counterpart."""
    given, info = part(row, "litellm_params"), part(row, "model_info")
    given = {**{field: info[field] for field in COSTS if field in info}, **given}
    if not (told := str(given.get("model") or "")):
        found.left.append(f"model_list {name!r}: its litellm_params name no model")
        return None
    prefix, model = _parted(found, name, told, given)
    service = str(given.get("custom_llm_provider") or prefix)
    kind = KINDS.get(service) or ("openai" if service in _SERVICES else None)
    if kind is None:
        what = f"the provider of {told!r} is not known here; {_ABROAD.get(service, _UNKNOWN)}"
        if _REFERENCE.match(told):
            what = f"its model stands in the environment ({reference(told)}); write its provider and its route"
        found.left.append(f"model_list {name!r}: {what}")
        return None
    kind = _kind_there(kind, given)
    model, region = _without_way(kind, model)
    given = {**given, "model": told, **({"aws_region_name": region} if region else {})}
    called = service if service in _SERVICES else ""
    provider = _provider(found, kind, given, called=called)
    base = str(info.get("base_model") or "")
    if kind == "azure" and base and found.deployed(provider, base.rpartition("/")[2], model):
        model = base.rpartition("/")[2]  # which has a list price, as no deployment's name has
    target = f"{provider}/{model}"
    mode = str(info.get("mode") or "")
    if mode in _NOWHERE or (mode in _PASSED and kind not in ("openai", "azure")):
        found.left.append(f"model_list {name!r}: its mode {mode}; there is no endpoint for that here with {kind}")
    _name_lost(found, name, given, info, provider, target)
    weight = given.get("weight")
    return {"to": target, "weight": weight} if isinstance(weight, int | float) else target


def _kind_there(kind: str, given: Part) -> str:
    """A service that is written as OpenAI's language at its address is that service, with what it does otherwise."""
    host = urlsplit(str(given.get("api_base") or given.get("base_url") or "")).hostname
    there = kind if "embed" in str(given.get("model")) else HOSTS.get(host or "", kind)
    return there if kind == "openai" and there not in ("anthropic", "gemini") else kind


def _parted(found: Moved, name: str, told: str, given: Part) -> tuple[str, str]:
    """Its provider and the model there. A name without one is whose it looks like: no key goes to another service."""
    prefix, slash, model = told.partition("/")
    if slash or _REFERENCE.match(told):
        return prefix, model
    if told.startswith("claude"):
        return "anthropic", told
    if told.startswith("gemini"):
        whose = "gemini" if given.get("api_key") else "vertex_ai"  # as LiteLLM takes it
        found.left.append(f"model_list {name!r}: {told!r} names no provider; it is taken for Google's ({whose})")
        return whose, told
    if told.startswith("command"):
        return "cohere", told
    if not (_OPENAI.match(told) or {"api_base", "base_url", "custom_llm_provider"} & set(given)):
        found.left.append(f"model_list {name!r}: {told!r} names no provider; it is taken for OpenAI's")
    return "openai", told


def _name_lost(found: Moved, name: str, given: Part, info: Part, provider: str, target: str = "") -> None:
    """What a row says besides."""
    unknown = set(given) - _PARAMS
    if target and set(COSTS) <= unknown:
        unknown -= set(COSTS)
        read, made = (_millions(given[cost]) for cost in COSTS)
        found.left.append(f"model_list {name!r}: its price; set it with: nearhit prices set {target} {read} {made}")
    if not TIMES.isdisjoint(given):
        found.left.append(f"model_list {name!r}: its timeouts; {TIME.replace('<name>', provider)}")
    for headers in sorted(unknown & {"extra_headers", "headers"}):
        unknown.remove(headers)
        found.left.append(
            f"model_list {name!r}: litellm_params {headers}: write them under providers.{provider}.headers"
        )
    for lost in by_reason("litellm_params", unknown):
        found.left.append(f"model_list {name!r}: litellm_params {lost}")
    for lost in by_reason("model_info", set(info) - _INFO - set(COSTS)):
        found.left.append(f"model_list {name!r}: model_info {lost}")


def _millions(cost: Any) -> str:
    """USD for a million tokens of what one costs."""
    return f"{(Decimal(str(cost)) * 1_000_000).normalize():f}" if isinstance(cost, int | float) else "USD"


def _without_way(kind: str, model: str) -> tuple[str, str]:
    """The model itself, and the region that stood before it: LiteLLM writes the API it asks, and where, into a name."""
    region = ""
    while True:
        first, slash, rest = model.partition("/")
        if kind == "bedrock" and model.startswith("arn:"):
            return model, region or next(iter(model.split(":")[3:4]), "")
        if slash and kind == "bedrock" and _REGION.fullmatch(first):
            region = first
        elif not slash or first not in _WAYS.get(kind, ()):
            return model, region
        model = rest


def _provider(found: Moved, kind: str, given: Part, *, called: str = "") -> str:
    base, version = _without_login(found, _address(kind, given, called)), given.get("api_version")
    own = kind not in ("azure", *LOCAL) and base is not None and urlsplit(str(base)).hostname not in HOSTS
    usual = "UPSTREAM_API_KEY" if own and called not in _SERVICES else usual_name(kind)
    if called in _SERVICES:
        usual = _SERVICES[called][1]
    key = secret(found, given, "api_key", usual)
    if kind == "bedrock":
        key = _signing_key(found, given) or key
    if key is None:
        key = _unwritten_key(found, kind, base, usual if called in _SERVICES else "")
    version = "v1" if version in _LATEST else version
    return found.provider(
        kind,
        called=called,
        base_url=base,
        api_key=key,
        api_version=str(reference(version)) if kind == "azure" and version else None,
        organization=reference(given.get("organization")) if kind == "openai" else None,
        region=_region(found, given) if kind == "bedrock" else None,
        max_in_flight=given.get("max_parallel_requests"),
    )


def _address(kind: str, given: Part, called: str) -> Any:
    """As nearhit wants it: LiteLLM adds the version to Ollama's and Anthropic's by itself, and takes Azure's from the
    environment.
    """
    base = reference(given.get("api_base") or given.get("base_url"))
    if base is None:
        usual = "${AZURE_API_BASE}" if kind == "azure" else None
        return _SERVICES[called][0] if called in _SERVICES else usual
    if kind in ("ollama", "anthropic") and isinstance(base, str):
        base = base.rstrip("/").removesuffix("/v1/messages")
        return base if base.endswith("/v1") else f"{base}/v1"
    return base


def _without_login(found: Moved, base: Any) -> Any:
    """A user name and a password in an address are secrets, and are not sent by nearhit."""
    login, at, host = urlsplit(str(base)).netloc.rpartition("@")
    if base is None or not at:
        return base
    found.say(f"the user name and password in the address of {host}: providers are asked with a key, or with `headers`")
    return str(base).replace(f"{login}@", "", 1)


def _signing_key(found: Moved, given: Part) -> str:
    names = [name for name in _CREDENTIALS if given.get(name)]
    if not names and not given.get("api_key"):
        found.say(
            "credentials of bedrock: LiteLLM finds them in the environment, profiles and roles; expected is a Bedrock "
            "API key as ${AWS_BEARER_TOKEN_BEDROCK}, or write ${AWS_ACCESS_KEY_ID}:${AWS_SECRET_ACCESS_KEY}"
        )
    return ":".join(str(secret(found, given, name, name.upper())) for name in names)


def _unwritten_key(found: Moved, kind: str, base: Any, usual: str) -> str:
    """The one that LiteLLM looks for. To a host of one's own it sends OpenAI's as well, which is not done here."""
    if kind == "azure":
        return "${AZURE_API_KEY}"
    if usual:
        return "${" + usual + "}"
    if kind in LOCAL:
        return "none"
    host = urlsplit(str(base)).hostname
    if base is None or host in HOSTS:
        return key_of(kind)
    found.say(f"{host or base} gets no key, as none is written; LiteLLM sends it {key_of(kind)}")
    return "none"


def _region(found: Moved, given: Part) -> Any:
    written = reference(given.get("aws_region_name"))
    if written is None:
        found.say("region of bedrock: none is written, it is expected as ${AWS_REGION}")
    return written or "${AWS_REGION}"


def part(given: Part, name: str) -> Part:
    """A mapping of a mapping; empty where there is none."""
    found = given.get(name)
    return cast("Part", found) if isinstance(found, dict) else {}
