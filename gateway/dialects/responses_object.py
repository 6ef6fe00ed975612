"""OpenAI's Response object: every key a strict client looks for, as the request and its answer make it.

Knows the object only. Does not know: events, how items come about.
"""

from typing import cast

import msgspec

from gateway.call import Body
from gateway.dialects.conversations import name_of
from gateway.dialects.responses_client_tools import runs_at_client
from gateway.dialects.responses_shapes import Format, Responses, Tool

_builtins = msgspec.to_builtins
# Strict clients read no other word; what else was asked for is some upstream's own.
_TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "fast", "ultrafast"})

_KEPT = ("in_memory", "24h")


def blank(asked: Responses) -> Body:
    """The answer before anything is known of it; `store` is false until somebody keeps it."""
    reasoning = asked.reasoning
    conversation = name_of(asked.conversation)
    return {
        "object": "response",
        "status": "in_progress",
        "background": bool(asked.background),
        "completed_at": None,
        **({"conversation": {"id": conversation}} if conversation is not None else {}),
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": None,
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        **({"prompt_cache_retention": retention} if (retention := asked.prompt_cache_retention) in _KEPT else {}),
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        "safety_identifier": asked.safety_identifier,
        "service_tier": asked.service_tier if asked.service_tier in _TIERS else "default",
        "store": False,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "text": _text(asked),
        "tool_choice": asked.tool_choice or "auto",
        "tools": [_tool(tool) for tool in asked.tools or () if _is_offered(tool)],
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "truncation": asked.truncation or "disabled",
        "usage": None,
        "user": asked.user,
        "metadata": asked.metadata or {},
    }


def _text(asked: Responses) -> Body:
    text = asked.text
    wanted = (text.format if text else None) or Format(type="text")
    told: Body = {"format": {"type": wanted.type}}
    if wanted.type == "json_schema":
        schema: Body = {"name": wanted.name, "description": wanted.description, "schema": wanted.schema}
        told["format"] = {"type": wanted.type, **schema, "strict": bool(wanted.strict)}
    if text is not None and text.verbosity is not None:
        told["verbosity"] = text.verbosity
    return told


def _is_offered(tool: Tool) -> bool:
    """What a service would run has no part in this answer, and is named to the client where it is left out."""
    return tool.type in ("function", "custom", "namespace") or runs_at_client(tool)


def _tool(tool: Tool) -> Body:
    if tool.type == "function":
        said: Body = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", **said, "strict": bool(tool.strict)}
    return {name: value for name, value in cast("Body", _builtins(tool)).items() if value is not None}


def usage(told: object) -> Body | None:
    """Chat's usage in this dialect's names; None while it is not known."""
    if not isinstance(told, dict):
        return None
    given = cast("Body", told)
    prompt, made = _count(given, "prompt_tokens"), _count(given, "completion_tokens")
    before = cast("Body", given.get("prompt_tokens_details") or {})
    after = cast("Body", given.get("completion_tokens_details") or {})
    found: Body = {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": _count(before, "cached_tokens"),
            "cache_write_tokens": _count(before, "cache_write_tokens"),
        },
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": _count(after, "reasoning_tokens")},
        "total_tokens": prompt + made,
    }
    return found | ({"cost": given["cost"]} if "cost" in given else {})


def _count(given: Body, name: str) -> int:
    value = given.get(name)
    return value if isinstance(value, int) else 0
