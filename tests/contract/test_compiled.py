"""Statements are put together once per process and kind of database, on both databases."""

from typing import Any

from sqlalchemy import Integer, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from gateway.db.session import Database

COMPILED: list[str] = []


class Counted(FunctionElement[int]):
    """The number one, told whenever it is made SQL of."""

    inherit_cache = True
    name = "counted"
    type = Integer()


@compiles(Counted)
def _counted(_element: Counted, compiler: Any, **_: Any) -> str:
    COMPILED.append(compiler.dialect.driver)
    return "1"


async def test_a_statement_is_compiled_once_for_all_engines_of_a_kind(url: str) -> None:
    """A page's statement takes longer to compile than to answer, and a database has up to six engines."""
    asked = select(Counted())
    COMPILED.clear()
    for _ in range(2):
        database = Database(url)
        await database.start()
        async with database.begin() as writing, database.read() as reading:
            assert await writing.scalar(asked) == await reading.scalar(asked) == 1
        assert await database.transact(lambda connection: connection.scalar(asked)) == 1
        assert await database.examine(5.0, lambda connection: connection.scalar(asked)) == 1
        await database.close()
    assert sorted(COMPILED) == sorted(set(COMPILED)), "the same driver compiled it again"
