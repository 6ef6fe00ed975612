"""The page of upstreams: circuits, weights, speeds and what is left, and to whom they are shown."""

from pathlib import Path
from typing import Any

from gateway.allowance import Account, Allowance
from gateway.catalog import Target
from gateway.deployments import Deployments
from gateway.model_settings import CanarySettings, ModelSettings, RouteEntry
from tests.clock import FrozenClock
from tests.unit.control.house import house
from tests.unit.control.test_pages import sign_in


class Keyed:
    """As much of a provider as the page looks at."""

    def ready(self) -> str | None:
        return None

    def accounts(self) -> list[Account]:
        left = Allowance(what="input-tokens", remaining=1_200.0, limit=50_000.0, renews_in=30.0)
        return [
            Account(name="key 1", in_flight=2, age=1.0, left=(left,)),
            Account(name="key 2", in_flight=0, rests=12.0),
        ]


def used(clock: FrozenClock) -> Deployments:
    """One place that answers, one whose circuit is open, one that asked for patience."""
    found = Deployments(monotonic=clock.monotonic)
    targets = (Target("lab", "m", "h:1"), Target("lab", "n"), Target("lab", "o"))
    good, bad, patient = (found.of(target) for target in targets)
    for deployment in (good, bad, patient):
        deployment.sent(10, clock.monotonic())
    good.began(10, 0.2, clock.monotonic())
    good.wrote(10, 0.3, clock.monotonic())
    good.ended("succeeded", clock.monotonic())
    patient.ended("patience", clock.monotonic(), prompt=10, patience=40.0)
    for _ in range(5):
        bad.ended("failed", clock.monotonic(), prompt=10)
        bad.sent(10, clock.monotonic())
    return found


async def test_the_page_tells_circuits_weights_speeds_and_what_is_left(tmp_path: Path, clock: FrozenClock) -> None:
    """An operator at night must see which place is left alone, for how long, and which key is used up."""
    deployments = used(clock)
    async with house(tmp_path, clock, providers={"lab": Keyed()}, deployments=deployments) as home:
        entries = [RouteEntry(to="lab/m", weight=3.0), RouteEntry(to="lab/n", weight=1.0)]
        canary = CanarySettings(to="lab/o", share=0.05)
        home.services.settings.models["smart"] = ModelSettings(route=entries, strategy="weighted", canary=canary)
        async with home.client(None) as visitor:
            await sign_in(visitor)
            page = (await visitor.get("/ui/upstreams")).text
            for told in (
                "2 of 3 places left alone: lab/n, lab/o.",
                "open, probed in 1 s",
                "asked for patience, 40 s left",
                "smart: weight 3 (75 %)",
                "smart: canary 5 %",
                "200 ms",
                "30 ms",
                "h:1",
                "rests for 12 s",
                "of 50\u202f000 input tokens, whole again after 30.00 s",
            ):
                assert told in page, told
            clock.advance(1.1)
            page = (await visitor.get("/ui/parts/upstreams")).text
            assert "half-open, the next request probes" in page
            deployments.of(Target("lab", "n")).sent(1, clock.monotonic())
            assert "a probe is under way" in (await visitor.get("/ui/parts/upstreams")).text


async def test_a_teams_reader_sees_no_other_teams_load(tmp_path: Path, clock: FrozenClock) -> None:
    """How busy a place is, is what everyone does together."""
    async with house(tmp_path, clock, providers={"lab": Keyed()}, deployments=used(clock)) as home:
        async with home.client(None) as visitor:
            await sign_in(visitor, await home.key("operator", "acme"))
            page: Any = (await visitor.get("/ui/upstreams")).text
        assert "lab/n" not in page
        assert "key 1" not in page
        assert "readers of every team" in page
