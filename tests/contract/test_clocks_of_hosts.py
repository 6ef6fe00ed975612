"""Hosts whose clocks are wrong: who is gone is a matter of the database's time, which all of them share."""

import time

import pytest

from gateway.db.session import Database
from gateway.ledger.balances import Windows
from gateway.ledger.book import Book, BootClosed
from tests.empty_database import fresh_postgres

AHEAD = 1_000.0  # seconds, many times as long as a process may be silent


@pytest.mark.parametrize(("opens", "looks"), [(0.0, AHEAD), (-AHEAD, 0.0)])
async def test_no_clock_of_a_host_takes_a_living_process_for_gone(
    postgres_url: str, opens: float, looks: float
) -> None:
    """What it had leased would be leased to others while it spends it; one that keeps no journal is asked nothing."""
    database = Database(await fresh_postgres(postgres_url))
    await database.start()
    book = Book(database, Windows(database.dialect))
    await book.open_boot("living", "one host", time.time() + opens, journalled=False)
    await book.close_silent(time.time() + looks)
    await book.beat("living", time.time() + opens)
    await book.close_silent(time.time() + looks)
    await book.beat("living", time.time() + opens)
    await database.close()


async def test_a_process_without_a_journal_that_is_silent_is_closed(postgres_url: str) -> None:
    """Nobody will ever learn what it had in flight, so what it held goes back."""
    database = Database(await fresh_postgres(postgres_url))
    await database.start()
    book = Book(database, Windows(database.dialect))
    await book.open_boot("gone", "one host", time.time(), journalled=False)
    async with database.begin() as connection:
        await connection.exec_driver_sql("UPDATE boot SET seen = seen - 91")
    await book.close_silent(time.time())
    with pytest.raises(BootClosed):
        await book.beat("gone", time.time())
    await database.close()
