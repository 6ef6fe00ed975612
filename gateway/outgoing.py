"""What is sent of a client's request: the upstream's model name, a bounded output, usage asked for.

Knows: fields of OpenAI's bodies. Does not know: providers, money, who sends it.
"""

from gateway.call import PASSED, Body, Call
from gateway.estimate import Bound


def outgoing(call: Call, model: str, limits: Bound) -> Body:
    """The client's own request with the upstream's model name, a bounded output and usage asked for."""
    body = dict(call.body)
    body["model"] = model
    if limits.injected is not None:
        body[limits.field] = limits.injected
    if call.operation == "embedding" or call.operation in PASSED:
        return body
    if call.stream:
        options = body.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    else:
        body.pop("stream", None)
        body.pop("stream_options", None)
    return body
