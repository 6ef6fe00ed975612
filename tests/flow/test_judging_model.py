"""A configured model as the judge, asked through the whole gateway: verdicts, nonsense, slowness, what it may cost."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from cache.judging import gold
from cache.types import Trust
from gateway.judging import Worth, mark_of
from tests.flow.hash_encoder import hash_encoder
from tests.flow.speaking_upstream import Speaker, speaking
from tests.flow.test_audits import ASKED, SIMILAR, audits, eventually, explained, say
from tests.live import Live, live, settings
from tests.waiting import until

WORDS = ("good", "nice", "some", "fresh", "plain", "soft")
TRUTH = {(item.question, item.a, item.b): item.same for item in gold()}


@asynccontextmanager
async def judged(
    home: Path, *, price: str = "0.10", known: bool = True, **cache: Any
) -> AsyncGenerator[tuple[Live, Speaker]]:
    """A gateway whose hits are all audited by `lab/judge`. `known`: it was measured before. `price` per million."""
    if known:
        worth = {mark_of(name, name): Worth(name, 100, 100, 1) for name in ("lab/judge", "local/sim")}
        (home / "judges.json").write_bytes(msgspec.json.encode(worth))
    async with speaking() as (speaker, upstream), hash_encoder(home):
        chosen = settings(
            home,
            providers={
                "up": {"kind": "scripted"},
                "lab": {"kind": "openai", "base_url": upstream.url, "api_key": "none"},
            },
            cache={
                "store": "memory",
                "mode": "semantic",
                "policy": "guarded",
                "audit_share": 1.0,
                "embed_timeout": "5s",
                "judge": {"model": "lab/judge"},
            }
            | cache,
        )
        async with live(chosen) as gateway:
            for model in ("lab/judge", "lab/cook"):
                await gateway.services.prices.set(
                    model, input_usd=price, output_usd=price, actor="test", effective_from=0.0
                )
            await ready(gateway)
            yield gateway, speaker


async def ready(gateway: Live) -> None:
    """Until the encoder is there."""
    cache = gateway.services.cache
    assert cache is not None
    await until(lambda: not cache.status())


async def trust(gateway: Live) -> Trust:
    assert gateway.services.cache is not None
    return next((row.trust for row in await gateway.services.cache.stats() if row.trust is not None), Trust())


async def compared(gateway: Live, count: int = 1) -> Trust:
    """What was measured, once so many hits have been compared."""

    async def enough() -> bool:
        found = await trust(gateway)
        return found.audited + found.undecided >= count

    await until(enough)
    return await trust(gateway)


async def test_a_model_is_measured_then_believed_and_its_questions_are_on_the_books(tmp_path: Path) -> None:
    """The first comparison measures it on the gold pairs; its flip rate, rows and cost are what people see later."""
    async with judged(tmp_path, known=False) as (gateway, speaker):
        lies = iter([True, True, True])

        def rule(item: dict[str, str]) -> str:
            same = TRUTH.get((item["question"], item["first"], item["second"]), True)
            return "same" if same != next(lies, False) else "different"

        speaker.rule = rule
        await say(gateway, ASKED)
        hit = await say(gateway, SIMILAR)
        assert hit.headers["x-nearhit-cache"] == "hit-semantic"
        found = await compared(gateway)
        assert (found.audited, found.audited_wrong, found.undecided) == (1, 0, 0)
        assert abs(found.flips - 4 / (len(TRUTH) + 2)) < 0.01
        assert speaker.judged == len(gold()) + 1
        rows = await eventually(gateway, lambda rows: len(audits(rows)) == speaker.prompts + 1)
        judge = [row for row in audits(rows) if (row["team"], row["project"]) == ("nearhit", "judge")]
        assert len(judge) == speaker.prompts
        assert all(row["cost_nano"] > 0 and row["status"] == 200 for row in judge)
        (by,) = (await explained(gateway, hit))["judged"]["judgements"]
        assert (by["by"], by["verdict"]) == ("model:lab/judge", "same")
        assert not await gateway.services.ledger.verify()


async def test_a_wrong_hit_found_by_the_model_is_shut(tmp_path: Path) -> None:
    """A clear `different` has the same consequences whoever says it."""
    async with judged(tmp_path) as (gateway, speaker):
        speaker.rule = lambda _: "different"
        await say(gateway, ASKED)
        await say(gateway, SIMILAR)
        found = await compared(gateway)
        assert (found.audited, found.audited_wrong, found.quarantines) == (1, 1, 1)
        again = await say(gateway, SIMILAR)
        assert again.headers["x-nearhit-cache"] == "miss"


async def test_nonsense_is_no_verdict(tmp_path: Path) -> None:
    """A model that rambles, or is talked into something by an answer, must neither brake nor bless."""
    async with judged(tmp_path) as (gateway, speaker):
        await say(gateway, ASKED)
        odd = ("I am only a parrot.", '["same","same","same","same","same"]', "", '["SAME!!"]', "[[]]", "🍞")
        for number, (word, reply) in enumerate(zip(WORDS, odd, strict=True)):
            speaker.reply = reply
            hit = await say(gateway, f"how do i bake {word} bread at home")
            assert hit.headers["x-nearhit-cache"] == "hit-semantic"
            found = await compared(gateway, number + 1)
            assert (found.audited, found.undecided) == (0, number + 1)


async def test_a_model_that_cannot_judge_is_not_measured_again_and_again(tmp_path: Path) -> None:
    """The gold pairs cost money: asked anew before every comparison they would eat the day's cap for nothing."""
    async with judged(tmp_path, known=False) as (gateway, speaker):
        speaker.reply = "I am only a parrot."
        await say(gateway, ASKED)
        for number, word in enumerate(WORDS[:3]):
            await say(gateway, f"how do i bake {word} bread at home")
            await compared(gateway, number + 1)
        assert speaker.prompts == -(-len(gold()) // 8) + 3
        assert not (tmp_path / "judges.json").exists()


async def test_a_slow_judge_delays_nobody_and_is_heard_in_the_end(tmp_path: Path) -> None:
    """Judging is in the background: clients are served meanwhile, and the verdict still counts when it comes."""
    async with judged(tmp_path) as (gateway, speaker):
        speaker.go.clear()
        speaker.rule = lambda _: "same"
        await say(gateway, ASKED)
        for word in WORDS:
            hit = await say(gateway, f"how do i bake {word} bread at home")
            assert hit.headers["x-nearhit-cache"] == "hit-semantic"
        assert (await trust(gateway)).audited == 0
        speaker.go.set()
        found = await compared(gateway)
        assert found.audited > 0
        assert found.audited_wrong == 0


async def test_a_judge_dearer_than_the_cap_is_never_asked(tmp_path: Path) -> None:
    """`cache.audit_budget_usd` holds for the judge too: no call goes out, nothing is spent, and nothing is learned."""
    async with judged(tmp_path, price="100000", audit_budget_usd="0.01") as (gateway, speaker):
        await say(gateway, ASKED)
        hit = await say(gateway, SIMILAR)
        assert hit.headers["x-nearhit-cache"] == "hit-semantic"
        found = await compared(gateway)
        assert (found.audited, found.undecided, speaker.prompts) == (0, 1, 0)
        assert all("judge" not in entry["windows"] for entry in await gateway.entries())
        assert not await gateway.services.ledger.verify()


async def test_an_engine_can_judge(tmp_path: Path) -> None:
    """The bundled engine is a model like any other; one that cannot judge is unsure and harms nothing."""
    async with judged(tmp_path, judge={"model": "local/sim"}) as (gateway, _):
        await say(gateway, ASKED)
        await say(gateway, SIMILAR)
        found = await compared(gateway)
        assert (found.audited, found.undecided) == (0, 1)
        rows = await eventually(gateway, lambda rows: any(row["team"] == "nearhit" for row in rows))
        (judge,) = [row for row in rows if row["team"] == "nearhit"]
        assert (judge["provider"], judge["status"], judge["cache"]) == ("local", 200, "audit")


async def test_a_judged_wording_is_checked_again_and_goes_where_it_was_wrong(tmp_path: Path) -> None:
    """The model has changed its mind since the wording was taken for the same: it must not answer that for ever."""
    async with judged(tmp_path, policy="learned") as (gateway, speaker):
        await say(gateway, ASKED, model="lab/cook")
        await say(gateway, SIMILAR, model="lab/cook")
        cache = gateway.services.cache
        assert cache is not None

        async def taken_for_the_same() -> bool:
            return bool((await trust(gateway)).aliases)

        await until(taken_for_the_same)
        before = await trust(gateway)
        assert before.aliases == 1
        speaker.say = lambda _: "In a pan, an hour."
        served = await say(gateway, SIMILAR, model="lab/cook")
        assert served.headers["x-nearhit-cache"] == "hit-exact"
        assert served.text == "In the oven at 220 degrees."
        found = await compared(gateway, before.audited + 1)
        assert (found.audited, found.audited_wrong) == (before.audited + 1, 1)
        why = (await explained(gateway, served))["judged"]
        assert (why["kind"], why["same"]) == ("audit", False)
        asked_before = len(speaker.asked)
        fresh = await say(gateway, SIMILAR, model="lab/cook")
        assert (fresh.headers["x-nearhit-cache"], fresh.text) == ("miss", "In a pan, an hour.")
        assert len(speaker.asked) == asked_before + 1
        own = await say(gateway, ASKED, model="lab/cook")
        assert (own.headers["x-nearhit-cache"], own.text) == ("hit-exact", "In the oven at 220 degrees.")


async def test_a_stricter_client_is_not_answered_with_a_wording_that_is_too_doubtful_for_it(tmp_path: Path) -> None:
    """What was judged to be the same for one client is an exact hit for all: it must be good enough for each."""
    async with judged(tmp_path, policy="learned") as (gateway, _):
        for text in (ASKED, SIMILAR):
            await say(gateway, text, model="lab/cook")
        cache = gateway.services.cache
        assert cache is not None

        async def doubts() -> list[float]:
            return [entry.doubt for entry in await cache.entries(10) if entry.doubt is not None]

        async def taken_for_the_same() -> bool:
            return bool(await doubts())

        await until(taken_for_the_same)
        (doubt,) = await doubts()
        assert 0.0 < doubt <= 0.05
        asked = {"model": "lab/cook", "messages": [{"role": "user", "content": SIMILAR}]}
        for share, wanted in ((1.01, "hit-exact"), (0.99, "miss"), (0.99, "hit-exact")):
            header = {"x-nearhit-max-wrong-hit-rate": f"{doubt * share:.8f}"}
            told = await gateway.post("/v1/chat/completions", asked, headers=header)
            assert told.status == 200, told.raw
            assert told.headers["x-nearhit-cache"] == wanted
