"""Rows of docs/edge-cases.md that are about one field: what is sent, and the path the refusal names."""

from typing import Any, NamedTuple

CHAT, COMPLETE, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HI = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


class Row(NamedTuple):
    """`number`: of the row; `param`: of the refusal; `body`: what is sent, to `path`."""

    number: int
    param: str
    body: dict[str, Any]
    path: str = CHAT


def chat(number: int, param: str, **fields: Any) -> Row:
    return Row(number, param, {"model": "chat", "messages": [HI], **fields})


def said(number: int, param: str, messages: Any) -> Row:
    return Row(number, param, {"model": "chat", "messages": messages})


def embed(number: int, param: str, **fields: Any) -> Row:
    return Row(number, param, {"model": "embed", **fields}, EMBED)


ROWS = [
    Row(19, "model", {"messages": [HI]}),
    Row(20, "model", {"model": None, "messages": [HI]}),
    Row(21, "model", {"model": ["chat"], "messages": [HI]}),
    Row(26, "messages", {"model": "chat"}),
    said(27, "messages", []),
    said(28, "messages", "hi"),
    said(29, "messages", None),
    said(30, "messages[0].role", [{}]),
    said(31, "messages[0]", [123]),
    said(32, "messages[0].role", [{"role": "king", "content": "hi"}]),
    said(33, "messages[0].role", [{"role": {}, "content": "hi"}]),
    said(34, "messages[0].content", [{"role": "user", "content": 5}]),
    said(35, "messages[0].content", [{"role": "user", "content": None}]),
    said(36, "messages[0].content[0].type", [{"role": "user", "content": [{"type": "hologram"}]}]),
    said(37, "messages[0].content[0].text", [{"role": "user", "content": [{"type": "text"}]}]),
    said(38, "messages[1].tool_call_id", [HI, {"role": "tool", "tool_call_id": "c", "content": "x"}]),
    chat(42, "temperature", temperature=3),
    chat(43, "temperature", temperature=-1),
    chat(44, "temperature", temperature="hot"),
    chat(45, "temperature", temperature=True),
    chat(46, "top_p", top_p=1.5),
    chat(47, "top_p", top_p=-0.1),
    chat(48, "n", n=0),
    chat(49, "n", n=129),
    chat(50, "n", n="two"),
    chat(51, "max_tokens", max_tokens=-1),
    chat(52, "max_tokens", max_tokens="ten"),
    chat(53, "max_tokens", max_tokens=1.5),
    chat(54, "presence_penalty", presence_penalty=5),
    chat(55, "frequency_penalty", frequency_penalty=-9),
    chat(56, "stop", stop=["a", "b", "c", "d", "e"]),
    chat(57, "stop", stop=5),
    chat(58, "logit_bias", logit_bias={"1": 500}),
    chat(59, "stream", stream="yes"),
    chat(60, "seed", seed="abc"),
    chat(61, "stream_options", stream_options={"include_usage": True}),
    chat(62, "top_logprobs", top_logprobs=3),
    chat(63, "response_format.type", response_format={"type": "xml"}),
    chat(64, "response_format.json_schema", response_format={"type": "json_schema"}),
    chat(65, "tools", tools="x"),
    chat(66, "tools[0].function", tools=[{"type": "function"}]),
    chat(67, "tools[0].function.name", tools=[{**TOOL, "function": {"name": "bad name!"}}]),
    chat(68, "tools[0].function.parameters", tools=[{**TOOL, "function": {"name": "f", "parameters": "x"}}]),
    chat(69, "tool_choice", tool_choice="required"),
    chat(70, "top_logprobs", logprobs=True, top_logprobs=21),
    chat(71, "tool_choice", tools=[TOOL], tool_choice={"type": "function", "function": {"name": "absent"}}),
    embed(73, "input", input=""),
    embed(74, "input", input=[]),
    embed(75, "input"),
    embed(76, "input", input={}),
    embed(77, "input", input=[1, "a"]),
    embed(78, "input", input=["a"] * 2_049),
    embed(79, "dimensions", input="a", dimensions=0),
    embed(80, "encoding_format", input="a", encoding_format="hex"),
]
