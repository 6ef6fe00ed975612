"""Responses over a WebSocket: turn after turn on one connection, through a real server and with a real client."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from gateway.routes import responses_socket
from gateway.server_socket import Socket
from tests.flow.dialect_upstream import Script, scripted
from tests.live import Live, live, settings
from tests.waiting import until

ASKED: dict[str, Any] = {"type": "response.create", "model": "lab/m", "store": False, "input": "What is a KV block?"}
Ws = aiohttp.ClientWebSocketResponse


@asynccontextmanager
async def playing(home: Path) -> AsyncGenerator[tuple[Script, Live]]:
    """A gateway in front of a scripted OpenAI-compatible server; its model is `lab/m`."""
    async with scripted() as (script, upstream):
        lab = {"kind": "openai", "base_url": upstream.url, "api_key": "none", "billing": "stops-on-close"}
        providers = {"up": {"kind": "scripted"}, "lab": lab}
        async with live(settings(home, providers=providers, cache={"store": "memory", "mode": "off"})) as gateway:
            await gateway.services.prices.set(
                "lab/m", input_usd="1.00", output_usd="2.00", actor="test", effective_from=0.0
            )
            yield script, gateway


def joined(gateway: Live, key: str | None = None) -> Any:
    headers = {"authorization": f"Bearer {key or gateway.key}"}
    return gateway.client.ws_connect(f"{gateway.url}/v1/responses", headers=headers, max_msg_size=0)


async def turn(ws: Ws, **change: Any) -> list[dict[str, Any]]:
    """Everything up to the end of one turn."""
    await ws.send_json({**ASKED, **change})
    return await told(ws)


async def told(ws: Ws) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    ends = ("response.completed", "response.failed", "response.incomplete", "error")
    while not found or found[-1]["type"] not in ends:
        found.append(await ws.receive_json(timeout=60))
    return found


async def test_a_turn_is_told_in_the_events_of_a_stream(tmp_path: Path) -> None:
    """Clients have one reader for both ways; what differs between them would be read wrong."""
    async with playing(tmp_path) as (script, gateway), joined(gateway) as ws:
        script.thought, script.calls = "Bread wants heat.", [("call_1", "look", '{"city": "Oslo"}')]
        tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
        events = await turn(ws, tools=tools)
        body = {**ASKED, "tools": tools, "stream": True}
        streamed = (await gateway.post("/v1/responses", body)).raw.decode().split("\n\n")
        kinds = [msgspec.json.decode(one.partition("data: ")[2])["type"] for one in streamed if "data: " in one]
        assert [event["type"] for event in events] == kinds
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["usage"]["input_tokens"] == 21
        again = await turn(ws, input="And a page?")
        assert again[-1]["response"]["id"] != events[-1]["response"]["id"]
        assert len(await gateway.rows()) == 3


async def test_a_conversation_goes_on_without_being_kept(tmp_path: Path) -> None:
    """`store: false` is what agents ask for: the connection alone remembers, and sends the upstream all of it."""
    async with playing(tmp_path) as (script, gateway):
        async with joined(gateway) as ws:
            first = (await turn(ws))[-1]["response"]
            assert first["store"] is False
            second = (await turn(ws, input="And a page?", previous_response_id=first["id"]))[-1]["response"]
            contents = [message["content"] for message in script.sent[-1]["messages"]]
            assert contents == ["What is a KV block?", script.text, "And a page?"]
            assert (await turn(ws, previous_response_id=first["id"]))[-1]["error"][
                "code"
            ] == NOT_FOUND  # not the latest
            third = (await turn(ws, input="Why?", previous_response_id=second["id"]))[-1]["response"]
        async with joined(gateway) as other:
            (refused,) = await turn(other, previous_response_id=third["id"])
            assert (refused["status"], refused["error"]["code"]) == (400, NOT_FOUND)
            assert (await turn(other))[-1]["type"] == "response.completed"


NOT_FOUND = "previous_response_not_found"


async def test_what_is_kept_can_be_continued_from_anywhere(tmp_path: Path) -> None:
    """A kept response is one, whichever way it was made and whichever way it is continued."""
    async with playing(tmp_path) as (_, gateway):
        async with joined(gateway) as ws:
            kept = (await turn(ws, store=True))[-1]["response"]
        assert kept["store"] is True
        async with joined(gateway) as other:
            assert (await turn(other, previous_response_id=kept["id"]))[-1]["type"] == "response.completed"
            stranger = await gateway.new_key("rival")
        async with joined(gateway, stranger) as rival:
            assert (await turn(rival, previous_response_id=kept["id"]))[-1]["error"]["code"] == NOT_FOUND


async def test_a_turn_that_failed_takes_what_it_continued_with_it(tmp_path: Path) -> None:
    """Both sides must know what is remembered: after a failure nothing is (Open Responses)."""
    async with playing(tmp_path) as (script, gateway), joined(gateway) as ws:
        first = (await turn(ws))[-1]["response"]["id"]
        orphan = [{"type": "function_call_output", "call_id": "nowhere", "output": "x"}]
        assert (await turn(ws, input=orphan, previous_response_id=first))[-1]["error"]["param"] == "input[0].call_id"
        assert (await turn(ws, previous_response_id=first))[-1]["error"]["code"] == NOT_FOUND
        second = (await turn(ws))[-1]["response"]["id"]
        script.breaks = True
        assert (await turn(ws, previous_response_id=second))[-1]["type"] == "response.failed"
        script.breaks = False
        assert (await turn(ws, previous_response_id=second))[-1]["error"]["code"] == NOT_FOUND


async def test_a_warm_up_asks_no_model(tmp_path: Path) -> None:
    """Codex sends its tools and instructions before its user has said a word; that must cost nothing."""
    async with playing(tmp_path) as (script, gateway), joined(gateway) as ws:
        events = await turn(ws, generate=False, instructions="Be brief.")
        assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
        assert events[-1]["response"]["output"] == script.sent == await gateway.rows() == []
        await turn(ws, input="Now.", previous_response_id=events[-1]["response"]["id"])
        assert [message["content"] for message in script.sent[-1]["messages"]] == ["What is a KV block?", "Now."]


async def test_a_warm_up_may_be_about_nothing_yet(tmp_path: Path) -> None:
    """Codex has an empty list for its `input` then; it was told that something is missing, and warmed up in vain."""
    async with playing(tmp_path) as (script, gateway), joined(gateway) as ws:
        events = await turn(ws, generate=False, input=[], instructions="Be brief.")
        assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.completed"]
        await turn(ws, input="Now.", previous_response_id=events[-1]["response"]["id"])
        assert [message["content"] for message in script.sent[-1]["messages"]] == ["Now."]
        assert (await turn(ws, input=[]))[-1]["error"]["param"] == "input"


FAULTS: list[tuple[str, str | None]] = [
    ("{", None),
    ("[1]", None),
    ('{"type": "response.cancel"}', "type"),
    ('{"type": "response.create", "input": "hi"}', "model"),
    ('{"type": "response.create", "model": "no/where", "input": "hi"}', "model"),
    ('{"type": "response.create", "model": "lab/m", "input": "hi", "background": true}', "background"),
    ('{"type": "response.create", "model": "lab/m", "input": 5, "generate": false}', "input"),
]


async def test_a_fault_is_told_and_the_connection_goes_on(tmp_path: Path) -> None:
    """One bad message must not cost a client the conversation that its connection remembers."""
    async with playing(tmp_path) as (_, gateway), joined(gateway) as ws:
        for said, param in FAULTS:
            await ws.send_str(said)
            (refused,) = await told(ws)
            assert (refused["status"], refused["error"]["param"]) == (400, param), said
            assert set(refused["error"]) == {"message", "type", "param", "code"}
        await ws.send_json({"type": "response.processed", "response_id": "resp_1"})
        await ws.send_bytes(msgspec.json.encode(ASKED))
        assert (await told(ws))[-1]["type"] == "response.completed"


async def test_who_has_no_key_is_not_let_in(tmp_path: Path) -> None:
    """The handshake is a request like any other, and costs a stranger's machine more than ours."""
    async with playing(tmp_path) as (_, gateway):
        for key in ("sk-nh-wrong", ""):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with joined(gateway, key or " "):
                    pass
            assert caught.value.status == 401


async def test_other_paths_speak_no_websockets(tmp_path: Path) -> None:
    """Whatever is not asked for here is answered as the plain request it also is."""
    async with playing(tmp_path) as (_, gateway):
        headers = {"authorization": f"Bearer {gateway.key}"}
        for path, status in (("/v1/chat/completions", 405), ("/v1/models", 200), ("/nowhere", 404)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
                async with gateway.client.ws_connect(gateway.url + path, headers=headers):
                    pass
            assert caught.value.status == status


async def test_where_none_are_served_clients_are_told_in_the_status_they_know(tmp_path: Path) -> None:
    """Codex tries seven times before it does without, unless it is told 426."""
    async with playing(tmp_path) as (_, gateway):
        host, _, port = gateway.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /v1/responses HTTP/1.0\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"426"
        writer.close()


async def test_a_client_that_leaves_in_mid_turn_is_noticed(tmp_path: Path) -> None:
    """Else the upstream would go on making, and billing, what nobody reads."""
    async with playing(tmp_path) as (script, gateway):
        script.stalls = True
        async with joined(gateway) as ws:
            await ws.send_json(ASKED)
            while (await ws.receive_json(timeout=60))["type"] != "response.output_text.delta":
                pass

        async def is_noted() -> bool:
            return bool(await gateway.rows())

        await until(is_noted)
        assert (await gateway.rows())[0]["client_gone"]


async def test_a_stop_waits_for_the_turn(tmp_path: Path) -> None:
    """Workers are replaced while they serve; an answer must not be cut by that."""
    async with playing(tmp_path) as (script, gateway), joined(gateway) as busy, joined(gateway) as idle:
        script.wait = asyncio.Event()
        await busy.send_json(ASKED)
        await until(lambda: bool(script.sent))
        for connection in list(gateway.server.server_state.connections):
            if isinstance(connection, Socket):
                connection.shutdown()
        assert (await idle.receive(timeout=60)).type is aiohttp.WSMsgType.CLOSE
        assert idle.close_code == 1012
        script.wait.set()
        assert (await told(busy))[-1]["type"] == "response.completed"
        assert (await busy.receive(timeout=60)).type is aiohttp.WSMsgType.CLOSE


async def test_a_connection_lives_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients know the limit by its code and open another; without one, what they remember would never go."""
    monkeypatch.setattr(responses_socket, "LIFETIME", 0.05)
    async with playing(tmp_path) as (_, gateway), joined(gateway) as ws:
        over = await ws.receive_json(timeout=60)
        assert (over["status"], over["error"]["code"]) == (400, "websocket_connection_limit_reached")
        assert (await ws.receive(timeout=60)).type is aiohttp.WSMsgType.CLOSE


async def test_what_connections_remember_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of them with long conversations would fill a worker; who finds no room sends its own again."""
    monkeypatch.setattr(responses_socket, "REMEMBERED", 1_000)
    async with playing(tmp_path) as (_, gateway), joined(gateway) as ws:
        small = (await turn(ws))[-1]["response"]["id"]
        large = (await turn(ws, input="x" * 2_000, previous_response_id=small))[-1]["response"]["id"]
        assert (await turn(ws, previous_response_id=large))[-1]["error"]["code"] == NOT_FOUND
        assert (await turn(ws))[-1]["type"] == "response.completed"
