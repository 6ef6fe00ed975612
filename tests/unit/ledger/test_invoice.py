"""Providers' files are read as they come, and compared with entries by model and day."""

from collections.abc import AsyncGenerator
from decimal import Decimal
from pathlib import Path

import pytest

from gateway.db.session import Database
from gateway.invoice_files import Columns, Shape, aliases, read
from gateway.ledger.invoice import compare_invoice
from policies.money import Usage
from tests.unit.exports.books import at, entry, fresh, post

DAY = int(at(2026, 10, 15)) // 86_400
USAGE = Usage(prompt=1_000, cached=100, completion=300)  # 322,500 nano-USD at the price `plain`

OPENAI_CSV = """start_time,end_time,start_time_iso,end_time_iso,amount_value,amount_currency,quantity,line_item
1792022400,1792108800,2026-10-15T00:00:00,2026-10-16T00:00:00,0.000200000000000000000000000000,usd,,"gpt-5-mini, input"
1792022400,1792108800,2026-10-15T00:00:00,2026-10-16T00:00:00,0.0001225,usd,,"gpt-5-mini, output"
1792108800,1792195200,2026-10-16T00:00:00,2026-10-17T00:00:00,,,,
"""
OPENAI_JSON = """{"object": "page", "data": [{"object": "bucket", "start_time": 1792022400, "end_time": 1792108800,
"results": [{"object": "organization.costs.result", "amount": {"value": 0.0003225, "currency": "usd"},
"line_item": "gpt-5-mini, input", "project_id": null}]}], "has_more": false, "next_page": null}"""
ANTHROPIC_COSTS = """usage_date_utc,model,workspace,api_key,usage_type,context_window,token_type,cost_usd,list_price_usd
2026-10-15,GPT 5 mini,Default,k,message,≤ 200k,input_no_cache,0.0002,0.0002
2026-10-15,GPT 5 mini,Default,k,message,≤ 200k,output,0.0001225,0.0001225
"""
ANTHROPIC_USAGE = (
    "usage_date_utc,model_version,api_key,workspace,usage_type,context_window,usage_input_tokens_no_cache,"
    "usage_input_tokens_cache_write_5m,usage_input_tokens_cache_write_1h,usage_input_tokens_cache_read,"
    "usage_output_tokens,web_search_count\n"
    "2026-10-15,gpt-5-mini-20251001,k,Default,standard,0-200k,900,0,0,100,300,0\n"
)
GENERIC = "Datum,Modelo,Betrag\n2026-10-15,mini,$0.0003225\n"


@pytest.fixture
async def database(tmp_path: Path) -> AsyncGenerator[Database, None]:
    async with fresh(tmp_path, None) as made:
        yield made


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ("openai", OPENAI_CSV),
        ("openai", OPENAI_JSON),
        ("openai", f"[{OPENAI_JSON}]"),
        ("openai", "\ufeff" + OPENAI_JSON),
        ("anthropic", ANTHROPIC_COSTS),
        ("anthropic", ANTHROPIC_USAGE),
        ("generic", GENERIC),
        ("generic", "\ufeff" + GENERIC),
    ],
)
async def test_every_file_tells_the_same_day(database: Database, shape: Shape, text: str) -> None:
    """Whatever a provider hands out, the comparison is of the same entries."""
    await post(database, [entry(1, DAY * 86_400 + 5, USAGE), entry(2, DAY * 86_400, USAGE, provider="other")])
    lines = read(text.encode(), shape, Columns("Datum", "Modelo", "Betrag"))
    found = await compare_invoice(database, "openai", lines, {"mini": "gpt-5-mini"}, 0.0)
    assert [(row.day, row.model, row.ledger_nano, row.invoice_nano, row.why) for row in found.rows] == [
        (DAY, "gpt-5-mini", 322_500, 322_500, "agrees")
    ]
    assert found.agrees


async def test_what_has_no_line_item_and_cost_nothing_is_no_mistake(database: Database) -> None:
    """Our own costs hold refused requests so, and the file was refused for them as if it were not grouped."""
    await post(database, [entry(1, DAY * 86_400 + 5, USAGE)])
    free = '"results": [{"amount": {"value": 0.0, "currency": "usd"}, "line_item": null}, '
    lines = read(OPENAI_JSON.replace('"results": [', free).encode(), "openai")
    assert (await compare_invoice(database, "openai", lines, {}, 0.0)).agrees
    ungrouped = OPENAI_JSON.replace('"gpt-5-mini, input"', "null")
    with pytest.raises(ValueError, match="group_by=line_item"):
        list(read(ungrouped.encode(), "openai"))


@pytest.mark.parametrize(
    "text",
    [
        OPENAI_CSV,  # its last line is a day without an amount
        OPENAI_JSON.replace('"data": [', '"data": [{"start_time": 1792108800, "results": []}, '),
    ],
)
async def test_a_day_of_which_the_file_says_that_nothing_was_billed_is_compared(database: Database, text: str) -> None:
    """What the ledger has charged on such a day is a difference; it was left out."""
    await post(database, [entry(1, DAY * 86_400, USAGE), entry(2, (DAY + 1) * 86_400, USAGE)])
    found = await compare_invoice(database, "openai", read(text.encode(), "openai"), {}, 0.0)
    assert (found.first, found.last) == (DAY, DAY + 1)
    assert [(row.day, row.why) for row in found.rows] == [(DAY, "agrees"), (DAY + 1, "unexplained")]


async def test_usage_of_an_unknown_model_is_told(database: Database) -> None:
    """Tokens without a price are no zero."""
    lines = read(ANTHROPIC_USAGE.encode(), "anthropic")
    found = await compare_invoice(database, "openai", lines, {}, 0.0)
    assert (found.agrees, found.unpriced) == (False, [f"gpt-5-mini on day {DAY}"])


async def test_late_and_corrected_entries_count_on_their_day(database: Database) -> None:
    """A provider bills the day of the call, wherever our books have put the entry."""
    rows = [entry(1, DAY * 86_400, USAGE), entry(2, DAY * 86_400, USAGE, id="r000001.1#adj.1", source="adjust")]
    rows[1] |= dict.fromkeys(("prompt", "cached", "completion"), 0) | {"amount_nano": -322_500}
    await post(database, rows)
    found = await compare_invoice(database, "openai", read(OPENAI_CSV.encode(), "openai"), {}, 0.0)
    assert [row.ledger_nano for row in found.rows] == [0]


WRONG = [
    ("openai", "a,b\n1,2\n", "no column amount_value"),
    ("openai", '{"data": 1}', "not the JSON"),
    ("openai", OPENAI_CSV.replace("usd", "eur"), "only USD"),
    ("openai", OPENAI_CSV.replace("0.0001225", "NaN"), "line 3: 'NaN' is no amount"),
    ("openai", OPENAI_CSV.replace("0.0001225", "1e99"), "line 3: '1e99' is no amount"),
    ("anthropic", "usage_date_utc,model\n", "no column"),
    ("anthropic", ANTHROPIC_USAGE.replace(",900,", ",-9,"), "no count of tokens"),
    ("generic", "Datum,Modelo,Betrag\nheute,m,1\n", "line 2: 'heute' is no date"),
    ("generic", "Datum,Modelo,Betrag\n2026-10-15,m\n", "line 2: '' is no amount"),
    ("generic", 'Datum,Modelo,Betrag\n2026-10-15,m,"1,50"\n', "line 2: '1,50' is no amount: a decimal point is needed"),
    ("generic", "Datum,Modelo,Betrag\n", "no line with a cost"),
    ("generic", "Datum,Modelo,Betrag\n2020-01-01,m,1\n2026-10-15,m,1\n", "more than 400 days"),
    ("generic", "", "the file is empty"),
    ("generic", 'Datum,Modelo,Betrag\n2026-10-15,m,"0,123"\n', "a decimal point is needed"),
    ("generic", "Datum,Modelo,Betrag\n2026-10-15,m,1_000\n", "is no amount"),
    ("generic", "Datum,Modelo,Betrag\n2026-10-15,m,1e999999\n", "is no amount"),
    ("generic", "Datum,Modelo,Betrag\n999999999999,m,1\n", "no date of an invoice"),
    ("generic", "Datum,Modelo,Betrag\n0001-01-01T00:00:00+14:00,m,1\n", "no date of an invoice"),
    ("generic", "Datum;Modelo;Betrag\n2026-10-15;m;1,5\n", "parted by semicolons"),
    ("generic", "Datum,Modelo,Betrag,Betrag\n2026-10-15,m,1,2\n", "two columns are called 'Betrag'"),
    ("generic", "Datum,Modelo,Betrag,Currency\n2026-10-15,m,1,EUR\n", "amounts in 'EUR'"),
    ("generic", f"Datum,{'x' * 1_200_000},Betrag\n", "is no CSV"),
    ("generic", 'Datum,Modelo,Betrag,Note\n\n2026-10-15,m,1,"two\nlines"\n2026-10-15,m,?,\n', "line 5"),
    ("openai", OPENAI_JSON.replace("0.0003225", "1e999999"), "is no amount"),
    ("openai", OPENAI_JSON.replace('"gpt-5-mini, input"', "null"), "grouped by line item"),
    ("openai", "start_time,amount_value\n1792022400,0.5\n", "grouped by line item"),
    ("openai", OPENAI_JSON.replace("false", "true"), "pages after it are missing"),
]


@pytest.mark.parametrize(("shape", "text", "told"), WRONG)
async def test_a_file_that_is_none_is_refused_with_its_line(
    database: Database, shape: Shape, text: str, told: str
) -> None:
    """A line that is skipped in silence is a difference that nobody sees."""
    lines = read(text.encode(), shape, Columns("Datum", "Modelo", "Betrag"))
    with pytest.raises(ValueError, match=told):
        await compare_invoice(database, "openai", lines, {}, 0.0)


def test_text_that_is_no_text_is_refused() -> None:
    """A spreadsheet's own format is the usual mistake."""
    with pytest.raises(ValueError, match="not UTF-8"):
        list(read(b"PK\x03\x04\xff\xfe", "generic", Columns("a", "b", "c")))


def test_fractions_of_a_nano_usd_add_up() -> None:
    """Invoices have more digits than the ledger; they are rounded once, at the end."""
    text = "d,m,a\n" + "2026-10-15,m,0.0000000004\n" * 5
    assert sum((line.amount or Decimal(0)) for line in read(text.encode(), "generic", Columns("d", "m", "a"))) == 2


def test_aliases_are_pairs() -> None:
    """A misspelt pair would compare a model with nothing."""
    assert aliases(["a=b", "c = d"]) == {"a": "b", "c": "d"}
    with pytest.raises(ValueError, match="name on the invoice=name in the ledger"):
        aliases(["a"])


def test_commas_between_thousands_are_read() -> None:
    """As spreadsheets write large amounts; where the comma is a decimal one, nothing is guessed."""
    lines = read(b'day,model,amount\n2026-10-15,m,"$1,234,567.5"\n', "generic", Columns("day", "model", "amount"))
    assert [line.amount for line in lines] == [1_234_567_500_000_000]


def test_credits_and_days_without_hyphens_are_read() -> None:
    """Both are ordinary in exports of spreadsheets; as seconds the day would be one of 1970."""
    lines = list(read(b"day,model,amount\n20261015,m,-$5\n", "generic", Columns("day", "model", "amount")))
    assert [(line.day, line.amount) for line in lines] == [(DAY, -5 * 10**9)]
