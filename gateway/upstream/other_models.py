"""Fields by which an upstream would answer with another model than the one it is asked for.

Knows: those of services and of gateways that may stand behind an address, at the top of a body and where their clients
put what OpenAI does not define. Does not know: Anthropic's `fallbacks` in its own language, which are held against the
key and priced (`gateway.charging`); who asks; prices.
"""

from collections.abc import Iterator
from typing import cast

from gateway.call import Body
from gateway.errors import InvalidRequest

# OpenRouter's and Vercel's, LiteLLM's, other gateways'. A stranger to them refuses or ignores them.
_NAMING = frozenset(
    (
        *("models", "fallbacks", "model_fallbacks", "fallback_models", "default_fallbacks"),
        *("context_window_fallbacks", "content_policy_fallbacks", "model_list", "user_config"),
    )
)
_WITHIN = ("extra_body", "additionalModelRequestFields", "providerOptions", "provider_options")
_LOOKED_AT = _NAMING | {"plugins", "tools", "route", *_WITHIN}


def refuse(body: Body, but: str = "") -> None:
    """Raises InvalidRequest for the first such field: it would go past allowed models, holds and prices.

    `but`: the one that has been looked at elsewhere.
    """
    if _LOOKED_AT.isdisjoint(body):  # as nearly every request is
        return
    found = next((path for path in _named(body) if path != but), "")
    if found:
        raise InvalidRequest(
            f"`{found}` is not sent to an upstream: which other models may answer stands in the route of a name in "
            "nearhit.yaml. Ask for such a name, or leave the field out.",
            param=found,
            code="unsupported_parameter",
        )


def _named(body: Body) -> Iterator[str]:
    if not _NAMING.isdisjoint(body):
        yield from sorted(name for name in body.keys() & _NAMING if body[name] not in (None, False, "", [], {}))
    for at, plugin in enumerate(_objects(body.get("plugins"))):
        yield from (f"plugins[{at}].{name}" for name in plugin if _is_choice(name))
    for at, tool in enumerate(_objects(body.get("tools"))):
        if str(tool.get("type")).startswith("openrouter:"):
            given = tool.get("parameters")
            told = cast("Body", given) if isinstance(given, dict) else {}
            yield from (f"tools[{at}].parameters.{name}" for name in told if _is_choice(name))
    if body.get("route") == "fallback":  # OpenRouter's older word: it picks a model by itself
        yield "route"
    for name in _WITHIN:
        inner = body.get(name)
        if isinstance(inner, dict):
            told = cast("Body", inner)
            yield from (f"{name}.{path}" for path in _named(told))
            gateway = told.get("gateway")
            if isinstance(gateway, dict):
                yield from (f"{name}.gateway.{path}" for path in _named(cast("Body", gateway)))


def _objects(value: object) -> list[Body]:
    rows = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Body", row) for row in rows if isinstance(row, dict)]


def _is_choice(name: str) -> bool:
    """What a router that was asked for by name may choose among (`allowed_models`) only narrows it."""
    return name == "model" or (name.endswith("models") and name != "allowed_models")
