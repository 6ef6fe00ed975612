"""From an answer that a person calls wrong to the message that people get, through a whole gateway."""

from pathlib import Path

import msgspec
import pytest

from gateway.auth import ADMIN
from gateway.feedback import Verdict
from gateway.routes.cache_admin import FeedbackWanted, judge
from tests.contract.test_alerts import receiver, webhook
from tests.flow.hash_encoder import hash_encoder
from tests.live import live, settings
from tests.waiting import until

ASKED = "how do i bake bread at home"
SIMILAR = "how do i bake good bread at home"


async def test_wrong_hits_beyond_the_budget_reach_people_and_so_does_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metric that nobody looks at is no alert; and who reads the message learns nothing that was asked."""
    monkeypatch.setattr("gateway.cache_alerts._SETTLED_SECONDS", 0.0)
    cache = {"store": "memory", "mode": "semantic", "policy": "guarded", "audit_share": 0.0, "embed_timeout": "5s"}
    async with (
        hash_encoder(tmp_path),
        receiver() as there,
        live(settings(tmp_path, cache=cache, alerts=webhook(there.url))) as gateway,
    ):
        parts = gateway.services.cache
        assert parts is not None
        await until(lambda: not parts.status())
        await gateway.chat(messages=[{"role": "user", "content": ASKED}])
        for _ in range(20):
            told = await gateway.chat(messages=[{"role": "user", "content": SIMILAR}])
            assert told.headers["x-nearhit-cache"] == "hit-semantic"
        hits = [row["id"] for row in await gateway.rows()][-2:]
        verdicts: list[tuple[Verdict, int]] = [("wrong", 1), ("right", 2)]
        for verdict, messages in verdicts:
            for hit in hits:
                await judge(gateway.services, ADMIN, FeedbackWanted(request_id=hit, verdict=verdict), None)
            await until(lambda wanted=messages: len(there.got) == wanted)
    begun, over = (msgspec.json.decode(body) for _, body in there.got)
    assert (begun["type"], over["type"]) == ("cache.wrong_hits", "cache.wrong_hits.over")
    assert (begun["data"]["team"], begun["data"]["wrong_hit_rate"]) == ("acme", 0.1)
    assert over["data"]["wrong_hit_rate"] == 0
    assert not any(b"bread" in body for _, body in there.got)
