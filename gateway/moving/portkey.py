"""Portkey's gateway configuration: a strategy over targets, with cache, retries and a time limit; or its headers.

Knows: what of it has a counterpart here; targets may be strategies themselves. Does not know: where the result goes.
Source: Portkey's documentation of the config object and of request headers.
"""

from typing import Any, cast

import msgspec
import yaml

from gateway.moving import KINDS, LOCAL, Moved, headers_of, key_of

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
    """A model called `default` with all targets."""
    if not isinstance(config.get("targets"), list) and not config.get("provider"):
        raise ValueError("there are neither targets nor a provider in it: is this a Portkey configuration?")
    found = Moved()
    route = _targets(found, config)
    if not route:
        raise ValueError("no target names a model (override_params.model) of a provider that is known here")
    _settle(found, config, route)
    return found


def _settle(found: Moved, config: Part, route: list[Any]) -> None:
    """What a configuration says besides its targets."""
    mode = str(cast("Part", config.get("strategy") or {}).get("mode") or "single")
    if mode not in _MODES:
        found.left.append(f"strategy.mode {mode}: the order is as written instead")
    if route:
        chosen: Part = {"route": route}
        if len(route) > 1:
            chosen["strategy"] = _MODES.get(mode, "ordered")
        found.config["models"] = {_NAME: chosen}
    cache = cast("Part", config.get("cache") or {})
    found.config["cache"] = {"mode": {"simple": "exact", "semantic": "semantic"}.get(str(cache.get("mode")), "off")}
    if isinstance(cache.get("max_age"), int | float):
        found.config["cache"]["ttl"] = cache["max_age"]
    for name, why in _LEFT.items():
        if name in config:
            found.left.append(f"{name}: {why}")


def _of_headers(headers: dict[str, str]) -> Moved:
    """Headers name a provider, or a configuration that is written out or kept at Portkey; the model is in each request.

    Secrets among them are not looked at.
    """
    found = Moved()
    target: Part = {name: headers[header] for header, name in _TARGET.items() if header in headers}
    config = _inline(found, headers.get("x-portkey-config", ""))
    if "targets" in config or "provider" in config or not target:
        target = {}
    route = _targets(found, {**target, **config}) if target or config else []
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


_LEFT = {
    "retry": _BOUNDED,
    "request_timeout": "set providers.<name>.first_chunk_timeout, or send x-nearhit-timeout",
    "before_request_hooks": "no counterpart",
    "after_request_hooks": "no counterpart",
    "input_guardrails": "no counterpart",
    "output_guardrails": "no counterpart",
}


def _targets(found: Moved, config: Part) -> list[Any]:
    route: list[Any] = []
    for target in cast("list[Part]", config.get("targets") or [config]):
        if "targets" in target:
            found.left.append("a strategy inside a strategy: its targets stand in one row")
            route += [entry for entry in _targets(found, target) if entry not in route]
            continue
        entry = _entry(found, target)
        if entry is not None and entry not in route:
            route.append(entry)
    return route


def _entry(found: Moved, target: Part) -> Any:
    named = str(target.get("provider") or "").removeprefix("@")
    kind = KINDS.get(named)
    if kind is None:
        what = f"provider {named!r}" if named else f"virtual key {target.get('virtual_key')!r}"
        found.left.append(f"target with {what}: write its provider and key under `providers`")
        return None
    base = target.get("custom_host")
    if "virtual_key" in target:
        found.left.append(f"virtual key {target['virtual_key']!r}: its secret is expected as {key_of(kind)}")
    if "api_key" in target:
        found.left.append(f"the api_key of target {named!r}: it is expected as {key_of(kind)}")
    key = "none" if kind in LOCAL and "api_key" not in target else key_of(kind)
    provider = found.provider(kind, base_url=base, api_key=key, region=target.get("aws_region"))
    model = cast("Part", target.get("override_params") or {}).get("model")
    if not isinstance(model, str):
        found.left.append(f"target {named!r}: it names no model; clients may ask for `{provider}/<model>`")
        return None
    to, weight = f"{provider}/{model}", target.get("weight")
    return {"to": to, "weight": weight} if isinstance(weight, int | float) else to
