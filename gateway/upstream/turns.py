"""A conversation as services want it that know two roles: turns that alternate, the system prompt apart.

Knows: which of OpenAI's roles goes where, that results stand in one turn, what an earlier answer may hold. Does not
know: any service's blocks.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple, cast

from gateway.call import Body
from gateway.upstream.fields import arguments, mapping, objects, refuse, words


class EarlierCall(NamedTuple):
    """A tool that was called in an earlier turn. `call` is the client's own object."""

    call: Body
    name: str
    arguments: object


class Turns(ABC):
    """The conversation as it grows. Turns of one role in a row become one: results must stand in one turn."""

    blocks: ClassVar[str] = "content"  # under which a turn keeps them
    model: ClassVar[str] = "assistant"  # the role of answers

    def __init__(self) -> None:
        self.system: list[Body] = []
        self.told: list[Body] = []

    def add(self, message: Body, path: str) -> None:
        role = message.get("role")
        if role in ("system", "developer"):
            self.system += self._instruction(message)
        elif role == "user":
            self._say("user", self._asked(message, path))
        elif role == "assistant":
            self._say(self.model, self._earlier(message, path))
        elif role == "tool":
            self._say("user", self._result(message))
        else:
            refuse(f"{path}.role", "This model takes tool results by role 'tool' only.")

    def whole(self) -> list[Body]:
        """The turns. Raises InvalidRequest where only instructions and empty texts came: these services want a turn."""
        if not self.told:
            refuse("messages", "This model needs something to answer: 'messages' has only instructions or empty texts.")
        return self.told

    def _say(self, role: str, blocks: list[Body]) -> None:
        if not blocks:
            return
        if self.told and self.told[-1]["role"] == role:
            cast("list[Body]", self.told[-1][self.blocks]).extend(blocks)
        else:
            self.told.append({"role": role, self.blocks: blocks})

    @abstractmethod
    def _instruction(self, message: Body) -> list[Body]: ...

    @abstractmethod
    def _asked(self, message: Body, path: str) -> list[Body]: ...

    @abstractmethod
    def _earlier(self, message: Body, path: str) -> list[Body]: ...

    @abstractmethod
    def _result(self, message: Body) -> list[Body]: ...


def refuse_old_forms(message: Body, path: str, *, audio: str = "audio") -> None:
    """What an earlier answer may not hold. Raises InvalidRequest."""
    if message.get("function_call") is not None:
        refuse(f"{path}.function_call", "This model takes tool_calls only.")
    if message.get("audio") is not None:
        refuse(f"{path}.audio", f"This model does not support {audio}.")


def earlier_calls(message: Body, path: str) -> Iterator[EarlierCall]:
    """The tools an earlier answer called. Raises InvalidRequest for one that took no JSON."""
    for index, call in enumerate(objects(message.get("tool_calls"))):
        where = f"{path}.tool_calls[{index}]"
        if call.get("type", "function") != "function":
            refuse(where, "This model's tools take JSON, not free text.")
        yield EarlierCall(call, words(mapping(call.get("function")).get("name")), arguments(call, where))
