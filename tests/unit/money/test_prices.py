"""The price book: overrides first, the bundled table as integers, engines by their hour, nothing free by accident."""

from decimal import Decimal
from pathlib import Path

import pytest
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import TieredPrices

from gateway.db.session import Database
from gateway.prices import PriceBook, engine_price
from gateway.settings import Settings
from policies.money import Usage, cost_nano
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
    price = engine_price("3.60", 1_000.0, 100.0, measured=True)
    assert (price.input, price.output, price.status) == (1_000_000, 10_000_000, "exact")
    assert cost_nano(Usage(prompt=1_000 * 3_600), price) == 3_600_000_000
    assert engine_price("0.50", 500.0, 50.0, measured=False).status == "assumed"
    assert engine_price("0", 500.0, 50.0, measured=False).status == "free"
    assert price.id != engine_price("3.61", 1_000.0, 100.0, measured=True).id


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
