"""A chat completion told as OpenAI's Response, whole or as events.

Knows: which items an answer has, when each begins and ends, sequence numbers, errors. Does not know: requests beyond
what the Response repeats of them, HTTP.
"""

import time
from collections.abc import Callable, Iterable
from typing import cast

import msgspec

from gateway.call import Body, Native
from gateway.dialects.chat import dicts, first_choice, text_of, thought_of
from gateway.dialects.conversations import name_of
from gateway.dialects.named import detail_of
from gateway.dialects.responses_compaction import compacted
from gateway.dialects.responses_items import Called, Event, Noted, Ran, Said, on_the_wire
from gateway.dialects.responses_object import blank, usage
from gateway.dialects.responses_relay import Relay, events_of
from gateway.dialects.responses_request import Inner
from gateway.errors import GatewayError, NotFound

_encode = msgspec.json.Encoder().encode
_NAMED = {
    "logprobs": "include",
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
_BEGINNINGS = frozenset(("response.created", "response.queued", "response.in_progress"))


def refusal(error: GatewayError) -> tuple[int, bytes]:
    """OpenAI's shape; a model that does not exist is a bad request on this route."""
    if isinstance(error, NotFound) and error.code == "model_not_found":
        return 400, _encode({"error": {**error.detail(), "param": "model"}})
    return error.http_status, _encode({"error": detail_of(error, _NAMED)})


class ResponsesVoice:
    """Obeys gateway.dialects.Voice and Native.

    `items`: what the client has asked with. `keeps`: the response is to be kept. `now`: wall-clock seconds.
    """

    speaks = "responses"

    def __init__(self, inner: Inner, now: Callable[[], float] = time.time) -> None:
        self._inner = inner
        self._now = now
        self._relay = Relay()
        self._output: list[Body] | None = None
        self._response: Body = blank(inner.asked)
        self.items = inner.items
        self.keeps = inner.keeps
        self._id = ""
        self._created: object = 0
        self._begun = self._announced = False
        self._sequence = 0
        self._items: list[Said | Called | Ran | Noted] = []
        self._saying: Said | None = None
        self._calls: dict[int, Called | Ran] = {}
        self._waiting: list[Said] = []  # said in full, and not told yet
        self._finish = ""

    def expect(self, usage: object) -> None:
        """This dialect tells usage at the end only."""

    def whole(self, body: Body) -> bytes:
        """The same items that the events would have made."""
        self._begin(body)
        choice = first_choice(body)
        self._take(cast("Body", choice.get("message") or {}), choice)
        self._finish = str(choice.get("finish_reason") or "")
        self._response["usage"] = usage(body.get("usage"))
        return _encode(self.final())

    @property
    def native(self) -> Native | None:
        """The request as OpenAI itself would take it; None where only its words are wanted."""
        return self._inner.native

    def natively(self, events: list[Body], data: Body) -> bytes:
        if not self._begun:
            self._begin(data)
        told = self._relay.told(events, self._ours())
        return self._tell(one for one in told if not (self._announced and one[0] in _BEGINNINGS))

    @property
    def background(self) -> bool:
        """It is made whether or not the client waits for it."""
        return bool(self._inner.asked.background)

    @property
    def conversation(self) -> str | None:
        """Which one it reads, and is to be a part of."""
        return name_of(self._inner.asked.conversation)

    def alone(self) -> None:
        """It could not be made a part of its conversation, and says so."""
        self._response["conversation"] = None

    def queued(self, request_id: str, model: str, at: float) -> Body:
        """The response before it is begun."""
        self._begin({"id": request_id.replace("-", ""), "created": int(at), "model": model})
        self._begun = False
        return {**self._response, "status": "queued"}

    def announced(self, queued: Body) -> tuple[Body, bytes]:
        """The response once it is begun, and the events up to there: before the model has said a word."""
        self._begun = self._announced = True
        first: list[Event] = [(f"response.{kind}", {"response": queued}) for kind in ("created", "queued")]
        return self._response, self._tell([*first, ("response.in_progress", {"response": self._response})])

    def broken(self, error: GatewayError) -> Body:
        """The response when it has failed."""
        said = {"code": "server_error", "message": error.detail()["message"]}
        return {**self.final(), "status": "failed", "error": said, "incomplete_details": None, "completed_at": None}

    def events(self, data: Body) -> bytes:
        if data.get("usage") is not None:
            self._response["usage"] = usage(data["usage"])
        if self._relay.used:
            return b""
        told = b"" if self._begun else self._start(data)
        choice = first_choice(data)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            told += self._tell(self._take(cast("Body", delta), choice))
        if choice.get("finish_reason") is not None:
            self._finish = str(choice["finish_reason"])
            told += self._tell(self._close())
        return told

    def end(self) -> bytes:
        told = (b"" if self._begun else self._start({})) + self._tell(self._close())
        final = self.final()
        return told + self._tell([(f"response.{final['status']}", {"response": final})])

    def failed(self, error: GatewayError) -> bytes:
        """The error itself and then the Response that it ended, as OpenAI does."""
        detail = error.detail()
        told: Body = {"code": detail["code"], "message": detail["message"], "param": detail["param"]}
        return self._tell([("error", told), ("response.failed", {"response": self.broken(error)})])

    def _begin(self, data: Body) -> None:
        self._begun = True
        self._id = str(data.get("id") or "").removeprefix("chatcmpl-")
        self._created = data.get("created", 0)
        head = {"id": f"resp_{self._id}", "created_at": self._created, "model": data.get("model")}
        self._response = {**self._response, **head, "store": self.keeps}

    def _start(self, data: Body) -> bytes:
        self._begin(data)
        begun: Body = {"response": self._response}
        return self._tell([("response.created", begun), ("response.in_progress", begun)])

    def _ours(self) -> Body:
        """What of a response is nearhit's, whoever made it."""
        names = ("id", "created_at", "model", "previous_response_id", "background", "prompt_cache_key", "conversation")
        told = {name: self._response[name] for name in names if name in self._response}
        return {**told, "store": self.keeps}

    def final(self) -> Body:
        """The whole response, as far as it has come."""
        if self._relay.response:
            return {**self._relay.response, **self._ours(), "usage": self._response["usage"]}
        reason = _CUT.get(self._finish)
        status = "incomplete" if reason else "completed"
        output = self._relay.items if self._relay.used else self._output
        return {
            **self._response,
            "store": self.keeps,
            "status": status,
            "completed_at": None if reason else int(self._now()),
            "incomplete_details": {"reason": reason} if reason else None,
            "output": output if output is not None else [item.item(self._status(item)) for item in self._items],
        }

    def _take(self, delta: Body, choice: Body) -> list[Event]:
        """Add a delta to the items; the events that tell it."""
        found: list[Event] = []
        if self._output is not None:
            return found
        if output := dicts(delta.get("native_output")):
            self._output = output  # and what chat says of it besides is the same once more
            return [event for index, item in enumerate(output) for event in events_of(item, index)]
        if thought := thought_of(delta):
            found += self._said("reasoning_text", thought, [])
        if text := text_of(delta.get("content")):
            found += self._said("output_text", text, self._logprobs(choice))
        if refused := text_of(delta.get("refusal")):
            found += self._said("refusal", refused, [])
        for position, call in enumerate(dicts(delta.get("tool_calls"))):
            found += self._called(position, call)
        return found

    def _logprobs(self, choice: Body) -> list[Body]:
        told = choice.get("logprobs")
        if not self._inner.logprobs or not isinstance(told, dict):
            return []
        return dicts(cast("Body", told).get("content"))

    def _said(self, kind: str, text: str, logprobs: list[Body]) -> list[Event]:
        found: list[Event] = []
        item = self._saying
        if item is None or item.kind != kind:
            found += self._hush()
            prefix = "rs" if kind == "reasoning_text" else "msg"
            index = len(self._items)
            item = self._saying = Said(f"{prefix}_{self._id}_{index}", index, kind, self._is_late())
            self._items.append(item)
            found += item.begin()
        if (event := item.add(text, logprobs)) is not None:
            found.append(event)
        return found

    def _called(self, position: int, call: Body) -> list[Event]:
        """Pieces of several calls may alternate, so calls end together."""
        found: list[Event] = []
        index = call.get("index")
        place = index if isinstance(index, int) else position
        function = cast("Body", call.get("function") or {})
        item = self._calls.get(place)
        if item is None:
            found += self._hush()
            item = self._calls[place] = self._new_call(call, str(function.get("name") or ""))
            found += item.begin()
        if (text := text_of(function.get("arguments"))) and (event := item.add(text)) is not None:
            found.append(event)
        return found

    def _new_call(self, call: Body, name: str) -> Called | Ran:
        index = len(self._items)
        call_id = str(call.get("id") or f"call_{self._id}_{index}")
        if (kind := self._inner.own.get(name)) is not None:
            item = Ran(f"{kind.prefix}_{self._id}_{index}", index, call_id, kind)
        else:
            space, outer = self._inner.names.outer(name)
            custom, late = name in self._inner.custom, self._is_late()
            item = Called(f"fc_{self._id}_{index}", index, call_id, outer, space, custom, late)
        self._items.append(item)
        return item

    def _is_late(self) -> bool:
        """Whether one is open that is told at its end: what begins behind it waits for it."""
        return any(call.late for call in self._calls.values())

    def _hush(self) -> Iterable[Event]:
        """The end of what is being said, now or when its turn has come."""
        item, self._saying = self._saying, None
        if item is None:
            return ()
        if item.late:
            self._waiting.append(item)
            return ()
        return list(item.end(self._status(item)))

    def _close(self) -> list[Event]:
        found: list[Event] = []
        said = self._waiting if self._saying is None else [*self._waiting, self._saying]
        for item in sorted([*said, *self._calls.values()], key=lambda item: item.index):
            found += item.end(self._status(item))
        self._saying, self._waiting, self._calls = None, [], {}
        return found

    def _status(self, item: Said | Called | Ran | Noted) -> str:
        """Only the last item can have been cut."""
        return "incomplete" if self._finish in _CUT and item is self._items[-1] else "completed"

    def _tell(self, events: Iterable[Event]) -> bytes:
        told = b""
        for event in events:
            told += on_the_wire(event, self._sequence)
            self._sequence += 1
        return told


class NoteVoice(ResponsesVoice):
    """The answer is a note that stands for the conversation, and nothing else."""

    @property
    def native(self) -> None:
        return None

    def __init__(self, inner: Inner) -> None:
        super().__init__(inner)
        self._note = Noted("")

    def whole(self, body: Body) -> bytes:
        """Raises UpstreamFailed where there is no note, or half of one."""
        told = super().whole(body)
        self._close()
        return told

    def broken(self, error: GatewayError) -> Body:
        """Half a note stands for nothing."""
        return {**super().broken(error), "output": []}

    def _take(self, delta: Body, choice: Body) -> list[Event]:  # noqa: ARG002 - a note has no log probabilities
        if text := text_of(delta.get("content")):
            self._note.id = f"cmp_{self._id}"
            self._note.pieces.append(text)
            self._items = [self._note]
        return []

    def _close(self) -> list[Event]:
        return self._note.end(self._finish)


class CompactedVoice(NoteVoice):
    """The same told as the object of `/responses/compact`, of which there are no events."""

    def __init__(self, inner: Inner, conversation: list[Body]) -> None:
        super().__init__(inner)
        self._conversation = conversation

    def whole(self, body: Body) -> bytes:
        """Raises UpstreamFailed where there is no note, or half of one."""
        super().whole(body)
        return _encode(compacted(self.final(), self._conversation))
