"""`nearhit doctor --keys`: what each upstream says to each key it is asked with."""

from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.cli.upstream_keys import ask, findings
from gateway.settings import Settings

RIGHT, WRONG = "sk-right-0123456789", "sk-wrong-0123456789"


@pytest.fixture
async def address() -> AsyncGenerator[str]:
    """A service with two models and one key; its refusal quotes the key that it was asked with, as services do."""

    async def listed(request: web.Request) -> web.Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if given != RIGHT:
            said = {"error": {"message": f"Incorrect API key provided: {given}.", "code": "invalid_api_key"}}
            return web.json_response(said, status=401)
        return web.json_response({"object": "list", "data": [{"id": "small"}, {"id": "large"}]})

    app = web.Application()
    app.router.add_get("/v1/models", listed)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    await runner.cleanup()


Make = Callable[..., Settings]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    def make(lab: dict[str, Any], **more: Any) -> Settings:
        given: dict[str, Any] = {"engines": {}, "providers": {"lab": {"kind": "openai", **lab}}, **more}
        return Settings(home=tmp_path, **given)

    return make


async def test_a_key_that_is_taken_says_so(address: str, made: Make) -> None:
    """A newcomer learns before the first request whether what is in the environment is any good."""
    (told,) = await ask(made({"base_url": address, "api_key": RIGHT}))
    assert (told.name, told.good) == ("lab", True)
    assert told.words.startswith("takes its key, 2 models, ")


async def test_a_key_that_is_refused_is_told_without_it(address: str, made: Make) -> None:
    """What `doctor` prints is pasted into tickets."""
    (told,) = await ask(made({"base_url": address, "api_key": WRONG}))
    assert not told.good
    assert "Incorrect API key provided" in told.words
    assert WRONG not in told.words


async def test_every_key_of_a_pool_and_every_server_is_asked(address: str, made: Make) -> None:
    """One dead key among many costs a request now and then, and nobody knows which."""
    told = await ask(made({"base_url": address, "api_keys": [RIGHT, WRONG]}))
    assert [(one.name, one.good) for one in told] == [("lab, key 1", True), ("lab, key 2", False)]
    away = "http://127.0.0.1:9/v1"
    told = await ask(made({"replicas": [address, away], "api_key": RIGHT}))
    assert [one.good for one in told if address.split("/")[2] in one.name] == [True]
    assert [one.good for one in told if "127.0.0.1:9" in one.name] == [False]


async def test_a_model_that_a_route_wants_and_nobody_lists_is_named(address: str, made: Make) -> None:
    """A misspelt model is a 404 at the first request otherwise; some services list fewer than they serve."""
    models = {"chat": {"route": ["lab/small", "lab/lrage"], "free": True}}
    (told,) = await ask(made({"base_url": address, "api_key": RIGHT}, models=models))
    assert told.good
    assert told.words.endswith("; not among them: lrage")


async def test_what_lists_no_models_is_not_asked(made: Make) -> None:
    """No answer is no refusal."""
    (told,) = await ask(made({"kind": "scripted"}))
    assert (told.good, told.words) == (True, "lists no models, so it was not asked")


def test_a_refusal_is_a_finding_with_its_mend(made: Make) -> None:
    """`doctor` exits with 1 and says what to do; what cannot even be built is the configuration's finding."""
    (found,) = findings(made({"base_url": "http://127.0.0.1:9/v1", "api_key": RIGHT}))
    assert not found.good
    assert found.name == "key of lab"
    assert "api_key" in found.mend
    assert findings(made({"kind": "opnai"})) == []
