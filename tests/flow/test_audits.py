"""Hits that are checked in the background: what that costs, whom, what is learned, and what people see of it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cache.semantic import SemanticCache
from cache.store import StoreDown
from gateway.auth import ADMIN
from gateway.routes.cache_admin import FeedbackWanted, judge
from policies.budget import Budget
from tests.flow.hash_encoder import SECONDS, hash_encoder
from tests.live import Live, Told, decode, live, settings
from tests.waiting import until

ASKED = "how do i bake bread at home"
SIMILAR = "how do i bake good bread at home"


@asynccontextmanager
async def opened(home: Path, **cache: Any) -> AsyncGenerator[Live, None]:
    """A gateway whose hits by meaning are served from cosine 0.88 on, and all audited."""
    chosen = settings(
        home,
        cache={"store": "memory", "mode": "semantic", "policy": "guarded", "audit_share": 1.0, "embed_timeout": "5s"}
        | cache,
    )
    async with hash_encoder(home), live(chosen) as gateway:
        cache_parts = gateway.services.cache
        assert cache_parts is not None
        await until(lambda: not cache_parts.status())
        yield gateway


async def say(gateway: Live, text: str, **more: Any) -> Told:
    told = await gateway.chat(messages=[{"role": "user", "content": text}], **more)
    assert told.status == 200, told.raw
    return told


async def eventually(gateway: Live, holds: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    async def held() -> bool:
        rows[:] = await gateway.rows()
        return holds(rows)

    await until(held)
    return rows


def audits(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["cache"] == "audit"]


async def test_a_served_hit_is_asked_again_and_the_wrong_one_is_learned(tmp_path: Path) -> None:
    """The scripted upstream says something else to every wording, so the hit was wrong: seen, counted, shut."""
    async with opened(tmp_path) as gateway:
        await say(gateway, ASKED)
        hit = await say(gateway, SIMILAR)
        assert hit.headers["x-nearhit-cache"] == "hit-semantic"
        rows = await eventually(gateway, lambda rows: len(audits(rows)) == 1)
        (audit,) = audits(rows)
        assert (audit["team"], audit["source"], audit["status"]) == ("acme", "upstream", 200)
        assert audit["cost_nano"] > 0
        cache = gateway.services.cache
        assert cache is not None
        (group,) = await cache.stats()
        assert group.trust is not None
        assert (group.trust.hits, group.trust.audited + group.trust.undecided) == (1, 1)
        if group.trust.audited_wrong:
            again = await say(gateway, "how do i bake good fresh bread at home")
            assert again.headers["x-nearhit-cache"] == "miss"


async def test_an_audit_that_could_not_be_compared_is_told_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paid for, and stood in no figure: those of a day added up to fewer than were asked."""

    async def away(*_: Any, **__: Any) -> None:
        raise StoreDown("away")

    async with opened(tmp_path) as gateway:
        await say(gateway, ASKED)
        monkeypatch.setattr(SemanticCache, "compare", away)
        assert (await say(gateway, SIMILAR)).headers["x-nearhit-cache"] == "hit-semantic"
        await eventually(gateway, lambda rows: len(audits(rows)) == 1)

        async def told() -> bool:
            async with gateway.client.get(gateway.url + "/metrics") as answer:
                return 'nearhit_cache_audits_total{result="failed"} 1.0' in await answer.text()

        await until(told)


async def test_audits_are_paid_from_their_own_cap_and_from_nobody_elses(tmp_path: Path) -> None:
    """A team's budget is for its own requests; what checking costs is capped, and taken off what the cache saved."""
    async with opened(tmp_path) as gateway:
        ledger = gateway.services.ledger
        await ledger.set_budget(Budget(scope="team:acme", limit_nano=10**9), actor="test")
        await say(gateway, ASKED)
        await say(gateway, SIMILAR)
        await eventually(gateway, lambda rows: len(audits(rows)) == 1)
        entries = await gateway.entries()
        drawn = {entry["windows"]: entry["amount_nano"] for entry in entries}
        assert len(entries) == 2
        (own,) = [name for name in drawn if "nearhit/audit" in name]
        assert "team:acme" not in own
        assert not await ledger.verify()


async def test_the_encoders_time_is_taken_off_what_the_cache_saved(tmp_path: Path) -> None:
    """Finding out whether something may be used again is work that somebody pays; what is known costs nothing anew."""
    async with opened(tmp_path, audit_share=0.0, encoder_hour_usd="0.36") as gateway:
        await say(gateway, ASKED)
        await say(gateway, ASKED)
        hit = await say(gateway, SIMILAR)
        assert hit.headers["x-nearhit-cache"] == "hit-semantic"
        rows = await eventually(gateway, lambda rows: len(rows) == 3)
        took = round(SECONDS * 0.36e9 / 3_600)
        assert sorted(row["embed_nano"] for row in rows) == [0, took, took]  # the exact hit asked no encoder
        usage = await usage_of(gateway)
        assert Decimal(usage["embed_usd"]) == Decimal(2 * took) / 10**9
        assert Decimal(usage["net_saved_usd"]) == Decimal(usage["saved_usd"]) - Decimal(usage["embed_usd"])
        stats = (await control(gateway, "/api/v1/cache/stats"))["total"]["money"]
        assert (stats["embed_usd"], stats["net_saved_usd"]) == (usage["embed_usd"], usage["net_saved_usd"])


async def test_a_charged_audit_draws_on_the_tenant_too(tmp_path: Path) -> None:
    """Who wants checking on the tenant's bill says so in the settings; the cap holds all the same."""
    async with opened(tmp_path, audit_charge=True) as gateway:
        await gateway.services.ledger.set_budget(Budget(scope="team:acme", limit_nano=10**9), actor="test")
        await say(gateway, ASKED)
        await say(gateway, SIMILAR)
        await eventually(gateway, lambda rows: len(audits(rows)) == 1)
        assert any(
            "team:acme" in entry["windows"] and "nearhit/audit" in entry["windows"] for entry in await gateway.entries()
        )


async def test_the_cap_is_never_exceeded(tmp_path: Path) -> None:
    """A cap too small for one audit means none is sent, and clients notice nothing of it."""
    async with opened(tmp_path, audit_budget_usd="0.000001") as gateway:
        await say(gateway, ASKED)
        for word in ("good", "some", "nice"):
            await say(gateway, f"how do i bake {word} bread at home")
        await asyncio.sleep(0.3)
        assert audits(await gateway.rows()) == []


@pytest.mark.parametrize("charge", [False, True])
async def test_one_tenants_audits_that_cannot_be_paid_stop_nobody_elses(tmp_path: Path, charge: bool) -> None:
    """One hit whose answer may cost more than is left, or a tenant without money, and nobody's hits were checked."""
    async with opened(tmp_path, audit_budget_usd="0.01", audit_charge=charge) as gateway:
        dear = {} if charge else {"max_tokens": 100_000}
        await say(gateway, ASKED, **dear)
        if charge:
            await gateway.services.ledger.set_budget(Budget(scope="team:acme", limit_nano=1), actor="test")
        assert (await say(gateway, SIMILAR, **dear)).headers["x-nearhit-cache"] == "hit-semantic"
        other = await gateway.new_key("zeta")
        await say(gateway, ASKED, key=other)
        assert (await say(gateway, SIMILAR, key=other)).headers["x-nearhit-cache"] == "hit-semantic"
        rows = await eventually(gateway, lambda rows: len(audits(rows)) == 1)
        assert {row["team"] for row in audits(rows)} == {"zeta"}


async def test_no_money_for_audits_means_no_audits_and_no_budget(tmp_path: Path) -> None:
    """0 switches them off."""
    async with opened(tmp_path, audit_budget_usd="0") as gateway:
        await say(gateway, ASKED)
        await say(gateway, SIMILAR)
        await asyncio.sleep(0.2)
        assert audits(await gateway.rows()) == []


async def test_a_stop_does_not_wait_for_audits(tmp_path: Path) -> None:
    """A slow upstream must not hold up a restart; what was sent is settled all the same."""
    async with opened(tmp_path, audit_share=1.0) as gateway:
        await say(gateway, ASKED)
        up: Any = gateway.services.providers["up"]
        up._config = up._config.__class__(ttft_ms=30_000)
        await say(gateway, SIMILAR)
        await asyncio.sleep(0.2)
        began = time.monotonic()
    assert time.monotonic() - began < 20


async def test_wrong_feedback_takes_the_answer_back_shuts_what_is_near_and_corrects_the_saving(tmp_path: Path) -> None:
    """An undo without a header: gone, not served nearby until verified, and no longer counted as saved."""
    async with opened(tmp_path, audit_share=None) as gateway:
        await say(gateway, ASKED)
        hit = await say(gateway, SIMILAR)
        assert hit.headers["x-nearhit-cache"] == "hit-semantic"
        rows = await gateway.rows()
        wanted = FeedbackWanted(request_id=rows[-1]["id"], verdict="wrong")
        services = gateway.services
        told = await judge(services, ADMIN, wanted, None)
        assert told.evicted
        await say(gateway, ASKED)
        near = await say(gateway, SIMILAR)
        assert near.headers["x-nearhit-cache"] == "miss"
        assert (await explained(gateway, near))["reason"] == "quarantine"
        usage = await usage_of(gateway)
        assert usage["corrected_usd"] == "-" + usage["saved_usd"]
        again = await judge(services, ADMIN, wanted, None)
        assert not again.evicted
        assert (await usage_of(gateway))["corrected_usd"] == usage["corrected_usd"]
        await judge(services, ADMIN, FeedbackWanted(request_id=rows[-1]["id"], verdict="right"), None)
        assert (await usage_of(gateway))["corrected_usd"] == "0"


async def control(gateway: Live, path: str) -> Any:
    await gateway.settled()
    headers = {"authorization": "Bearer sk-test-admin-key-of-some-length"}
    async with gateway.client.get(gateway.url + path, headers=headers) as response:
        assert response.status == 200, await response.text()
        return decode(await response.read())


async def explained(gateway: Live, told: Told) -> dict[str, Any]:
    return (await control(gateway, f"/api/v1/requests/{told.headers['x-request-id']}"))["why"]


async def usage_of(gateway: Live) -> dict[str, Any]:
    return (await control(gateway, "/api/v1/usage"))["total"]


async def test_an_explanation_holds_all_the_decision_knew(tmp_path: Path) -> None:
    """Scope, candidates, confidence and what the audit said: without it nobody can argue with a hit."""
    async with opened(tmp_path) as gateway:
        await say(gateway, ASKED)
        hit = await say(gateway, SIMILAR)
        rows = await eventually(gateway, lambda rows: len(audits(rows)) == 1)
        await asyncio.sleep(0.5)
        why = await explained(gateway, hit)
        assert len(why["scope"]) == 12
        assert why["candidates"][0]["similarity"] > 0.88
        assert why["judged"]["kind"] == "audit"
        (audit,) = audits(rows)
        assert why["audit"] == audit["id"]
        found = await control(gateway, f"/api/v1/requests/{audit['id']}")
        assert found["why"]["of"] == hit.headers["x-request-id"]


async def test_a_learning_policy_compares_its_misses_in_the_background(tmp_path: Path) -> None:
    """With `cache.policy: learned` a miss with candidates teaches, and its explanation tells what came of it."""
    async with opened(tmp_path, policy="learned", audit_share=None) as gateway:
        await say(gateway, ASKED)
        near = await say(gateway, "which trains leave for bread at home today please")
        for _ in range(3):
            near = await say(gateway, f"how do i bake {_} loaves of rye bread at home")
        await asyncio.sleep(0.6)
        why = await explained(gateway, near)
        assert why["headroom"]
        assert why["candidates"][0]["features"]["cosine"] > 0.5
        assert why["judged"]["kind"] == "explore"
        cache = gateway.services.cache
        assert cache is not None
        (group,) = await cache.stats()
        assert group.trust is not None
        assert group.trust.explored + group.trust.undecided > 0 or why["judged"]["same"] is None
