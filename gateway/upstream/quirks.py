"""In what a service differs from the language it imitates: requests before they leave, answers as they come.

Knows: fields under other names, fields that would be refused, finish reasons, where reasoning and counts stand.
Does not know: which service (each says it in its own file), addresses, streams.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import cast

import msgspec
from msgspec import Struct

from gateway.call import Body, Native, Operation
from gateway.errors import InvalidRequest
from gateway.providers import Sending
from gateway.stream import StreamGarbage
from gateway.stream_reader import prompts_of
from gateway.upstream import other_models
from gateway.upstream.fields import mapping, objects
from gateway.upstream.passing import WORDS

_encode = msgspec.json.Encoder().encode
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
# What OpenAI keeps, bills and caches by, of which most that speak its language know nothing.
OPENAIS_OWN = frozenset(
    {
        "store",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
    }
)


class Quirks(Struct, frozen=True, kw_only=True):
    """`renamed`: request fields it calls otherwise. `dropped`: fields it refuses although they change no answer.

    `refused`: fields OpenAI defines that it cannot honour, a 400 here rather than silence there; `one_choice`: `n` too,
    `one_prompt`: a list of prompts. `instead`: what does the same here, of those that are refused for our own sake.
    `names_tools`: whether a tool can be chosen by name, else it is the only one and required. `chooses_among`: whether
    it knows `allowed_tools`, else the others are not offered.
    `operations`: what it has. `developer`: whether it knows that role (else it is told as `system`). `message_fields`:
    the only fields of a message that it takes, where it refuses others.
    `short_ids`: calls of tools must have ids of nine letters and digits.
    `finishes`: finish reasons it calls otherwise; `broken`: those that mean that the answer is none. `reasoning`: the
    field that OpenAI's imitators call `reasoning_content`. `counts_apart`: reasoning is not a part of the completion
    tokens. `parts`: text may come as a list of parts, with thinking among them. `empties`: it sends roles and calls of
    tools that hold nothing, which clients take for something. `runs_tools`: it tells those that it ran itself in
    `executed_tools`. `bare_calls`: calls of tools may lack `type`, and
    `arguments` where there are none or tell them as an object; clients insist on both, and on text.
    """

    renamed: Mapping[str, str] = {}
    dropped: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    instead: Mapping[str, str] = {}
    one_choice: bool = False
    one_prompt: bool = False
    names_tools: bool = True
    chooses_among: bool = False
    operations: frozenset[Operation] = frozenset(WORDS)
    developer: bool = True
    message_fields: frozenset[str] = frozenset()
    short_ids: bool = False
    finishes: Mapping[str, str] = {}
    broken: frozenset[str] = frozenset()
    reasoning: str = ""
    counts_apart: bool = False
    parts: bool = False
    empties: bool = False
    bare_calls: bool = False
    runs_tools: bool = False

    @property
    def tells(self) -> bool:
        """Whether answers have to be looked at."""
        return bool(
            self.finishes
            or self.broken
            or self.reasoning
            or self.counts_apart
            or self.parts
            or self.empties
            or self.bare_calls
        )

    @property
    def picky(self) -> bool:
        """Whether there is anything that it does not do."""
        return bool(self.refused or self.one_choice or self.one_prompt or len(self.operations) < len(WORDS))

    # -- requests ----------------------------------------------------------------------------------------------

    def asked(self, name: str, sending: Sending, body: Body) -> Body:
        """The request as this service takes it; `body` is not changed. Raises InvalidRequest for what it cannot do."""
        self.check_operation(name, sending)
        if field := self._refused(body):
            told = self.instead.get(field, f"{name} cannot honour `{field}`.")
            raise InvalidRequest(told, param=field, code="unsupported_parameter")
        other_models.refuse(body)
        if self.dropped or self.renamed:
            body = self._renamed(body)
        if body.get("tool_choice").__class__ is dict:  # a word in nearly every request
            body = body if self.chooses_among else _only_allowed(body)
            body = body if self.names_tools else _only_named(body)
        if self.developer and not self.short_ids and not self.message_fields:
            return body
        messages = body.get("messages")
        if isinstance(messages, list):
            body = {**body, "messages": [self._message(message) for message in cast("list[object]", messages)]}
        return body

    def _renamed(self, body: Body) -> Body:
        """What is null under one of two names leaves the other alone; of two values the newer name's counts."""
        told = {key: value for key, value in body.items() if key not in self.dropped and key not in self.renamed}
        for key, name in self.renamed.items():
            if key in body and (body[key] is not None or name not in told):
                told[name] = body[key]
        return told

    def check_operation(self, name: str, sending: Sending) -> None:
        """Raises InvalidRequest for what this service does not have."""
        if sending.operation not in self.operations:
            raise InvalidRequest(
                f"{name} makes no {WORDS[sending.operation]}.", param="model", code="unsupported_operation"
            )

    def check_models(self, body: Body) -> None:
        """Of a request in another language than chat. Raises InvalidRequest where it names models to ask instead."""
        if field := min((name for name in body.keys() & self.instead.keys() if body[name]), default=""):
            raise InvalidRequest(self.instead[field], param=field, code="unsupported_parameter")
        other_models.refuse(body)

    def cannot(self, operation: Operation, body: Body, native: Native | None) -> str:  # noqa: ARG002 - no language of its own
        """What of a request this service does not do, as `gateway.providers` says."""
        return operation if operation not in self.operations else self._refused(body)

    def _refused(self, body: Body) -> str:
        """The first field that it cannot honour; empty where there is none."""
        if not self.refused.isdisjoint(body):
            refused = [field for field in body.keys() & self.refused if body[field] not in (None, False, {})]
            if refused:
                return min(refused)
        if self.one_choice and body.get("n") not in (None, 1):
            return "n"
        return "prompt" if self.one_prompt and prompts_of(body) else ""

    def _message(self, message: object) -> object:
        if not isinstance(message, dict):
            return message
        told = dict(cast("Body", message))
        if not self.developer and told.get("role") == "developer":
            told["role"] = "system"
        if self.message_fields:
            # What an answer held besides its text comes back with the conversation, thoughts above all.
            told = {name: value for name, value in told.items() if name in self.message_fields}
            if calls := objects(told.pop("tool_calls", None)):
                told["tool_calls"] = [_bare(call) for call in calls]
        if self.short_ids:
            if isinstance(told.get("tool_call_id"), str):
                told["tool_call_id"] = _short(str(told["tool_call_id"]))
            calls = told.get("tool_calls")
            if isinstance(calls, list):
                told["tool_calls"] = [{**call, "id": _short(str(call.get("id")))} for call in cast("list[Body]", calls)]
        return told

    # -- answers -----------------------------------------------------------------------------------------------

    def tell(self, body: Body) -> None:
        """Put an event or a body into OpenAI's words, in place. Raises StreamGarbage where it says it broke off."""
        choices = body.get("choices")
        for choice in cast("list[object]", choices) if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._choice(cast("Body", choice))
        usage = body.get("usage")
        if self.counts_apart and isinstance(usage, dict):
            _count_in(cast("Body", usage))

    def _choice(self, choice: Body) -> None:
        finish = choice.get("finish_reason")
        if isinstance(finish, str):
            if finish in self.broken:
                raise StreamGarbage(f"broke off its answer ({finish})")
            if finish in self.finishes:
                choice["native_finish_reason"], choice["finish_reason"] = finish, self.finishes[finish]
            elif not finish:
                choice["finish_reason"] = None
        message = choice.get("message")
        for said in (choice.get("delta"), message):
            if isinstance(said, dict):
                self._said(cast("Body", said))
                if self.bare_calls:
                    _clothe(cast("Body", said), whole=said is message)

    def _said(self, said: Body) -> None:
        if self.parts and isinstance(said.get("content"), list):
            _flatten(said)
        if self.empties:
            for name in ("tool_calls", "role"):
                if name in said and not said[name]:
                    del said[name]
        if self.reasoning and self.reasoning in said:
            thought = said.pop(self.reasoning)
            if thought and not said.get("reasoning_content"):
                said["reasoning_content"] = thought


def _only_allowed(body: Body) -> Body:
    """The tools of which some may be called, as the only ones there are. Raises InvalidRequest where there is none."""
    choice = mapping(body.get("tool_choice"))
    if choice.get("type") != "allowed_tools":
        return body
    given = mapping(choice.get("allowed_tools"))
    names = {_name_of(tool) for tool in objects(given.get("tools"))}
    tools = [tool for tool in objects(body.get("tools")) if _name_of(tool) in names]
    required = given.get("mode") == "required"
    if tools:
        return {**body, "tools": tools, "tool_choice": "required" if required else "auto"}
    if required:
        raise InvalidRequest("'tool_choice' allows no tool that is among 'tools'.", param="tool_choice")
    return {name: value for name, value in body.items() if name not in ("tools", "tool_choice", "parallel_tool_calls")}


def _name_of(tool: Body) -> object:
    kind = tool.get("type", "function")
    return mapping(tool.get(kind) if isinstance(kind, str) else None).get("name")


def _only_named(body: Body) -> Body:
    """A tool that is chosen by name as the only one there is, which must be called."""
    name = mapping(mapping(body.get("tool_choice")).get("function")).get("name")
    if not isinstance(name, str):
        return body
    tools = [tool for tool in objects(body.get("tools")) if mapping(tool.get("function")).get("name") == name]
    return {**body, "tools": tools, "tool_choice": "required"}


def _bare(call: Body) -> Body:
    """A call as OpenAI defines it."""
    return {name: call[name] for name in ("id", "type", "function") if name in call}


def _clothe(said: Body, *, whole: bool) -> None:
    """Calls of tools get what OpenAI never leaves out; the arguments of a streamed one may be yet to come."""
    for call in objects(said.get("tool_calls")):
        if call.get("id"):
            call.setdefault("type", "function")
        function = mapping(call.get("function"))
        if whole and not isinstance(function.get("arguments"), str):
            function["arguments"] = _encode(function.get("arguments") or {}).decode()


def _flatten(said: Body) -> None:
    """Parts of text and of thinking, as Mistral's reasoning models send them."""
    text, thought = "", ""
    for part in cast("list[Body]", said["content"]):
        inner = part.get("thinking")
        if isinstance(inner, list):
            thought += "".join(str(piece.get("text") or "") for piece in cast("list[Body]", inner))
        else:
            text += str(part.get("text") or "")
    said["content"] = text
    if thought:
        said["reasoning_content"] = thought


def _count_in(usage: Body) -> None:
    """Reasoning tokens become a part of the completion tokens, where the total says that they are not yet."""
    details = usage.get("completion_tokens_details")
    reasoning = cast("Body", details).get("reasoning_tokens") if isinstance(details, dict) else None
    prompt, completion, total = (usage.get(f"{name}_tokens") for name in ("prompt", "completion", "total"))
    if not (isinstance(reasoning, int) and isinstance(prompt, int) and isinstance(completion, int)):
        return
    if isinstance(total, int) and total >= prompt + completion + reasoning:
        usage["completion_tokens"] = completion + reasoning


def _short(name: str) -> str:
    """The same nine characters for the same id, every time."""
    return name if _SHORT_ID.fullmatch(name) else blake2b(name.encode(), digest_size=5).hexdigest()[:9]
