"""Requests as schemathesis draws them, one after the other, and what was wrong with the answers, in words.

Knows: that a gateway remembers. A fault is noted, not raised: hypothesis would ask the same again to make it smaller,
and what is kept behind the address has changed by then, so that it may well be answered otherwise.
"""

import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as chosen
from schemathesis.core.failures import FailureGroup

_SLOW: Any = list(HealthCheck)  # of drawn data: it is large
_LONGEST = 1_200  # characters of a fault
_PATIENCE = 60.0  # seconds
_SAME = 60  # what begins so is told once


def drawn(operation: Any, most: int, ask: Callable[[Any], str | None]) -> list[str]:
    """Up to `most` requests of an operation. `ask`: makes one, and says what is wrong with its answer."""
    faults: dict[str, str] = {}

    @chosen(
        max_examples=most,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=_SLOW,
    )
    @given(case=operation.as_strategy())
    def one(case: Any) -> None:
        if (fault := ask(case)) is not None:
            sent = {"path": case.path_parameters, "query": case.query, "body": case.body}
            faults.setdefault(fault[:_SAME], f"{operation.label}: {fault}\n    sent {sent}"[:_LONGEST])

    one()
    return list(faults.values())


def answered(case: Any, address: str, headers: dict[str, str], session: Any) -> Any:
    """The answer; asked again while a busy machine's database makes nearhit say when to come back."""
    until = time.monotonic() + _PATIENCE
    while True:
        answer = case.call(base_url=address, session=session, headers=headers, timeout=120)
        if answer.status_code != 503 or "retry-after" not in answer.headers or time.monotonic() > until:
            return answer
        time.sleep(0.5)


def checked(case: Any, answer: Any, checks: list[Any]) -> str | None:
    """What schemathesis has against an answer."""
    try:
        case.validate_response(answer, checks=checks)
    except (FailureGroup, AssertionError) as fault:
        return "; ".join(str(part) for part in (fault.exceptions if isinstance(fault, FailureGroup) else [fault]))
    return None
