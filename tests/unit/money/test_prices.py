"""The price book: overrides first, the bundled table as integers, engines by their hour, nothing free by accident."""

from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import TieredPrices
from msgspec import convert

from gateway.db.session import Database
from gateway.engine_prices import engine_price
from gateway.price_table import describe
from gateway.price_terms import HoursWanted, Terms, TierWanted
from gateway.prices import PriceBook, PriceSetting
from gateway.settings import Settings
from policies.engine_cost import Speed
from policies.money import Usage, bound_nano, cost_nano
from tests.clock import FrozenClock

AT = 1_790_000_000.0


@pytest.fixture
async def database(tmp_path: Path) -> Database:
    made = Database(f"sqlite:///{tmp_path / 'x.db'}")
    await made.start()
    return made


async def book(database: Database, clock: FrozenClock, **more: object) -> PriceBook:
    made = PriceBook(database, settings=Settings(**more), now=clock.now)  # type: ignore[arg-type]
    await made.load()
    return made


async def test_unknown_models_have_no_price(database: Database, clock: FrozenClock) -> None:
    """Peers billed unknown models at nothing; here the caller refuses them, and the operator sees which they were."""
    prices = await book(database, clock)
    assert prices.price("openai", "openai", "gpt-99-imaginary", AT) is None
    assert prices.price("lab", "openai", "gpt-5-mini", AT) is None
    assert prices.unpriced() == ["openai/gpt-99-imaginary", "lab/gpt-5-mini"]
    await database.close()


@pytest.mark.parametrize("name", ["openai/*", "*/*", "openai/gpt-*", "open*/gpt-5"])
async def test_a_price_of_all_models_is_refused(database: Database, clock: FrozenClock, name: str) -> None:
    """It was kept as the price of a model of that very name, so that whoever set it believed all of them priced."""
    with pytest.raises(ValueError, match="a price is of one model"):
        await (await book(database, clock)).put(name, Terms(input_usd="1", output_usd="2"), PriceSetting(actor="ann"))
    await database.close()


async def test_a_provider_is_known_by_its_address(database: Database, clock: FrozenClock) -> None:
    """An operator may call OpenAI's endpoint what they like, and its prices stay its own."""
    mine = {"mine": {"kind": "openai", "base_url": "https://api.openai.com/v1"}}
    prices = await book(database, clock, providers=mine)
    found = prices.price("mine", "openai", "gpt-5-mini", AT)
    assert found is not None
    assert found.id.startswith("openai/gpt-5-mini@")
    assert (found.input, found.output, found.cached_input) == (250_000, 2_000_000, 25_000)
    assert prices.price("mine", "openai", "gpt-5-mini", AT) is found
    await database.close()


async def test_the_operators_price_wins_from_its_date_on(database: Database, clock: FrozenClock) -> None:
    """A negotiated price replaces the list price when it takes effect, not before, and not in past charges."""
    prices = await book(database, clock)
    listed = prices.price("openai", "openai", "gpt-5-mini", clock.now())
    await prices.set("openai/gpt-5-mini", input_usd="0.2", output_usd="1.5", actor="fin", effective_from=AT + 100)
    assert prices.price("openai", "openai", "gpt-5-mini", AT) == listed
    mine = prices.price("openai", "openai", "gpt-5-mini", AT + 100)
    assert mine is not None
    assert (mine.input, mine.output, mine.status) == (200_000, 1_500_000, "exact")
    await prices.set("*/llama", input_usd="0", output_usd="0", actor="fin", effective_from=0)
    free = prices.price("lab", "openai", "llama", AT)
    assert free is not None
    assert free.status == "free"
    again = await book(database, clock)
    assert again.price("openai", "openai", "gpt-5-mini", AT + 100) == mine
    assert [row.model for row in again.overrides()] == ["llama", "gpt-5-mini"]
    await database.close()


@pytest.mark.parametrize(
    ("alias", "dated", "taken"),
    [
        ("openai/gpt-5", "gpt-5-2025-08-07", True),  # the table has one row for both
        ("openai/gpt-99", "gpt-99-2026-01-01", True),  # it knows neither
        ("anthropic/claude-opus-4-8", "claude-opus-4-8-20291231", True),  # it guesses
        ("anthropic/claude-opus-4-8", "claude-opus-4-8@20291231", True),
        ("*/claude-opus-4-8", "claude-opus-4-8-20291231", True),
        ("openai/gpt-4o", "gpt-4o-2024-05-13", False),  # a row of its own, at twice the price
        ("openai/gpt-5", "gpt-5-2025-13-07", False),  # no date
        ("openai/gpt-5", "gpt-5-2025-0807", False),
        ("openai/gpt-5", "gpt-5-mini-2025-08-07", False),  # another model
        ("mine/sim", "sim-20260101", False),  # an engine's names are its own
    ],
)
async def test_a_dated_name_is_charged_at_the_operators_price_of_its_alias(
    database: Database, clock: FrozenClock, alias: str, dated: str, taken: bool
) -> None:
    """A contract names the model, and the invoice a day of it: the list's guess stood in the ledger."""
    prices = await book(database, clock, engines={"mine": {"model": "sim"}})
    provider = alias.partition("/")[0].replace("*", "anthropic")
    terms = Terms(input_usd="0.5", output_usd="0.75", service={"batch": 50})
    await prices.put(alias, terms, PriceSetting(actor="fin", effective_from=AT))
    before, found = (prices.price(provider, provider, dated, at) for at in (AT - 1, AT))
    assert (found is not None and found.id.startswith(f"set/{alias}@")) is taken
    assert before is None or not before.id.startswith("set/")
    assert prices.background_tier(provider, provider, dated, AT) == (("batch", False) if taken else ("default", False))
    await prices.put(f"{provider}/{dated}", Terms(input_usd="9", output_usd="9"), PriceSetting(actor="fin"))
    own = prices.price(provider, provider, dated, clock.now())
    assert own is not None
    assert own.input == 9_000_000
    await database.close()


@pytest.mark.parametrize(
    ("name", "amount"),
    [
        ("gpt", "1"),
        ("openai/", "1"),
        ("openai/x", "-1"),
        ("openai/x", "nan"),
        ("openai/x", "1e9"),
        ("openai/x", "cheap"),
    ],
)
async def test_nonsense_prices_are_refused(database: Database, clock: FrozenClock, name: str, amount: str) -> None:
    """A price in the wrong unit is the dearest typing error there is."""
    prices = await book(database, clock)
    with pytest.raises(ValueError, match=r"provider/model|USD"):
        await prices.set(name, input_usd=amount, output_usd=amount, actor="fin")
    await database.close()


def test_an_engine_costs_its_hour() -> None:
    """A token of the bundled engine costs the hour of its hardware over the tokens of an hour."""
    speed = Speed(prefill_tps=1_000.0, decode_tps=100.0, measured=True)
    price = engine_price("engine", "3.60", speed)
    assert (price.input, price.output, price.status) == (1_000_000, 10_000_000, "measured")
    assert cost_nano(Usage(prompt=1_000 * 3_600), price) == 3_600_000_000
    assert engine_price("engine", "0.50", Speed(prefill_tps=500.0, decode_tps=50.0)).status == "assumed"
    assert engine_price("engine", "0", speed).status == "free"
    assert price.id != engine_price("engine", "3.61", speed).id


async def test_an_engine_is_measured_only_when_both_speeds_are(database: Database, clock: FrozenClock) -> None:
    """Half a measurement is an assumption, and idle hours are paid by the tokens of the busy ones."""
    half = await book(database, clock, engines={"local": {"tokens_per_second": 100, "hour_usd": "3.60"}})
    whole = await book(
        database,
        clock,
        engines={
            "local": {
                "tokens_per_second": 100,
                "prefill_tokens_per_second": 4_000,
                "hour_usd": "3.60",
                "busy_share": 0.5,
            }
        },
    )
    first, second = (made.price("local", "local", "demo", AT) for made in (half, whole))
    assert first is not None
    assert second is not None
    assert (first.status, first.input, first.output) == ("assumed", 1_000_000, 10_000_000)
    assert (second.status, second.input, second.output) == ("measured", 500_000, 20_000_000)
    await database.close()


async def test_a_contract_says_all_that_a_bill_can_hold(database: Database, clock: FrozenClock) -> None:
    """Classes, tiers, hours and service tiers survive the database, and each is charged as the contract says."""
    prices = await book(database, clock)
    terms = Terms(
        input_usd="2",
        output_usd="8",
        cached_usd="0.5",
        cache_write_usd="2.5",
        cache_write_1h_usd="4",
        reasoning_usd="6",
        audio_input_usd="40",
        request_usd="0.01",
        tiers=[TierWanted(above=100_000, percent=200)],
        hours=[HoursWanted(start="16:30", end="00:30", percent=50)],
        service={"batch": "50%", "priority": 175},
    )
    made = await prices.put("lab/m", terms, PriceSetting(actor="fin", effective_from=0.0))
    again = await book(database, clock)
    noon, night = 1_790_000_000 // 86_400 * 86_400 + 43_200.0, 1_790_000_000 // 86_400 * 86_400 + 60.0
    found, cheap = (again.price("lab", "openai", "m", at) for at in (noon, night))
    assert [row.price for row in again.overrides()] == [made.price]
    assert found is not None
    assert cheap is not None
    assert (found.bands, cheap.bands, cheap.id.partition("@")[0]) == ((), (), "set/lab/m+hours1")
    spoken = Usage(
        prompt=1_000, cached=100, cache_write=50, cache_write_1h=20, audio_in=10, completion=100, reasoning=40
    )
    expected = 840 * 2_000 + 10 * 40_000 + 100 * 500 + 30 * 2_500 + 20 * 4_000 + 60 * 8_000 + 40 * 6_000 + 10_000_000
    assert cost_nano(spoken, found) == expected
    assert cost_nano(spoken, cheap) == (expected - 10_000_000) // 2 + 10_000_000
    assert cost_nano(Usage(prompt=100_001), found) == 100_001 * 4_000 + 10_000_000
    assert bound_nano(10, 0, found) == 10 * 40_000 + 10_000_000
    batch = again.price("lab", "openai", "m", noon, tier="batch")
    assert batch is not None
    assert (batch.input, batch.request) == (1_000_000, 5 * 10**9)
    assert batch.id.startswith("set/lab/m+batch@")
    assert again.price("lab", "openai", "m", noon, tier="flex") == found
    await database.close()


async def test_a_batch_is_half_only_where_somebody_says_so(database: Database, clock: FrozenClock) -> None:
    """The bundled list has no batches of these services: of two all models are halved, of the third only some."""
    prices = await book(database, clock, providers={"bedrock": {"kind": "bedrock"}})
    for kind, model, percent in (
        ("fireworks", "accounts/fireworks/models/kimi-k2p6", 50),
        ("bedrock", "amazon.nova-lite-v1:0", 50),
        ("together", "meta-llama/Llama-3.3-70B-Instruct-Turbo", 100),
    ):
        usual = prices.price(kind, kind, model, AT)
        batch = prices.price(kind, kind, model, AT, tier="batch")
        assert usual is not None, model
        assert batch is not None
        assert (batch.input * 100, batch.output * 100) == (usual.input * percent, usual.output * percent)
        assert (batch.status == "assumed") == (percent == 50)
    await database.close()


async def test_a_contract_ends_on_its_day(database: Database, clock: FrozenClock) -> None:
    """After a limited offer the price before it holds again, and without one the list price does."""
    prices = await book(database, clock)
    offer = PriceSetting(actor="fin", effective_from=AT, effective_until=AT + 100)
    await prices.put("openai/gpt-5-mini", Terms(input_usd="0.1", output_usd="1"), offer)
    listed = prices.price("openai", "openai", "gpt-5-mini", AT - 1)
    assert listed is not None
    assert prices.price("openai", "openai", "gpt-5-mini", AT + 100) == listed
    assert prices.price("openai", "openai", "gpt-5-mini", AT + 99) != listed
    await prices.put(
        "openai/gpt-5-mini", Terms(input_usd="0.2", output_usd="1"), PriceSetting(actor="f", effective_from=0)
    )
    after = prices.price("openai", "openai", "gpt-5-mini", AT + 100)
    assert after is not None
    assert after.input == 200_000
    await database.close()


async def test_a_price_is_never_replaced_in_silence(database: Database, clock: FrozenClock) -> None:
    """Two prices from the same instant on would leave open which of them was charged."""
    prices = await book(database, clock)
    await prices.set("lab/m", input_usd="1", output_usd="1", actor="fin", effective_from=5.0)
    rich = Terms(input_usd=1, output_usd=1, reasoning_usd=2, service={"batch": 50})
    for _ in range(2):  # the same again is no change
        await prices.set("lab/m", input_usd="1", output_usd="1", actor="fin", effective_from=5.0)
        await prices.put("lab/rich", rich, PriceSetting(actor="fin", effective_from=5.0))
    assert len(prices.overrides()) == 2
    with pytest.raises(ValueError, match="from that instant on"):
        await prices.set("lab/m", input_usd="2", output_usd="2", actor="fin", effective_from=5.0)
    ends = PriceSetting(actor="fin", effective_from=5.0, effective_until=5.0)
    with pytest.raises(ValueError, match="effective_until"):
        await prices.put("lab/n", Terms(input_usd="2", output_usd="2"), ends)
    await database.close()


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"tiers": [{"above": 5}]}, r"tiers\[0\] needs input_usd"),
        ({"tiers": [{"above": 5, "percent": 50, "input_usd": 1}]}, "not both"),
        ({"tiers": [{"above": 0, "percent": 50}]}, "thresholds"),
        ({"tiers": [{"above": 5, "percent": 50}, {"above": 5, "percent": 60}]}, "thresholds"),
        ({"hours": [{"start": "25:00", "end": "01:00", "percent": 50}]}, "time of day"),
        ({"hours": [{"start": "5", "end": "01:00", "percent": 50}]}, "time of day"),
        ({"hours": [{"start": "00:00", "end": "01:00", "days": "mon-fry", "percent": 50}]}, "fry|no day"),
        ({"hours": [{"start": "00:00", "end": "01:00", "percent": -1}]}, "percent"),
        ({"service": {"batch": "half"}}, "percentage"),
        ({"service": {"not a name": 50}}, "service tier"),
        (
            {
                "tiers": [{"above": 5, "percent": 50}],
                "hours": [{"start": "0:00", "end": "1:00", "input_usd": 1, "output_usd": 1}],
            },
            "long prompts",
        ),
    ],
)
async def test_terms_that_could_be_misread_are_refused(
    database: Database, clock: FrozenClock, terms: dict[str, object], said: str
) -> None:
    """A contract is typed by people; what it says must have one meaning."""
    prices = await book(database, clock)
    wanted = convert({"input_usd": 1, "output_usd": 1, **terms}, Terms)
    with pytest.raises(ValueError, match=said):
        await prices.put("lab/m", wanted, PriceSetting(actor="fin"))
    await database.close()


async def test_bundled_classes_are_charged_apart(database: Database, clock: FrozenClock) -> None:
    """List prices of audio, hour-long cache writes and batches are in the table, so they are not guessed."""
    prices = await book(database, clock)
    audio = prices.price("openai", "openai", "gpt-audio", AT)
    claude = prices.price("anthropic", "openai", "claude-3-5-sonnet", AT)
    assert audio is not None
    assert claude is not None
    assert audio.apart is not None
    assert (audio.apart.audio_in or 0) > audio.input
    assert claude.apart is not None
    assert (claude.cache_write, claude.apart.cache_write_1h) == (3_750_000, 6_000_000)
    whole, batch = (prices.price("openai", "openai", "gpt-4o", 1_795_000_000, tier=t) for t in ("default", "batch"))
    assert whole is not None
    assert batch is not None
    assert (batch.input * 2, batch.output * 2) == (whole.input, whole.output)
    await database.close()


async def test_speech_and_sound_are_priced_by_what_is_counted(database: Database, clock: FrozenClock) -> None:
    """A million characters and an hour of sound are in the table; a model in it must not be refused as unpriced."""
    prices = await book(database, clock)
    speech, sound = (prices.price("openai", "openai", model, AT) for model in ("tts-1", "whisper-1"))
    assert speech is not None
    assert sound is not None
    assert (cost_nano(Usage(prompt=1_000_000), speech), speech.status) == (15 * 10**9, "exact")
    assert (cost_nano(Usage(prompt=3_600), sound), sound.status) == (360_000_000, "assumed")
    await database.close()


async def test_an_old_table_is_doubted(database: Database, clock: FrozenClock) -> None:
    """A price list that was bundled long ago must say so; a contract price has nothing to do with it."""
    prices = await book(database, clock)
    table = describe(AT + 400 * 86_400)
    assert (table.name, table.age_days > 300) == ("genai-prices", True)
    assert any("bundled table" in why for why in prices.doubts("openai", "gpt-5-mini", AT + 400 * 86_400))
    assert prices.doubts("openai", "gpt-5-mini", datetime.fromisoformat(table.as_of).timestamp() + 86_400) == []
    await prices.set("openai/gpt-5-mini", input_usd="1", output_usd="1", actor="fin", effective_from=0.0)
    assert prices.doubts("openai", "gpt-5-mini", AT + 400 * 86_400) == []
    await database.close()


async def test_bundled_models_always_have_a_price(database: Database, clock: FrozenClock) -> None:
    """The quick start must not refuse its own engine, its encoder or its demo upstream."""
    prices = await book(database, clock)
    for provider, kind, model in (("local", "local", "demo"), ("local", "local", "minilm"), ("s", "scripted", "any")):
        found = prices.price(provider, kind, model, AT)
        assert found is not None
        assert found.status == "assumed"
    await database.close()


async def test_integers_agree_with_the_table(database: Database, clock: FrozenClock) -> None:
    """Compiled to integers, every chat price of the bundled table still charges what the table's own code does."""
    prices = await book(database, clock)
    compared = 0
    for provider in get_snapshot().providers:
        for model in provider.models:
            if provider.id not in ("openai", "anthropic", "google", "mistral", "groq", "deepseek"):
                continue
            found = prices.price(provider.id, "openai", model.id, AT)
            if found is None or found.status == "assumed":
                continue
            for prompt in (1_000, 150_000, 300_000):
                mine = cost_nano(Usage(prompt=prompt, completion=500), found)
                theirs = _theirs(model, prompt, 500)
                if not theirs and mine:  # by the character, which its code is told otherwise
                    continue
                assert 0 <= mine - theirs < Decimal(2_000), (provider.id, model.id, prompt)
                compared += 1
    assert compared > 200
    await database.close()


def _theirs(model: object, prompt: int, completion: int) -> Decimal:
    from datetime import UTC, datetime

    their = model.get_prices(datetime.fromtimestamp(AT, UTC))  # type: ignore[attr-defined]
    total = Decimal(0)
    for field, count in (("input_mtok", prompt), ("output_mtok", completion)):
        value = getattr(their, field)
        if isinstance(value, TieredPrices):
            value = next((t.price for t in reversed(value.tiers) if prompt > t.start), value.base)
        total += (value or Decimal(0)) * count * 1_000
    return total
