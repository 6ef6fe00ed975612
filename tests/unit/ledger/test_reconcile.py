"""The ledger against a bill: every billed call is there, exact where it says so, never below where it does not."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.ledger import Hold, Ledger
from policies.money import Usage
from tests.clock import FrozenClock
from tests.unit.ledger.rig import Rig, call, plan, running, settled


@pytest.fixture
async def rig(tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[Rig, None]:
    async with running(tmp_path, clock=clock) as made:
        yield made


def bill(rig: Rig, *lines: dict[str, Any]) -> Path:
    path = rig.home / "bill.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return path


def billed(hold: Hold | str, completion: int, **more: Any) -> dict[str, Any]:
    attempt = hold if isinstance(hold, str) else hold.plan.id
    return {
        "id": f"call-{attempt}",
        "model": "gpt",
        "prompt_tokens": 1,
        "completion_tokens": completion,
        "ended": "complete",
        "attempt": attempt,
    } | more


async def held(ledger: Ledger) -> Hold:
    asked = call()
    return await ledger.hold(asked, plan(asked))


async def test_a_ledger_that_agrees(rig: Rig) -> None:
    """Exact entries match to the nano-USD; estimates above the bill are told as such and are no problem."""
    ledger = await rig.ledger()
    exact = await rig.charge(ledger, 5)
    guessed = await held(ledger)
    ledger.settle(guessed, settled(1, source="upper_bound", ended="cut"))
    unbilled = await held(ledger)
    ledger.settle(unbilled, settled(1, source="upper_bound", ended="failed"))
    refused = await held(ledger)
    ledger.void(refused, "refused")
    await ledger.flush()
    found = await ledger.reconcile(bill(rig, billed(exact, 4), billed(guessed, 6), billed(refused, 0, prompt_tokens=0)))
    assert found.agrees
    assert (found.calls, found.exact, found.estimated) == (3, 1, 3)
    assert (found.billed_nano, found.posted_nano, found.over_nano) == (12, 25, 13)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("missing", "not in the ledger"),
        ("unnamed", "not in the ledger"),
        ("different", "posted 0.000000005 USD, billed 0.000000006 USD"),
        ("below", "below the bill"),
        ("twice", "twice"),
        ("unbilled", "not on the bill"),
        ("void", "below the bill"),
    ],
)
async def test_every_difference_without_a_label_is_told(rig: Rig, case: str, words: str) -> None:
    """Each way in which a ledger can be wrong is a sentence, and only the right one."""
    ledger = await rig.ledger()
    exact = await rig.charge(ledger, 5)
    lines = [billed(exact, 4)]
    if case == "missing":
        lines.append(billed("other.1", 4))
    elif case == "unnamed":
        lines.append(billed("", 4))
    elif case == "different":
        lines = [billed(exact, 5)]
    elif case == "below":
        guessed = await held(ledger)
        ledger.settle(guessed, settled(2, source="estimated"))
        lines.append(billed(guessed, 5))
    elif case == "twice":
        lines.append(billed(exact, 4))
    elif case == "unbilled":
        await rig.charge(ledger, 6)
    elif case == "void":
        refused = await held(ledger)
        ledger.void(refused, "refused")
        lines.append(billed(refused, 3))
    await ledger.flush()
    found = await ledger.reconcile(bill(rig, *lines))
    assert not found.agrees
    assert len(found.problems) == 1
    assert words in found.problems[0]


async def test_parts_of_the_prompt_priced_apart_do_not_differ(rig: Rig) -> None:
    """A bill that does not tell cached tokens apart still matches an entry that does."""
    ledger = await rig.ledger()
    hold = await held(ledger)
    from gateway.ledger import Settlement

    usage = Usage(prompt=1, cached=1, completion=4)
    ledger.settle(hold, Settlement(usage=usage, source="provider", ended="complete"))
    await ledger.flush()
    assert (await ledger.reconcile(bill(rig, billed(hold, 4)))).agrees


async def test_a_file_that_is_no_bill_is_refused(rig: Rig) -> None:
    """A wrong file must not pass for a bill of nothing."""
    ledger = await rig.ledger()
    path = rig.home / "x"
    path.write_text('{"id": "a"}\n')
    with pytest.raises(ValueError, match="x, line 1"):
        await ledger.reconcile(path)
    with pytest.raises(OSError, match="nowhere"):
        await ledger.reconcile(rig.home / "nowhere")


async def test_many_pages_of_bill(rig: Rig) -> None:
    """A month's bill is longer than one statement's parameters."""
    ledger = await rig.ledger(ledger={"durability": "off"})
    holds = [await rig.charge(ledger, 5) for _ in range(1_100)]
    await ledger.flush()
    found = await ledger.reconcile(bill(rig, *(billed(hold, 4) for hold in holds)))
    assert found.agrees
    assert found.exact == 1_100
