"""The gate itself: what it counts, what it answers, and that it looks at the loop it lives in."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from gateway.errors import Overloaded
from gateway.gate import BEHIND, BURST, LATEST, Clocks, Gate, memory_used
from gateway.providers.scripted import ScriptedProvider
from policies.overload import Pressure
from tests.clock import FrozenClock
from tests.flow.edge_rig import connected, post
from tests.live import live, settings
from tests.waiting import until

HEADERS = [(b"authorization", b"Bearer a")]


def gate(most: int = 10, **changes: object) -> tuple[Gate, list[str]]:
    reasons: list[str] = []
    made = Gate(most, 0.025, random=lambda: 0.5, turned_away=reasons.append, **changes)  # pyright: ignore[reportArgumentType] - a test's shorthand
    return made, reasons


def test_no_more_than_allowed_are_under_way_and_a_place_is_given_back() -> None:
    """A place that is lost closes the gate a little for good."""
    found, reasons = gate(most=2)
    assert [found.refusal(HEADERS) for _ in range(2)] == [None, None]
    refused = found.refusal(HEADERS)
    assert refused is not None
    assert (refused.http_status, reasons, found.load().in_flight) == (503, ["in-flight"], 2)
    found.left()
    assert found.refusal(HEADERS) is None


def test_what_it_answers_says_when_to_come_back() -> None:
    """Clients obey it: a number that is too small brings the overload back."""
    found, _ = gate(most=0)
    found._pressure = Pressure(share=0.9, rate=100.0)
    refused = found.refusal(HEADERS)
    assert refused is not None
    headers = dict(refused.headers)
    assert headers["retry-after"] == "10"
    assert headers["retry-after-ms"] == "10000"


def test_full_memory_turns_newcomers_away_until_there_is_room() -> None:
    """The container would be killed, with everything that is under way."""
    used = [96]
    found, reasons = gate(memory=lambda: (used[0], 100))
    for _ in range(10):
        found.window(0.1, 0.0, 0.0)
    refused = found.refusal(HEADERS)
    assert refused is not None
    assert (reasons, found.yielding) == (["memory"], True)
    used[0] = 90
    for _ in range(10):
        found.window(0.1, 0.0, 0.0)
    assert found.refusal(HEADERS) is None
    assert not found.yielding


def test_few_newcomers_are_never_turned_away_for_a_late_loop() -> None:
    """If they are not what keeps the loop busy, refusing them does not help it."""
    found, _ = gate()
    for _ in range(50):
        assert found.refusal(HEADERS) is None
        found.left()
        found.window(0.1, 5.0, 0.1)


def test_keys_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever invents keys must not grow the worker."""
    monkeypatch.setattr("gateway.gate._MOST_KEYS", 3)
    found, _ = gate(most=1_000)
    found._pressure = Pressure(share=0.01, rate=100.0)
    for number in range(20):
        found.refusal([(b"x-api-key", b"k%d" % number)])
    assert len(found._asked[0]) == 3


def test_a_loud_key_pays_for_its_noise_and_batches_before_people() -> None:
    """The gate divides what it may let in by key, from what it saw itself."""
    found, _ = gate(most=10**9)
    batch = [(b"authorization", b"Bearer c"), (b"x-nearhit-priority", b"batch")]
    sent = {"loud": (HEADERS, 100), "quiet": ([(b"authorization", b"Bearer b")], 5), "batch": (batch, 50)}
    came: dict[str, int] = dict.fromkeys(sent, 0)
    inside = dict(came)
    draw = random.Random(1)
    found._random = draw.random
    for window in range(60):
        found._pressure = Pressure(share=0.6, rate=600.0)  # of 1,550 a second
        found._divide()
        for name, (headers, number) in sent.items():
            for _ in range(number):
                let_in = found.refusal(headers) is None
                came[name] += window > 30
                inside[name] += let_in and window > 30
    part = {name: inside[name] / came[name] for name in sent}
    assert part["quiet"] > 0.95
    assert 0.4 < part["loud"] < 0.7
    assert part["batch"] < 0.1


async def test_a_loop_that_is_far_behind_refuses_at_once() -> None:
    """A flood arrives within one turn of the loop: the next window would come too late."""
    clock = FrozenClock()
    found, reasons = gate(most=4_096, clocks=Clocks(clock.monotonic, clock.monotonic, clock.monotonic))
    found._due = clock.monotonic()
    for _ in range(BURST):
        assert found.refusal(HEADERS) is None
    clock.advance(BEHIND + 0.1)
    assert found.refusal(HEADERS) is not None
    assert reasons == ["behind"]


def test_a_burst_is_let_in_however_slow_the_machine_is() -> None:
    """Five hundred at once are a test or a page that opens, and a laptop under load is slow: no reason to refuse."""
    clock = FrozenClock()
    found, _ = gate(most=4_096, clocks=Clocks(clock.monotonic, clock.monotonic, clock.monotonic))
    found._due = clock.monotonic()
    for _ in range(10):
        for _ in range(50):
            assert found.refusal(HEADERS) is None
            clock.advance(0.0019)
        found.window(0.095, 0.2, 0.095)
    assert found.load().share == 0.0
    clock.advance(LATEST)
    assert found.refusal(HEADERS) is not None


async def test_it_sees_its_own_loop_being_blocked() -> None:
    """The lag that counts is the one of the loop that answers."""
    found, _ = gate(most=10_000)
    found.start()
    until = time.monotonic() + 60.0
    while not found.yielding and time.monotonic() < until:
        for _ in range(50):
            if found.refusal(HEADERS) is None:
                found.left()
        busy = time.process_time() + 0.3
        while time.process_time() < busy:  # the loop is to be late by what this process does
            pass
        await asyncio.sleep(0.001)
    assert found.load().lag > 0.025
    assert found.yielding
    found.stop()


def test_memory_is_read_or_is_without_a_limit() -> None:
    """Whatever machine this runs on."""
    used, limit = memory_used()
    assert used >= 0
    assert limit is None or limit > 0


def group(at: Path, limit: str, used: str, cached: str, version: int) -> None:
    at.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    (at / names[0]).write_text(f"{limit}\n")
    (at / names[1]).write_text(f"{used}\n")
    (at / "memory.stat").write_text(f"anon 1\n{'total_' * (version == 1)}inactive_file {cached}\n")


MEMORY: dict[str, tuple[str, list[tuple[str, str, str, str, int]], tuple[int, int | None]]] = {
    "container": ("0::/\n", [("", "1000", "700", "200", 2)], (500, 1_000)),
    "service": (
        "0::/system.slice/nearhit.service\n",
        [("system.slice/nearhit.service", "1000", "900", "100", 2), ("system.slice", "max", "5000", "0", 2)],
        (800, 1_000),
    ),
    "slice": (
        "0::/system.slice/nearhit.service\n",
        [("system.slice/nearhit.service", "max", "900", "0", 2), ("system.slice", "4000", "3000", "0", 2)],
        (3_000, 4_000),
    ),
    "container whose path is the host's": (
        "9:cpu,cpuacct:/docker/a\n4:memory:/docker/a\n0::/\n",
        [("memory", "1000", "700", "200", 1)],
        (500, 1_000),
    ),
    "no limit": ("0::/\n", [("", "max", "700", "200", 2)], (0, None)),
    "none": ("", [], (0, None)),
}


@pytest.mark.parametrize("name", MEMORY)
def test_the_nearest_limit_counts(name: str, tmp_path: Path) -> None:
    """Under systemd the limit is the service's own group, not the root's: it was never seen, and the kernel killed."""
    told, groups, found = MEMORY[name]
    for path, limit, used, cached, version in groups:
        group(tmp_path / "cgroup" / path, limit, used, cached, version)
    (tmp_path / "ours").write_text(told)
    assert memory_used(tmp_path / "cgroup", tmp_path / "ours") == found


async def test_refusals_are_in_the_shape_of_their_path_and_counted(tmp_path: Path) -> None:
    """An SDK that does not understand the refusal retries at once."""
    async with live(settings(tmp_path, server={"max_in_flight": 1}, upstream={"ttft_ms": 2_000.0})) as gateway:
        first = asyncio.get_running_loop().create_task(gateway.chat())
        upstream = gateway.services.providers["up"]
        assert isinstance(upstream, ScriptedProvider)
        await until(lambda: upstream.calls == 1)
        told = await gateway.chat()
        body = {"model": "up/scripted", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
        other = await gateway.post("/v1/messages", body)
        assert (await first).status == 200
        assert (told.status, told.json["error"]["code"], told.headers["retry-after"]) == (503, "overloaded", "1")
        assert (other.status, other.json["type"], other.json["error"]["type"]) == (529, "error", "overloaded_error")
        shown = gateway.services.telemetry.exposition().decode()  # pyright: ignore[reportOptionalMemberAccess] - a whole gateway has one
        assert 'nearhit_shed_total{reason="in-flight"} 2.0' in shown
        assert (await gateway.chat()).status == 200


async def test_one_that_was_turned_away_may_ask_again_on_its_connection(tmp_path: Path) -> None:
    """It is answered before its body is there: that body must not be taken for the next request."""
    body = b'{"model": "up/scripted", "messages": [{"role": "user", "content": "x"}]}'
    chosen = settings(tmp_path, server={"max_in_flight": 1, "drain_timeout": 0.1}, upstream={"ttft_ms": 60_000.0})
    async with live(chosen) as gateway:
        telemetry = gateway.services.telemetry
        assert telemetry is not None
        asked = post(body, f"authorization: Bearer {gateway.key}", path="/v1/chat/completions")
        unknown = asked.replace(b"up/scripted", b"up/scripteb")
        async with connected(int(gateway.url.rsplit(":", 1)[1])) as client:
            first = asyncio.get_running_loop().create_task(gateway.chat())
            while b"nearhit_in_flight 1.0" not in telemetry.exposition():  # noqa: ASYNC110 - seen from outside
                await asyncio.sleep(0.01)
            await client.send(asked[: -len(body)])
            refused = await client.answer()
            assert (refused.status, refused.code) == (503, "overloaded")
            assert len(refused.headers["x-request-id"]) == 36
            assert int(refused.headers["retry-after-ms"]) > 0
            for at in range(0, len(body), 7):
                await client.send(body[at : at + 7])
            await client.send(asked + asked)
            assert [(await client.answer()).status for _ in range(2)] == [503, 503]
            first.cancel()
            status, until = 503, time.monotonic() + 30
            while status == 503 and time.monotonic() < until:
                await client.send(unknown)
                status = (await client.answer()).status
            assert status == 404


async def test_slow_bodies_keep_nobody_out(tmp_path: Path) -> None:
    """One key that sends byte by byte could else close a gateway for everybody."""
    body = b'{"model": "up/scripted", "messages": [{"role": "user", "content": "x"}]}'
    chosen = settings(tmp_path, server={"max_in_flight": 2, "body_timeout": 600.0})
    async with live(chosen) as gateway:
        port = int(gateway.url.rsplit(":", 1)[1])
        asked = post(body, f"authorization: Bearer {gateway.key}", path="/v1/chat/completions")

        async def is_answered() -> bool:
            return (await gateway.chat()).status == 200

        async with connected(port) as slow, connected(port) as other:
            for client in (slow, other):
                await client.send(asked[:-5])
            await asyncio.sleep(0.1)
            await until(is_answered)
            await slow.send(asked[-5:])
            assert (await slow.answer()).status == 200


def test_a_body_that_came_too_late_finds_its_place_taken() -> None:
    """The bound is one on what is answered at the same time, and every place is given back."""
    found, _ = gate(most=1)
    assert found.refusal(HEADERS) is None
    with pytest.raises(Overloaded), found.aside():
        assert found.refusal(HEADERS) is None
    found.left()
    found.left()
    assert found.load().in_flight == 0
    assert found.refusal(HEADERS) is None
    with pytest.raises(KeyError), found.aside():
        raise KeyError
    found.left()
    assert found.load().in_flight == 0
