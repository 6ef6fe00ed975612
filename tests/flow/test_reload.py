"""The configuration read again under traffic: what changes, what does not, and that nobody notices."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gateway.app import create_app
from gateway.rereading import Rereading
from gateway.scripted_calls import Options
from gateway.scripted_server import ScriptedServer
from gateway.settings import Settings
from tests.live import Live, live, settings

ADMIN = {"authorization": "Bearer sk-test-admin-key-of-some-length"}


class Written:
    """The settings as they are written at the moment."""

    def __init__(self, home: Path, **values: Any) -> None:
        self.home = home
        self.values = values

    def read(self) -> Settings:
        if "broken" in self.values:
            raise ValueError(self.values["broken"])
        return settings(self.home, **self.values)


async def _reload(gateway: Live) -> tuple[int, Any]:
    async with gateway.client.post(f"{gateway.url}/api/v1/config/reload", headers=ADMIN) as response:
        return response.status, await response.json()


def _model(route: str) -> dict[str, Any]:
    return {"smart": {"route": [route], "free": True}}


async def test_a_stream_goes_on_while_its_provider_is_taken_away(tmp_path: Path) -> None:
    """A change of the configuration must not cost anybody an answer; the next request goes the new way."""
    slow, quick = ScriptedServer(Options(tokens=20, tpot_ms=15)), ScriptedServer(Options(tokens=3))
    urls = [f"http://127.0.0.1:{await server.start()}/v1" for server in (slow, quick)]
    before = {"old": {"kind": "openai", "base_url": urls[0], "api_key": "none"}}
    after = {"new": {"kind": "openai", "base_url": urls[1], "api_key": "none"}}
    written = Written(tmp_path, providers=before, models=_model("old/m"), cache={"mode": "off"})
    try:
        async with live(written.read(), Rereading(written.read)) as gateway:
            streaming = asyncio.gather(gateway.chat(model="smart", stream=True))
            await asyncio.sleep(0.1)
            written.values |= {"providers": after, "models": _model("new/m")}
            status, told = await _reload(gateway)
            assert (status, told["needs_restart"]) == (200, [])
            assert set(told["changed"]) == {"providers", "models"}
            now = await gateway.chat(model="smart")
            assert now.headers["x-nearhit-provider"] == "new"
            (streamed,) = await streaming
            assert streamed.events[-1] == "[DONE]"
            assert slow.books.counters.closed_early == 0
            assert (await gateway.chat(model="old/m")).status == 404
    finally:
        await slow.close()
        await quick.close()


async def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    """A typing mistake at noon must not be an outage; the answer names it."""
    written = Written(tmp_path, models=_model("up/scripted"))
    async with live(written.read(), Rereading(written.read)) as gateway:
        for broken in ({"broken": "models.smart: no such thing"}, {"models": _model("nowhere/m")}):
            kept, before = dict(written.values), _counted(gateway, "failed")
            written.values |= broken
            status, told = await _reload(gateway)
            assert status == 400
            assert told["error"]["code"] == "invalid_configuration"
            written.values = kept
            assert _counted(gateway, "failed") > before
            assert (await gateway.chat(model="smart")).status == 200


def _counted(gateway: Live, result: str) -> float:
    """How often the configuration was read so, as an alert of an operator sees it."""
    telemetry = gateway.services.telemetry
    assert telemetry is not None
    name = f'nearhit_config_reloads_total{{result="{result}"}} '
    lines = telemetry.exposition().decode().splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


async def test_budgets_come_into_force_and_what_needs_a_restart_is_named(tmp_path: Path) -> None:
    """Whoever lowers a limit in the file expects it to hold from then on."""
    written = Written(tmp_path)
    async with live(written.read(), Rereading(written.read)) as gateway:
        assert (await gateway.chat()).status == 200
        written.values |= {
            "budgets": [{"scope": "team:acme", "limit_usd": "0.000001", "window": "day"}],
            "retention": {"requests": 7},
        }
        status, told = await _reload(gateway)
        assert (status, told["changed"], told["needs_restart"]) == (200, ["budgets"], ["retention"])
        refused = await gateway.chat(messages=[{"role": "user", "content": "another question"}])
        assert refused.json["error"]["code"] == "insufficient_quota"


async def test_limits_per_minute_come_into_force_too(tmp_path: Path) -> None:
    """`budgets` was told to have changed while its `rpm` waited for a restart."""
    written = Written(tmp_path, models=_model("up/scripted"))
    async with live(written.read(), Rereading(written.read)) as gateway:
        written.values["budgets"] = [{"scope": "team:acme", "rpm": 1}]
        assert (await _reload(gateway))[1]["changed"] == ["budgets"]
        assert [(await gateway.chat(model="smart")).status for _ in range(2)] == [200, 429]


@pytest.mark.parametrize(
    ("budget", "named"),
    [
        ({"scope": "team:acme", "limit_usd": "1", "timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"scope": "team", "rpm": 1}, "team"),
        ({"scope": "org", "limit_usd": "1", "on_exhausted": "degrade:nosuch"}, "nosuch"),
    ],
)
async def test_a_wrong_limit_leaves_nothing_beside_it_in_force(
    tmp_path: Path, budget: dict[str, Any], named: str
) -> None:
    """The refusal says that nothing has changed; models and providers of the same file were in force all the same."""
    written = Written(tmp_path, models=_model("up/scripted"))
    async with live(written.read(), Rereading(written.read)) as gateway:
        written.values |= {"models": {**_model("up/scripted"), "more": {"route": ["up/scripted"], "free": True}}}
        written.values |= {"budgets": [{"scope": "user:first", "limit_usd": "1"}, budget]}
        status, told = await _reload(gateway)
        assert (status, told["error"]["code"]) == (400, "invalid_configuration")
        assert named in told["error"]["message"]
        assert (await gateway.chat(model="more")).status == 404
        async with gateway.client.get(f"{gateway.url}/api/v1/budgets", headers=ADMIN) as response:
            assert (await response.json())["data"] == []


async def test_without_the_database_nothing_of_the_file_is_in_force_until_it_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The models came into force, the limits never did: at the next reading they were no change any more."""

    async def away(*_: object) -> None:
        raise ConnectionRefusedError

    written = Written(tmp_path, models=_model("up/scripted"))
    async with live(written.read(), Rereading(written.read)) as gateway:
        written.values |= {"models": {**_model("up/scripted"), "more": {"route": ["up/scripted"], "free": True}}}
        written.values["budgets"] = [{"scope": "team:acme", "rpm": 1}]
        with monkeypatch.context() as patched:
            patched.setattr("gateway.file_limits.put", away)
            status, told = await _reload(gateway)
            assert (status, told["error"]["code"]) == (503, "database_unavailable")
            assert (await gateway.chat(model="more")).status == 404
        assert (await _reload(gateway))[1]["changed"] == ["models", "budgets"]
        assert [(await gateway.chat(model="more")).status for _ in range(2)] == [200, 429]


async def test_what_the_file_changes_stands_in_the_audit_log(tmp_path: Path) -> None:
    """Limits of the file came into force without a trace of what they were before, at the start as later."""
    written = Written(tmp_path, budgets=[{"scope": "team:acme", "limit_usd": "5", "rpm": 60}])
    async with live(written.read(), Rereading(written.read)) as gateway:
        written.values["budgets"] = [{"scope": "team:acme", "limit_usd": "7", "rpm": 60}]
        await _reload(gateway)
        await _reload(gateway)
        async with gateway.client.get(f"{gateway.url}/api/v1/audit", headers=ADMIN) as response:
            rows = [row for row in (await response.json())["data"] if row["action"] in ("budget.set", "config.reload")]
    reloaded, lowered, rate, money = rows
    assert (reloaded["action"], reloaded["actor"]) == ("config.reload", "admin")
    assert reloaded["after"] == {"changed": ["budgets"], "needs_restart": []}
    assert {row["actor"] for row in (lowered, rate, money)} == {"nearhit.yaml"}
    assert (money["before"], money["after"]["limit_usd"]) == (None, "5")
    assert (rate["before"], rate["after"]) == (None, {"rpm": 60, "tpm": None})
    assert (lowered["before"]["limit_usd"], lowered["after"]["limit_usd"]) == ("5", "7")


async def test_the_signal_reloads_too(tmp_path: Path) -> None:
    """What operators of Unix send to a server whose file they have changed."""
    written = Written(tmp_path, models=_model("up/scripted"))
    async with live(written.read(), Rereading(written.read)) as gateway:
        written.values |= {"models": {**_model("up/scripted"), "more": {"route": ["up/scripted"]}}}
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(60):
            while (await gateway.chat(model="more")).status != 200:  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.02)
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


async def test_without_a_file_there_is_nothing_to_read_again(tmp_path: Path) -> None:
    """A clear refusal, not a reload that did nothing."""
    async with live(settings(tmp_path)) as gateway:
        status, told = await _reload(gateway)
        assert (status, told["error"]["code"]) == (409, "no_configuration")


def test_the_application_can_be_built_without_it(tmp_path: Path) -> None:
    """Short-lived processes never read anything again."""
    assert create_app(settings(tmp_path)).control.services.reloader is not None
    with pytest.raises(ValueError, match="nowhere"):
        create_app(settings(tmp_path, models=_model("nowhere/m")))
