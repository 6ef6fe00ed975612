"""Ended requests to feed to telemetry."""

from typing import Any

from gateway.call import Call, Directives, Operation, Outcome, Principal
from gateway.telemetry import Attempt, Timings
from policies.money import Usage

REQUEST_ID = "01999f00-0000-7000-8000-0000000000ff"
AT = 1_790_000_000.0


def a_call(
    *,
    stream: bool = False,
    operation: Operation = "chat",
    model: str = "smart",
    traceparent: str | None = None,
    request_id: str = REQUEST_ID,
    **body: Any,
) -> Call:
    return Call(
        id=request_id,
        operation=operation,
        principal=Principal(key_id="key-1", team="acme", project="app"),
        body={"messages": [{"role": "user", "content": "the secret recipe"}], **body},
        model=model,
        stream=stream,
        include_usage=False,
        directives=Directives(traceparent=traceparent),
        received=100.0,
        at=AT,
        deadline=160.0,
    )


def a_miss(call: Call | None = None, **changes: Any) -> Outcome:
    """Answered by an upstream: 10 tokens in, 20 out, 1.5 milli-USD, 400 ms of which 390 upstream."""
    given: dict[str, Any] = {
        "source": "upstream",
        "cache": "miss",
        "provider": "openai",
        "model": "gpt-5-mini",
        "attempts": 1,
        "usage": Usage(prompt=10, cached=4, completion=20),
        "cost_nano": 1_500_000,
        "ttft_ms": 100.0,
        "total_ms": 400.0,
        "upstream_ms": 390.0,
        "answer_ms": 390.0,
        "chunks": 20,
        "finish": "stop",
        "complete": True,
    }
    return Outcome(call=call or a_call(), **{**given, **changes})


def a_hit(call: Call | None = None, **changes: Any) -> Outcome:
    """Answered by meaning from the cache, saving 1.5 milli-USD."""
    given: dict[str, Any] = {
        "source": "semantic",
        "cache": "hit-semantic",
        "usage": Usage(prompt=10, completion=20),
        "saved_nano": 1_500_000,
        "similarity": 0.97,
        "confidence": 0.999,
        "total_ms": 6.0,
        "complete": True,
    }
    return Outcome(call=call or a_call(), **{**given, **changes})


def marks(**changes: Any) -> Timings:
    """A miss whose steps take 1, 5, 2, 92 and 300 ms."""
    given: dict[str, Any] = {
        "received": 100.0,
        "admitted": 100.001,
        "looked_up": 100.006,
        "dispatched": 100.008,
        "first_chunk": 100.100,
        "ended": 100.400,
        "attempts": [Attempt(provider="openai", model="gpt-5-mini", started=100.008, first_chunk=100.1)],
    }
    return Timings(**{**given, **changes})
