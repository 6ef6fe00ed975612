"""The provider in CONTRIBUTING.md is not an illustration: it is loaded, configured and asked."""

import re
import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import Struct

from gateway import providers
from gateway.call import Body
from gateway.providers import Provider, Sending
from gateway.settings import ProviderSettings
from gateway.stream import fold
from gateway.tasks import Tasks

ROOT = Path(__file__).parents[2]


class Choice(Struct):
    message: dict[str, str | None]


class Answer(Struct):
    choices: list[Choice]


class NoNetwork:
    """A transport that must not be used."""


def built(folder: Path, monkeypatch: pytest.MonkeyPatch, **config: str) -> Provider:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    [recipe] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (folder / "echo.py").write_text(recipe)
    monkeypatch.setattr(providers, "__path__", [*providers.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, "gateway.providers.echo", raising=False)
    settings = ProviderSettings.model_validate({"kind": "echo", **config})
    return providers.load("echo").build("parrot", settings, transport=NoNetwork(), tasks=Tasks())


def ask(*, stream: bool) -> Sending:
    body: dict[str, object] = {"model": "any", "messages": [{"role": "user", "content": "good day"}], "stream": stream}
    return Sending(
        id="attempt", operation="chat", model="any", body=body, stream=stream, tenant="", timeout=5.0, idle=5.0
    )


def said(body: Body) -> str | None:
    return msgspec.convert(body, Answer).choices[0].message["content"]


async def test_the_recipe_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody's first contact with the code is copying this; it must work as it stands."""
    echo = built(tmp_path, monkeypatch, prefix="You said: ")
    assert (echo.name, echo.ready(), await echo.models()) == ("parrot", None, ["any"])
    [whole] = [chunk async for chunk in echo.send(ask(stream=False))]
    assert whole.final
    assert whole.usage is not None
    assert whole.usage.completion == 4
    events = [chunk async for chunk in echo.send(ask(stream=True))]
    assert len(events) > 2
    assert events[-1].usage == whole.usage
    assert said(whole.data) == said(fold([chunk.data for chunk in events])) == "You said: good day"
    await echo.close()


def test_the_recipe_refuses_what_it_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern to copy must not swallow a typing error in the configuration."""
    with pytest.raises(msgspec.ValidationError, match="prefx"):
        built(tmp_path, monkeypatch, prefx="You said: ")
