"""Batches of Gemini's: handed over in one body, brought back with the batch, charged at its batch price."""

from pathlib import Path
from typing import Any

from pydantic import SecretStr

from gateway.providers.gemini import build
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.upstream.batching import Row, batching_of
from tests.flow.test_batches import client_of, line, lines, made, over, told
from tests.languages.gemini import Batches
from tests.live import live, settings
from tests.unit.upstream.test_gemini import sending
from tests.wire_upstream import Manner, wire_upstream

MODEL = "gemini/gemini-2.5-flash"  # 0.30 and 2.50 USD per million tokens, half of it in a batch


async def test_a_batch_goes_to_google_and_costs_half(tmp_path: Path) -> None:
    """Each line is charged by Google's own count at its batch price; one that failed there costs nothing."""
    service = Batches()
    async with wire_upstream(service, Manner()) as up:
        providers = {"gemini": {"kind": "gemini", "base_url": f"http://127.0.0.1:{up.port}", "batch": "own"}}
        chosen = settings(
            tmp_path, providers=providers, kept={"batch_look": 0.05}, cache={"store": "memory", "mode": "off"}
        )
        async with live(chosen) as gateway, client_of(gateway) as client:
            rows = [line(f"q{n}", f"question {n}", model=MODEL, max_tokens=20) for n in range(3)]
            rows.append(line("bad", "fail", model=MODEL, max_tokens=20))
            batch = await over(client, await made(client, lines(*rows)))
            assert (batch.request_counts.completed, batch.request_counts.failed) == (3, 1)
            answers, failures = await told(client, batch.output_file_id), await told(client, batch.error_file_id)
            entries = [entry for entry in await gateway.entries() if entry["source"] != "void"]
            assert await gateway.services.ledger.verify() == []
    usage = [one["response"]["body"]["usage"] for one in answers.values()]
    wanted = sum(one["prompt_tokens"] * 150 + one["completion_tokens"] * 1_250 for one in usage)
    assert sum(entry["amount_nano"] for entry in entries) == wanted > 0
    assert failures["bad"]["response"]["status_code"] == 429
    assert all(not heard.path.endswith(":generateContent") for heard in up.heard), "none was asked for alone"
    assert service.batches == {}, "what lay there is deleted once it is here"


async def test_a_batch_is_found_by_our_name_and_called_off(tmp_path: Path) -> None:
    """After a crash between handing in and noting the id it must not be run, and billed, twice."""
    service = Batches()
    service.running = True
    async with wire_upstream(service, Manner()) as up:
        batching = batching_of(_provider(up.port))
        assert batching is not None
        what: Any = sending(stream=False)
        name = await batching.hand_in("ours", "chat", [Row("1", what)])
        assert await batching.find("ours", 0.0) == name
        assert await batching.find("theirs", 0.0) is None
        assert await batching.look(name) is None
        await batching.call_off(name)
        assert await batching.look(name) == ""
        assert [row async for row in batching.collect(name)] == []


def _provider(port: int) -> Any:
    given = ProviderSettings(kind="gemini", base_url=f"http://127.0.0.1:{port}", api_key=SecretStr("k"))
    return build("up", given, transport=DirectTransport(), tasks=Tasks())
