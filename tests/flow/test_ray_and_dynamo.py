"""Ray Serve LLM and NVIDIA Dynamo as upstreams: what they want, what they say when they are full, what they tell."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.catalog import Target
from gateway.deployments import Deployments
from gateway.fleet_load import LoadWatch
from gateway.scripted_calls import Options
from gateway.transport.direct import DirectTransport
from gateway.upstreams import Upstreams
from tests.languages.dynamo import Dynamo
from tests.languages.ray import Ray
from tests.live import live, settings
from tests.scripted import stage
from tests.wire_upstream import Manner, WireUpstream, wire_upstream

QUICK = Options(tokens=4)


def _of(kind: str, up: WireUpstream, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "base_url": f"http://127.0.0.1:{up.port}/v1", **more}


@pytest.mark.parametrize("stream", [False, True])
async def test_dynamo_gets_what_it_knows_and_its_own_field(tmp_path: Path, stream: bool) -> None:
    """It refuses unknown fields: hints that change no answer must not cost one. `nvext` is its own and goes through."""
    language, nvext = Dynamo(), {"annotations": ["request_id"]}
    async with (
        wire_upstream(language, Manner()) as up,
        stage(tmp_path, {"a": QUICK}, {}, more={"a": _of("dynamo", up)}) as found,
    ):
        hints: dict[str, Any] = {"prompt_cache_key": "c", "prompt_cache_retention": "24h", "safety_identifier": "ann"}
        told = await found.ask(stream=stream, nvext=nvext, **hints)
        assert told.text if not stream else told.events[-1] == "[DONE]"
        assert language.asked[0]["nvext"] == nvext
        assert not set(hints) & set(language.asked[0])
        (entry,) = await found.gateway.entries()
        assert (entry["prompt"], entry["completion"], entry["source"]) == (5, 2, "provider")
        refused = await found.gateway.chat(model="smart", frobnicate=1)
        assert (refused.status, "frobnicate" in refused.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize("kind", ["dynamo", "ray"])
async def test_one_that_is_full_is_left_for_the_next(tmp_path: Path, kind: str) -> None:
    """Dynamo sheds load with 529, Ray Serve drops with 503 in plain text: neither is the client's fault, or charged."""
    language = Dynamo() if kind == "dynamo" else Ray()
    async with wire_upstream(language, Manner()) as up:
        models = {"alone": {"route": ["a/qwen"], "free": True}}
        route = {"route": ["a/qwen", "b/m"]}
        async with stage(tmp_path, {"a": QUICK, "b": QUICK}, route, more={"a": _of(kind, up)}, models=models) as found:
            prices = found.gateway.services.prices
            await prices.set("a/qwen", input_usd="1", output_usd="1", actor="test", effective_from=0.0)
            assert (await found.ask(0)).headers["x-nearhit-provider"] == "a"
            if isinstance(language, Dynamo):
                language.busy = True
            else:
                language.full = True
            assert (await found.ask(1)).headers["x-nearhit-provider"] == "b"
            told = await found.gateway.chat(model="alone", headers={"x-nearhit-timeout": "20"})
            assert told.status in (502, 503)
            paid = [entry["provider"] for entry in await found.gateway.entries() if entry["amount_nano"]]
            assert paid == ["a", "b"]


async def test_an_adapter_of_ray_is_a_model_and_a_header_where_that_is_wanted(tmp_path: Path) -> None:
    """Serve LLM reads the id in the body; an application that multiplexes by itself reads nothing but the header."""
    async with wire_upstream(Ray(), Manner()) as plain, wire_upstream(Ray(multiplexed=True), Manner()) as by_header:
        providers = {"ray": _of("ray", plain), "own": _of("ray", by_header, multiplexed=True)}
        models = {name: {"route": [f"{name}/qwen:lawyer"], "free": True} for name in providers}
        chosen = settings(tmp_path, providers=providers, models=models, cache={"mode": "off"})
        async with live(chosen) as gateway:
            for name in providers:
                told = await gateway.chat(model=name)
                assert (told.status, told.json["model"]) == (200, name)
            assert await gateway.services.providers["ray"].models() == ["qwen", "qwen:lawyer"]
        assert "serve_multiplexed_model_id" not in plain.heard[0].headers
        assert plain.heard[0].body["model"] == "qwen:lawyer"
        assert by_header.heard[0].headers["serve_multiplexed_model_id"] == "qwen:lawyer"


async def test_what_dynamo_tells_of_its_load_and_its_models_is_read(tmp_path: Path) -> None:
    """Its frontend counts what has no token yet among all that is under way; a queue counted twice would be avoided."""
    async with wire_upstream(Dynamo(), Manner()) as up:
        chosen = settings(tmp_path, providers={"d": _of("dynamo", up)})
        deployments, transport = Deployments(monotonic=asyncio.get_running_loop().time), DirectTransport()
        deployments.of(Target("d", "m"))
        await LoadWatch(Upstreams({}, chosen), deployments, transport).once()
        load = next(iter(deployments)).load
        assert (load.running, load.waiting) == (4.0, 3.0)
        async with live(chosen) as gateway:
            assert await gateway.services.providers["d"].models() == ["m"]
        await transport.close()
