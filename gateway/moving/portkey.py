"""Portkey's gateway configuration: a strategy over targets, with cache, retries and a time limit; or its headers.

Knows: what of it has a counterpart here; targets may be strategies themselves. Does not know: where the result goes.
Source: Portkey's documentation of the config object and of request headers.
"""

from typing import Any, cast

import msgspec
import yaml

from gateway.moving import KINDS, LOCAL, Moved, each_once, headers_of, key_of, usual_name

_NAME = "default"
_MODES = {"loadbalance": "weighted", "fallback": "ordered", "single": "ordered"}
Part = dict[str, Any]


def moved(text: str) -> Moved:
    """Of a configuration as JSON, or of a file of headers. Raises ValueError for what is neither."""
    headers = headers_of(text)
    if any(name.startswith("x-portkey-") for name in headers):
        return _of_headers(headers)
    read = yaml.safe_load(text)
    if not isinstance(read, dict):
        raise ValueError("it holds no mapping")
    return _of_config(cast("Part", read))


def _of_config(config: Part) -> Moved:
    """A model called `default` with all targets. One that names none holds for whatever provider a request names."""
    if not config.keys() & _WHOLE:
        raise ValueError("there are neither targets nor a provider in it: is this a Portkey configuration?")
    found = Moved()
    route = each_once(_targets(found, config)) if config.keys() & {"targets", "provider", "virtual_key"} else []
    if not found.config.get("providers") and config.keys() & {"targets", "provider"}:
        raise ValueError(f"no target leads to a provider that is known here ({'; '.join(found.left)})")
    _settle(found, config, route)
    return found


def _settle(found: Moved, config: Part, route: list[Any]) -> None:
    """What a configuration says besides its targets."""
    strategy = _part(config, "strategy")
    mode = str(strategy.get("mode") or "single")
    if mode not in _MODES:
        found.left.append(f"strategy.mode {mode}: the order is as written instead")
    elif not route and len(config.get("targets") or ()) > 1:
        found.left.append(
            f"strategy.mode {mode}: no target names a model; write a route for each model that is asked for"
        )
    for name in sorted(set(strategy) - {"mode"}):
        found.left.append(f"strategy.{name}: {_STRATEGY.get(name, 'no counterpart')}")
    if route:
        chosen: Part = {"route": route}
        if len(route) > 1:
            chosen["strategy"] = _MODES.get(mode, "ordered")
        found.config["models"] = {_NAME: chosen}
    cache = _part(config, "cache")
    found.config["cache"] = {"mode": {"simple": "exact", "semantic": "semantic"}.get(str(cache.get("mode")), "off")}
    if isinstance(cache.get("max_age"), int | float):
        found.config["cache"]["ttl"] = cache["max_age"]
    heeded = _SETTLED if "targets" in config else _SETTLED | _TARGETED  # said of it as of a target
    for name in sorted(set(config) - heeded):
        found.left.append(f"{name}: {_LEFT.get(name, 'no counterpart')}")


def _of_headers(headers: dict[str, str]) -> Moved:
    """Headers name a provider, or a configuration that is written out or kept at Portkey; the model is in each request.

    Secrets among them are not looked at.
    """
    found = Moved()
    target: Part = {name: headers[header] for header, name in _TARGET.items() if header in headers}
    config = _inline(found, headers.get("x-portkey-config", ""))
    if "targets" in config or "provider" in config or not target:
        target = {}
    route = each_once(_targets(found, {**target, **config})) if target or config else []
    _settle(found, config, route)
    for name in sorted(headers.keys() - _TARGET.keys() - {"x-portkey-config"}):
        if name.startswith("x-portkey-"):
            found.left.append(f"{name}: {_WHY.get(name, 'no counterpart')}")
    return found


def _inline(found: Moved, written: str) -> Part:
    try:
        read: object = msgspec.json.decode(written) if written.startswith("{") else None
    except msgspec.DecodeError as error:
        raise ValueError(f"the configuration in x-portkey-config is no JSON: {error}") from error
    if isinstance(read, dict):
        return cast("Part", read)
    if written:
        found.left.append(f"x-portkey-config {written!r}: it is kept at Portkey; save it as JSON and move that file")
    return {}


_TARGET = {
    "x-portkey-provider": "provider",
    "x-portkey-virtual-key": "virtual_key",
    "x-portkey-custom-host": "custom_host",
    "x-portkey-aws-region": "aws_region",
    "x-portkey-azure-resource-name": "resource_name",
    "x-portkey-azure-deployment-id": "deployment_id",
    "x-portkey-azure-api-version": "api_version",
    "x-portkey-openai-organization": "openai_organization",
}
_GOES_ON = "goes on working as a header"
_BOUNDED = "retries are bounded by a budget of a fifth of all requests"
_WHY = {
    "x-portkey-api-key": "not needed: requests carry a key of nearhit",
    "x-portkey-metadata": _GOES_ON,
    "x-portkey-cache-force-refresh": _GOES_ON,
    "x-portkey-cache-namespace": _GOES_ON,
    "x-portkey-request-timeout": _GOES_ON,
    "x-portkey-trace-id": "requests have ids of their own; `traceparent` joins traces, x-nearhit-session requests",
    "x-portkey-retry-count": _BOUNDED,
}


_STRATEGY = {
    "on_status_codes": "408, 429 and failures go to the next target, other refusals where `fallback_on` says so",
    "conditions": "no counterpart; clients may ask for a model of its own for each",
}
_SETTLED = frozenset({"strategy", "targets", "cache"})
_WHOLE = frozenset({"targets", "provider", "virtual_key", "cache", "retry"})  # what makes a configuration
_TARGETED = frozenset(  # what is heeded of a target
    {
        *("name", "provider", "virtual_key", "api_key", "custom_host", "weight", "override_params"),
        *("aws_region", "aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
        *("resource_name", "deployment_id", "api_version", "openai_organization"),
    }
)
_LEFT = {
    "retry": _BOUNDED,
    "request_timeout": "set providers.<name>.first_chunk_timeout and answer_timeout, or send x-nearhit-timeout",
    "before_request_hooks": "no counterpart",
    "after_request_hooks": "no counterpart",
    "input_guardrails": "no counterpart",
    "output_guardrails": "no counterpart",
}


def _targets(found: Moved, config: Part) -> list[Any]:
    route: list[Any] = []
    targets: Any = config.get("targets") or [config]
    if not isinstance(targets, list) or not all(isinstance(target, dict) for target in cast("list[Any]", targets)):
        raise ValueError("targets is no list of mappings")
    for target in cast("list[Part]", targets):
        if "targets" in target:
            found.say("a strategy inside a strategy: its targets stand in one row")
            route += [entry for entry in _targets(found, target) if entry not in route]
            continue
        entry = _entry(found, target, alone=target is config)
        if entry is not None:
            route.append(entry)
    return route


def _entry(found: Moved, target: Part, *, alone: bool) -> Any:
    """A place of a route; None for what leads nowhere here. `alone`: it is the whole configuration."""
    params = _part(target, "override_params")
    model, named = params.get("model"), str(target.get("provider") or "").removeprefix("@")
    if isinstance(model, str) and model.startswith("@"):  # of their catalogue: the provider stands in its name
        slug, _, model = model[1:].partition("/")
        named = named or slug
    kind = KINDS.get(named)
    if kind is None:
        what = f"provider {named!r}" if named else f"virtual key {target.get('virtual_key')!r}"
        found.left.append(f"target with {what}: write its provider and key under `providers`")
        return None
    lost = [f"override_params.{name}" for name in sorted(set(params) - {"model"})]
    lost += [] if alone else sorted(set(target) - _TARGETED)
    if lost:
        found.left.append(f"target {str(target.get('name') or named)!r}: {', '.join(lost)}")
    provider = _provider(found, kind, target, named)
    deployment = target.get("deployment_id")
    if not isinstance(model, str) or not model:
        asked = f"{provider}/{deployment or '<model>'}"
        found.left.append(f"target {named!r}: it names no model; clients may ask for `{asked}`")
        return None
    if kind == "azure" and deployment and not found.deployed(provider, model, str(deployment)):
        model = str(deployment)
    to, weight = f"{provider}/{model}", target.get("weight")
    return {"to": to, "weight": weight} if isinstance(weight, int | float) else to


def _provider(found: Moved, kind: str, target: Part, named: str) -> str:
    """Each key in plain text is an account of its own, and no key goes to another host than it was given for."""
    base, resource = target.get("custom_host"), target.get("resource_name")
    if kind == "azure" and base is None and resource:
        base = f"https://{resource}.openai.azure.com"
    if kind == "ollama" and isinstance(base, str) and not base.rstrip("/").endswith("/v1"):
        base = base.rstrip("/") + "/v1"  # which Portkey adds by itself
    usual = "UPSTREAM_API_KEY" if target.get("custom_host") else usual_name(kind)
    key = "none" if kind in LOCAL else "${" + usual + "}"
    if "virtual_key" in target:
        found.say(f"virtual key {target['virtual_key']!r}: its secret is expected as {key_of(kind)}")
        key = key_of(kind)
    if isinstance(written := target.get("api_key"), str):
        key = "${" + found.secret(written, usual) + "}"
        found.say(f"the api_key of target {named!r}: it is expected as {key}")
    elif kind == "bedrock" and target.get("aws_access_key_id"):
        names = [
            name for name in ("aws_access_key_id", "aws_secret_access_key", "aws_session_token") if target.get(name)
        ]
        key = ":".join("${" + found.secret(str(target[name]), name.upper()) + "}" for name in names)
        found.say(f"the credentials of target {named!r}: they are expected as {key}")
    return found.provider(
        kind,
        base_url=base,
        api_key=key,
        region=target.get("aws_region"),
        api_version=target.get("api_version") if kind == "azure" else None,
        organization=target.get("openai_organization") if kind == "openai" else None,
    )


def _part(given: Part, name: str) -> Part:
    found = given.get(name)
    return cast("Part", found) if isinstance(found, dict) else {}
