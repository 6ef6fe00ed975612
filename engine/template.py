"""Chat messages to a prompt, by the model's own Jinja template, in a sandbox with limits.

Knows: `chat_template.jinja`, `tokenizer_config.json`, OpenAI's message form. Does not know: tokens, requests.

A template is code from a model folder, and such code has run shell commands in other servers (CVE-2024-34359,
CVE-2026-5760). Here it gets an immutable sandbox, a budget of loop turns, a largest result and no way to come with a
request.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from jinja2 import Template, TemplateError

from engine.api import InvalidRequest, Tools
from engine.locate import ModelNotFound, ModelSource
from engine.sandbox import Sandbox, TooMuch
from engine.tokenizer import read_object, special_marks
from engine.toolforms import form_of
from engine.toolturns import retold

MAX_RENDERED = 8_000_000  # characters

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Message = dict[str, object]


def _refuse(message: str) -> None:
    raise TemplateError(message)


class ChatTemplate:
    """`render` turns messages into the text the model was trained to continue. `now`: wall clock in seconds."""

    def __init__(self, source: str, marks: dict[str, str], now: Callable[[], float]) -> None:
        self._environment = Sandbox()

        def strftime_now(form: str) -> str:
            return time.strftime(form, time.gmtime(now()))

        cast("dict[str, Any]", self._environment.globals).update(raise_exception=_refuse, strftime_now=strftime_now)
        self._marks = marks
        self.source = source
        try:
            self._form = form_of(source)
            self._template: Template = self._environment.from_string(source)
        except Exception as error:  # code from a model folder, and the code Jinja makes of it
            raise ModelNotFound(f"The chat template does not parse: {error}") from error

    def render(self, messages: list[Message], tools: Tools | None = None, thinking: bool | None = None) -> str:
        """With the opening of the assistant's turn. Raises InvalidRequest when the template refuses the messages.

        `thinking`: what a template that can do without is told; None leaves it its own default.
        """
        self._environment.begin()
        parts: list[str] = []
        size = 0
        offered = tools if tools is not None and tools.choice != "none" else None
        given: dict[str, object] = {
            "messages": retold(plain(messages), offered, self._form),
            "add_generation_prompt": True,
            "tools": None if offered is None else [{"type": "function", "function": one} for one in offered.functions],
            **({} if offered is None else dict.fromkeys(self._form.named, offered.functions)),
            **({} if thinking is None else {"enable_thinking": thinking}),
            **self._marks,
        }
        try:
            for part in self._template.generate(given):
                size += len(part)
                if size > MAX_RENDERED:
                    raise TooMuch(f"more than {MAX_RENDERED} characters")
                parts.append(part)
        except Exception as error:  # filters assert, and call whatever a template tells them to
            why = str(error) or type(error).__name__
            message = f"The model's chat template cannot render these messages: {why}"
            raise InvalidRequest(message, param="messages") from error
        return "".join(parts)


def plain(messages: list[Message]) -> list[Message]:
    """Messages with `content` as one string, the form templates are written for. Raises InvalidRequest."""
    return [_plain(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _plain(message: Message, path: str) -> Message:
    """What is null is left out: clients send back whole answers, and templates ask whether `tool_calls` is there."""
    role = message.get("role")
    if not isinstance(role, str):
        raise InvalidRequest(f"{path}.role must be a string.", param=f"{path}.role")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_text(part, f"{path}.content") for part in cast("list[object]", content))
    elif content is not None and not isinstance(content, str):
        raise InvalidRequest(f"{path}.content must be a string or a list of text parts.", param=f"{path}.content")
    _check_calls(message.get("tool_calls"), f"{path}.tool_calls")
    told = {name: value for name, value in message.items() if value is not None and (name, value) != ("tool_calls", [])}
    return {**told, "role": "system" if role == "developer" else role, "content": content or ""}


def _check_calls(calls: object, path: str) -> None:
    """Calls are retold before any template sees them: a function that is none is refused by its place."""
    for at, call in enumerate(cast("list[object]", calls) if isinstance(calls, list) else []):
        function = cast("dict[str, object]", call).get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict | None):
            raise InvalidRequest(f"{path}[{at}].function must be an object.", param=f"{path}[{at}].function")


def _text(part: object, path: str) -> str:
    text = cast("dict[str, object]", part).get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise InvalidRequest("This model reads text only.", param=path)
    return text


def load_template(source: ModelSource, now: Callable[[], float]) -> ChatTemplate | None:
    """None when the model has none. Raises ModelNotFound when it is broken."""
    if source.folder is None:
        return ChatTemplate(CHATML, {}, now)
    text = _read(source.folder)
    return None if text is None else ChatTemplate(text, special_marks(source.folder), now)


def _read(folder: Path) -> str | None:
    """`chat_template.jinja` goes before `tokenizer_config.json`; of several named templates `default` is meant."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelNotFound(f"{file}: {error}") from error
    value = read_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(value, list):
        several = [cast("dict[str, object]", one) for one in cast("list[object]", value) if isinstance(one, dict)]
        value = next((one.get("template") for one in several if one.get("name") == "default"), None)
    return value if isinstance(value, str) else None
