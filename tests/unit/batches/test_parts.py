"""What a provider's batch service tells of lines, as it is kept: odd services tell one twice."""

from collections.abc import Generator

import pytest
from sqlalchemy import create_engine, insert, select
from sqlalchemy.engine import Connection

from gateway.batches import parts
from gateway.batches.endings import unrun
from gateway.batches.parts import Answer, Part
from gateway.call import Given
from gateway.db.models import BatchLine
from gateway.db.models.base import Base

PART = Part(id="p", batch_id="b", provider="lab", model="m", state="away", remote="r", boot="x")
GIVEN = Given(provider="lab", model="m", status=200, raw=b"{}")


@pytest.fixture
def connection() -> Generator[Connection]:
    engine = create_engine("sqlite://")
    with engine.begin() as made:
        Base.metadata.create_all(made, tables=[BatchLine.__table__])  # type: ignore[list-item]
        for number in (0, 1):
            row = {"batch_id": "b", "number": number, "custom_id": f"q{number}", "state": "away", "part": "p"}
            made.execute(insert(BatchLine).values(row))
        yield made
    engine.dispose()


def states(connection: Connection) -> list[tuple[str, bool]]:
    wanted = select(BatchLine.state, BatchLine.answer).order_by(BatchLine.number)
    return [(row.state, row.answer is not None) for row in connection.execute(wanted)]


def test_an_answer_is_not_taken_back_by_a_second_line_about_it(connection: Connection) -> None:
    """The provider bills it: as a line that was never run it would be charged to nobody, or be told as failed."""
    parts.returned(connection, PART, [Answer(0, GIVEN)], [unrun(0, "q0", "expired"), unrun(1, "q1", "expired")])
    assert states(connection) == [("waiting", True), ("failed", False)]
    parts.returned(connection, PART, [Answer(1, GIVEN)], [unrun(0, "q0", "expired")])
    assert states(connection) == [("waiting", True), ("failed", False)]
