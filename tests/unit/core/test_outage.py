"""What is said of something that is away, and how often."""

from typing import Any

from gateway.outage import Outage
from tests.clock import FrozenClock


class Log:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **told: Any) -> None:
        self.said.append((event, told))

    info = warning


def test_an_outage_is_told_when_it_begins_once_a_minute_and_when_it_is_over(clock: FrozenClock) -> None:
    """Five loops of four workers wrote twenty lines a second, and the one that said why was not found among them."""
    log = Log()
    away = Outage(log, "alerts wait", "alerts go on", monotonic=clock.now)
    away.over()
    assert log.said == []
    for _ in range(150):
        away.goes_on(OSError("refused"), channel="webhook")
        clock.advance(1.0)
    away.over()
    away.over()
    told = {"channel": "webhook", "error": "OSError('refused')"}
    assert log.said == [
        *(("alerts wait", {**told, "seconds": seconds}) for seconds in (0, 60, 120)),
        ("alerts go on", {"seconds": 150}),
    ]


def test_each_outage_is_a_new_one(clock: FrozenClock) -> None:
    """One that follows at once is told at once."""
    log = Log()
    away = Outage(log, "away", "back", monotonic=clock.now)
    for _ in range(2):
        away.goes_on(OSError())
        away.over()
    assert [event for event, _ in log.said] == ["away", "back"] * 2
