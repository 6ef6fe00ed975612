"""The FOCUS dataset: what the specification asks, and that its sums are the ledger's."""

import csv
import io
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as parquet
import pytest
from msgspec import structs
from sqlalchemy import insert, text

from gateway.db.models import MonthSeal
from gateway.db.queries import Pruned, Queries
from gateway.db.session import Database
from gateway.exports.columns import Version, columns, kind
from gateway.exports.focus import Listed
from gateway.exports.focus_file import Wanted, write_focus
from gateway.ledger import sums
from gateway.ledger.closing import Months
from gateway.ledger.retention import Kept, Retention
from gateway.prices import PriceBook
from gateway.settings import Settings
from policies.money import Usage
from tests.proofs import wanted
from tests.unit.exports.books import AGREED, AGREED_BATCH, at, entry, hits, named, post

SPECIFICATION = Path(__file__).parents[2] / "data" / "focus_columns.csv"
COSTS = ("BilledCost", "EffectiveCost", "ContractedCost", "ListCost")
VERSIONS: tuple[Version, ...] = ("1.2", "1.3")


def specification(version: Version) -> dict[str, dict[str, str]]:
    """The specification's table of columns, as its authors wrote it."""
    with SPECIFICATION.open(newline="") as file:
        return {row["column"]: row for row in csv.DictReader(file) if row["since"] <= version}


def listed(database: Database) -> Listed:
    return PriceBook(database, settings=Settings(), now=lambda: at(2026, 11, 1)).listed


async def file_of(database: Database, **wanted: Any) -> bytes:
    file = io.BytesIO()
    await write_focus(database, listed(database), structs.replace(Wanted(month="2026-10"), **wanted), file)
    return file.getvalue()


async def rows_of(database: Database, **wanted: Any) -> list[dict[str, str]]:
    file = io.BytesIO()
    count = await write_focus(database, listed(database), structs.replace(Wanted(month="2026-10"), **wanted), file)
    rows = list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))
    assert len(rows) == count
    return rows


def some_entries(seed: int) -> Iterator[dict[str, Any]]:
    """Entries of many kinds around October, each fifth of the group of the one before; fewer in an ordinary run."""
    dice = random.Random(seed)
    admitted, charged_at, group = 0.0, "", dict[str, Any]()
    for number in range(300 if wanted() else 90):
        prompt, completion = dice.randrange(1, 400_000), dice.randrange(0, 9_000)
        cached = dice.randrange(0, prompt)
        usage = Usage(
            prompt=prompt,
            cached=cached,
            cache_write=dice.randrange(0, prompt - cached),
            completion=completion,
            reasoning=dice.randrange(0, completion + 1),
        )
        if number % 5 != 4:
            admitted = at(2026, 9, 30) + dice.random() * 34 * 86_400
            charged_at = dice.choice(["plain", "odd", "tiered"])
            group = {
                "team": dice.choice(["acme", "beta"]),
                "project": dice.choice(["web", "app"]),
                "model": dice.choice(["gpt-5-mini", "=2+3"]),
                "source": dice.choice(["provider", "provider", "estimated"]),
                "tags": dice.choice([None, '["feature=faq"]']),
            }
        row = entry(number, admitted, usage, charged_at, **group)
        kind_of = dice.random()
        if kind_of < 0.1:
            row |= {"source": "upper_bound", "amount_nano": row["amount_nano"] + 12_345}
        elif kind_of < 0.2:
            row |= {"source": "adjust", "amount_nano": -dice.randrange(1, 500), "classes": None}
            row |= dict.fromkeys(("prompt", "cached", "cache_write", "completion", "reasoning"), 0)
        elif kind_of < 0.25:
            row |= {"source": "void", "amount_nano": 0}
        yield row


@pytest.mark.parametrize("version", VERSIONS)
def test_columns_are_those_of_the_specification(version: Version) -> None:
    """A consumer's table has the specification's columns; one missing or of another type cannot be loaded."""
    spec = specification(version)
    types = {"Decimal": "number", "String": "text", "JSON": "text", "Date/Time": "instant"}
    ours = [name for name in columns(version) if not name.startswith("x_")]
    assert ours == sorted(spec)
    assert {name: kind(name) for name in ours} == {name: types[row["data_type"]] for name, row in spec.items()}
    mandatory = [name for name, row in spec.items() if row["feature_level"] == "Mandatory"]
    assert len(mandatory) == (21 if version == "1.2" else 23)
    assert set(mandatory) <= set(ours)


@pytest.mark.reduced
@pytest.mark.parametrize("version", VERSIONS)
async def test_rows_obey_the_specification(database: Database, version: Version) -> None:
    """Nullability, allowed values and the rules between columns, for every kind of row there is."""
    await named(database)
    await post(database, list(some_entries(1)))
    await hits(database)
    rows = await rows_of(database, version=version)
    spec = specification(version)
    assert {row["ChargeCategory"] for row in rows} == {"Usage", "Adjustment"}
    for row in rows:
        for name, rule in spec.items():
            assert row[name] or rule["allows_nulls"] == "True", (name, row)
        usage, correction = row["ChargeCategory"] == "Usage", row["ChargeClass"] == "Correction"
        assert row["ChargeClass"] in ("", "Correction")
        assert not row["CommitmentDiscountStatus"]
        if usage and not correction:
            for name in ("PricingQuantity", "PricingUnit", "PricingCategory", "SkuId", "SkuPriceId", "ListUnitPrice"):
                assert row[name], (name, row)
            for cost, unit in (("ListCost", "ListUnitPrice"), ("ContractedCost", "ContractedUnitPrice")):
                assert Decimal(row[unit]) * Decimal(row["PricingQuantity"]) == Decimal(row[cost])
        else:
            assert not row["ConsumedQuantity"]
            assert Decimal(row["ListCost"]) == Decimal(row["BilledCost"])
        assert bool(row["ConsumedQuantity"]) == bool(row["ConsumedUnit"])
        assert bool(row["PricingQuantity"]) == bool(row["PricingUnit"])
        assert bool(row["SubAccountId"]) == bool(row["SubAccountType"])
        assert bool(row["ResourceId"]) == bool(row["ResourceType"])
        assert row["BillingPeriodStart"] == "2026-10-01T00:00:00Z"
        assert row["BillingPeriodEnd"] == "2026-11-01T00:00:00Z"
        assert row["BillingPeriodStart"] <= row["ChargePeriodStart"] < row["ChargePeriodEnd"]
        assert row["ServiceCategory"] == "AI and Machine Learning"
        for name in ("Tags", "SkuPriceDetails"):
            assert not row[name] or isinstance(msgspec.json.decode(row[name]), dict)
        if row["SkuPriceDetails"]:
            assert all(key.startswith("x_") for key in msgspec.json.decode(row["SkuPriceDetails"]))


@pytest.mark.reduced
@pytest.mark.parametrize("seed", range(3))
async def test_billed_cost_is_the_ledgers_sum_to_the_nano(database: Database, seed: int) -> None:
    """A file that finance adds up and a budget page that shows another amount are worth nothing together."""
    await post(database, list(some_entries(seed)))
    async with database.read() as connection:
        sums = "SELECT SUM(amount_nano), COUNT(CASE WHEN source <> 'adjust' THEN 1 END) FROM entry"
        wanted = f"{sums} WHERE admitted >= :a AND admitted < :b AND source <> 'void'"
        october = {"a": at(2026, 10, 1), "b": at(2026, 11, 1)}
        total, count = (await connection.execute(text(wanted), october)).one()
        told = text(wanted.replace(sums, "SELECT SUM(completion) FROM entry"))
        completion = await connection.scalar(told, october)
    for tags in (True, False):
        rows = await rows_of(database, tags=tags)
        for cost in COSTS:
            assert sum(Decimal(row[cost]) for row in rows) == Decimal(int(total)).scaleb(-9)
        assert sum(int(row["x_RequestCount"]) for row in rows) == count
        tokens = (Decimal(row["ConsumedQuantity"]) for row in rows if row["SkuMeter"] == "Output Tokens")
        assert sum(tokens) == int(completion or 0)
        key = ("ChargePeriodStart", "ResourceId", "SubAccountId", "SkuId", "SkuPriceId", "Tags", "x_CostBasis")
        groups = [tuple(row[name] for name in key) for row in rows]
        assert [group for group, times in Counter(groups).items() if times > 1] == [], "two rows of one group"


@pytest.mark.reduced
async def test_one_teams_file_is_its_part(database: Database) -> None:
    """A key that is bound to a team must not read what others spent."""
    await post(database, list(some_entries(5)))
    everyone = await rows_of(database)
    for team in ("acme", "beta"):
        assert await rows_of(database, team=team) == [row for row in everyone if row["BillingAccountId"] == team]


async def test_hits_cost_nothing_and_say_what_they_avoided(database: Database) -> None:
    """A counterfactual in ListCost would break the reconciliation with the provider's invoice."""
    await hits(database)
    (row,) = await rows_of(database)
    assert (row["ProviderName"], row["ServiceName"]) == ("nearhit", "Semantic Cache")
    assert [Decimal(row[cost]) for cost in COSTS] == [0, 0, 0, 0]
    assert (Decimal(row["x_AvoidedCost"]), row["x_RequestCount"]) == (Decimal("0.000639"), "3")
    assert row["ChargePeriodStart"] == "2026-10-20T00:00:00Z"


async def test_a_closed_months_file_is_the_same_whatever_is_pruned_and_taken_back_later(database: Database) -> None:
    """Finance imports a month once more years later; rows that are gone then would be savings that never were."""
    await hits(database)
    await named(database)
    await post(database, [entry(n, at(2026, 10, 5 + n), Usage(prompt=100, completion=9)) for n in range(3)])
    await sums.make_days(database, at(2026, 11, 2))
    opened = [await file_of(database, team=team) for team in (None, "acme", "beta")]
    await Months(database, now=lambda: at(2026, 11, 3)).close("2026-10", "ann")
    assert [await file_of(database, team=team) for team in (None, "acme", "beta")] == opened
    assert b"Semantic Cache" in opened[1]
    assert b"Semantic Cache" not in opened[2]
    await Retention(database, Kept(requests=30, hours=30, days=30), now=lambda: at(2027, 3, 1)).prune()
    with pytest.raises(Pruned):
        await Queries(database).require_kept(at(2026, 10, 1))
    assert [await file_of(database, team=team) for team in (None, "acme", "beta")] == opened


async def test_a_month_that_was_closed_without_its_hits_is_told_from_the_sums(database: Database) -> None:
    """As the version before closes, also beside this one: no hits among the facts says nothing about hits."""
    await hits(database)
    await post(database, [entry(1, at(2026, 10, 5), Usage(prompt=100, completion=9))])
    opened = await file_of(database)
    async with database.begin() as connection:
        row: dict[str, Any] = {column.name: 0 for column in MonthSeal.__table__.columns}
        row |= {"month": "2026-10", "actor": "ann", "reason": None, "facts": {"by": "user"}, "digest": "d"}
        await connection.execute(insert(MonthSeal), [row | {"previous": "0"}])
    assert await file_of(database) == opened


async def test_unit_prices_stand_in_rows_of_their_own(database: Database) -> None:
    """Long prompts cost more per token; one row for both would have no unit price."""
    usages = (Usage(prompt=200_000, completion=10), Usage(prompt=200_001, completion=10))
    await post(database, [entry(n, at(2026, 10, 5), usage, "tiered") for n, usage in enumerate(usages)])
    rows = await rows_of(database)
    prices = sorted((row["SkuMeter"], Decimal(row["ListUnitPrice"]), row["PricingQuantity"]) for row in rows)
    assert prices == [
        ("Input Tokens", Decimal("1.25"), "0.200000"),
        ("Input Tokens", Decimal("2.5"), "0.200001"),
        ("Output Tokens", Decimal(10), "0.000010"),
        ("Output Tokens", Decimal(15), "0.000010"),
    ]


async def test_a_contract_stands_beside_the_list_price(database: Database) -> None:
    """What a contract saves is the difference of two columns; at a batch rate the list's batch rate counts."""
    usage = Usage(prompt=1_000_000, cached=400_000, completion=100_000)
    charged = [(AGREED, "gpt-5-mini"), (AGREED, "ours"), (AGREED_BATCH, "gpt-6.1-terra"), (AGREED_BATCH, "gpt-5-mini")]
    for number, (price, model) in enumerate(charged):
        await post(database, [entry(number, at(2026, 10, 5), usage, price, model=model)])
    rows = await rows_of(database)
    found = {
        (row["SkuPriceId"].partition("@")[0], row["SkuId"].rpartition("/")[0], row["SkuMeter"]): tuple(
            Decimal(row[name]) for name in ("ListUnitPrice", "ListCost", "ContractedUnitPrice", "BilledCost")
        )
        for row in rows
    }
    contract, model = "set/openai/gpt-5-mini", "openai/gpt-5-mini"
    assert found[contract, model, "Input Tokens"] == tuple(map(Decimal, ("0.25", "0.15", "0.2", "0.12")))
    assert found[contract, model, "Cached Input Tokens"] == tuple(map(Decimal, ("0.025", "0.01", "0.02", "0.008")))
    assert found[contract, model, "Output Tokens"] == tuple(map(Decimal, ("2", "0.2", "1.5", "0.15")))
    assert found[contract, "openai/ours", "Output Tokens"] == tuple(map(Decimal, ("1.5", "0.15", "1.5", "0.15")))
    batch = (contract + "+batch", "openai/gpt-6.1-terra", "Output Tokens")
    assert found[batch] == tuple(map(Decimal, ("2.5", "0.25", "0.75", "0.075")))
    unlisted = (contract + "+batch", model, "Output Tokens")  # the table has no batch price of it
    assert found[unlisted] == tuple(map(Decimal, ("0.75", "0.075", "0.75", "0.075")))


@pytest.mark.reduced
async def test_parquet_holds_the_same_rows(database: Database, tmp_path: Path) -> None:
    """Types are the specification's, and no amount became a floating-point number."""
    await post(database, list(some_entries(2)))
    path = tmp_path / "focus.parquet"
    with path.open("wb") as file:
        count = await write_focus(database, listed(database), Wanted(month="2026-10", form="parquet"), file)
    table = parquet.read_table(path)
    assert table.num_rows == count
    types = {"number": "decimal128(38, 12)", "text": "string", "instant": "timestamp[ms, tz=UTC]", "count": "int64"}
    assert {f.name: str(f.type) for f in table.schema} == {name: types[kind(name)] for name in columns("1.2")}
    lines = await rows_of(database)
    for ours, theirs in zip(lines, table.to_pylist(), strict=True):
        assert Decimal(ours["BilledCost"]) == theirs["BilledCost"]
        assert (ours["SkuId"] or None) == theirs["SkuId"]
