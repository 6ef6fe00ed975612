"""Alerts: queued with the spending that crosses a threshold, delivered once, tried again, with no secret in sight."""

import asyncio
import base64
import hashlib
import hmac
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiosmtpd.controller import Controller
from pydantic import ValidationError

from gateway.alert_channels import channels
from gateway.alert_notices import Notice
from gateway.alert_settings import AlertSettings
from gateway.alerts import Courier
from gateway.ledger import Ledger
from tests.clock import FrozenClock
from tests.services import spare_port
from tests.unit.ledger.rig import Rig, budget, running
from tests.waiting import until

SECRET = "whsec_" + base64.b64encode(b"a secret of twenty-four.").decode()


@pytest.fixture
async def rig(url: str, tmp_path: Path, clock: FrozenClock) -> AsyncGenerator[Rig, None]:
    async with running(tmp_path, url, clock) as made:
        yield made


class Receiver:
    """Somebody's webhook: what it was sent, and what it answers."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.got.append(({name.lower(): value for name, value in request.headers.items()}, await request.read()))
        status = self.answers.pop(0) if self.answers else 204
        return web.Response(status=status, headers={"location": f"{self.url}/elsewhere"} if status == 302 else {})

    @property
    def thresholds(self) -> list[float]:
        return [msgspec.json.decode(body)["data"]["threshold"] for _, body in self.got]


@asynccontextmanager
async def receiver() -> AsyncGenerator[Receiver, None]:
    made, app = Receiver(), web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    port = spare_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    made.url = f"http://127.0.0.1:{port}/alerts?token=very-secret-token"
    try:
        yield made
    finally:
        await runner.cleanup()


def webhook(url: str) -> dict[str, Any]:
    return {"webhook": {"url": url, "secret": SECRET}}


def courier(rig: Rig, alerts: dict[str, Any], now: Callable[[], float] | None = None) -> Courier:
    """By the clock of the last ledger, as a worker's is, unless told another."""
    known = channels(AlertSettings.model_validate(alerts), rig.clock.now)
    return Courier(rig.database, known, now=now or rig.ledgers[-1].instant, random=lambda: 0.5)


async def half_of_ten(rig: Rig, alerts: dict[str, Any], *, spent: int) -> Ledger:
    """A ledger whose budget of ten tells when half of it is gone, after so much was spent."""
    ledger = await rig.ledger(alerts=alerts)
    await ledger.set_budget(budget("org", 10, alerts=(0.5,)), "test")
    await rig.charge(ledger, spent)
    await ledger.flush()
    return ledger


async def test_each_threshold_is_delivered_once_and_signed(rig: Rig) -> None:
    """People act on these; a receiver must be able to prove that they are ours, and to tell a repeat."""
    async with receiver() as there:
        ledger = await rig.ledger(alerts=webhook(there.url))
        await ledger.set_budget(budget("team:acme", 100, alerts=(0.5, 0.8)), "test")
        for _ in range(3):
            await rig.charge(ledger, 30, most=30)
            await ledger.flush()
        sender = courier(rig, webhook(there.url))
        assert await sender.turn() == 2
        assert await sender.turn() == 0
        assert there.thresholds == [0.5, 0.8]
        headers, body = there.got[0]
        told = msgspec.json.decode(body)
        assert told["type"] == "budget.threshold"
        assert told["data"]["scope"] == "team:acme"
        assert (told["data"]["spent_usd"], told["data"]["limit_usd"]) == ("0.00000006", "0.0000001")
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        right = base64.b64encode(hmac.new(b"a secret of twenty-four.", signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{right}"
        assert len({headers["webhook-id"] for headers, _ in there.got}) == 2


async def test_several_workers_deliver_it_once(rig: Rig) -> None:
    """All of them look at the same queue."""
    async with receiver() as there:
        await half_of_ten(rig, webhook(there.url), spent=8)
        done = await asyncio.gather(*(courier(rig, webhook(there.url)).turn() for _ in range(4)))
        assert (sum(done), there.thresholds) == (1, [0.5])


async def test_a_failure_is_tried_again_later_also_after_a_restart(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A receiver that is down for an hour must still get it; nobody may learn the webhook's token from our log."""
    caplog.set_level(logging.DEBUG)
    async with receiver() as there:
        await half_of_ten(rig, webhook(there.url), spent=8)
        there.answers = [500, 302]
        assert await courier(rig, webhook(there.url)).turn() == 0
        assert await courier(rig, webhook(there.url)).turn() == 0
        assert len(there.got) == 1
        rig.clock.advance(5.1)
        assert await courier(rig, webhook(there.url)).turn() == 0
        assert len(there.got) == 2  # and nobody followed where it pointed
        (row,) = await rig.rows("SELECT * FROM alert_delivery")
        assert (row["attempts"], row["error"]) == (2, "the webhook answered 302")
        rig.clock.advance(10.1)
        assert await courier(rig, webhook(there.url)).turn() == 1
        assert len({headers["webhook-id"] for headers, _ in there.got}) == 1
        told = caplog.text + str(await rig.rows("SELECT * FROM alert_delivery"))
        assert "very-secret-token" not in told
        assert SECRET not in told


async def test_it_is_given_up_after_a_day(rig: Rig) -> None:
    """The queue must not grow for a receiver that is gone for good; that it was given up stays to be seen."""
    gone = webhook(f"http://127.0.0.1:{spare_port()}/")
    await half_of_ten(rig, gone, spent=8)
    sender, tries = courier(rig, gone), 0
    while (await rig.rows("SELECT due FROM alert_delivery"))[0]["due"] is not None:
        await sender.turn()
        tries += 1
        rig.clock.advance(5_400)
        assert tries < 30
    (row,) = await rig.rows("SELECT * FROM alert_delivery")
    assert row["delivered"] is None
    assert row["error"].startswith("the webhook could not be reached")


async def test_what_is_reached_when_a_budget_is_set_is_told_at_once(rig: Rig) -> None:
    """A limit set late, or lowered, crosses its thresholds without any new spending."""
    async with receiver() as there:
        ledger = await rig.ledger(alerts=webhook(there.url))
        await rig.charge(ledger, 6)
        await ledger.flush()
        await ledger.set_budget(budget("org", 10, alerts=(0.5, 0.8)), "test")
        await ledger.set_budget(budget("org", 7, alerts=(0.5, 0.8)), "test")
        sender = courier(rig, webhook(there.url))
        await sender.turn()
        await sender.turn()
        assert there.thresholds == [0.5, 0.8]


async def test_a_raised_limit_tells_again_what_is_reached_of_it(rig: Rig) -> None:
    """Whoever was told, raised the limit and went on was never told again in that month, up to the refusal."""
    async with receiver() as there:
        ledger = await half_of_ten(rig, webhook(there.url), spent=6)
        await ledger.set_budget(budget("org", 20, alerts=(0.5,)), "test")
        await rig.charge(ledger, 5)
        await ledger.flush()
        await ledger.set_budget(budget("org", 15, alerts=(0.5,)), "test")  # reached, and told already
        await rig.charge(ledger, 1, most=1)
        await ledger.flush()
        assert await courier(rig, webhook(there.url)).turn() == 2
        told = [msgspec.json.decode(body)["data"]["limit_usd"] for _, body in there.got]
        assert told == ["0.00000001", "0.00000002"]
        assert len({headers["webhook-id"] for headers, _ in there.got}) == 2
        (row,) = await rig.rows("SELECT * FROM budget_alert")
        assert row["spent_nano"] == 11


async def test_a_budget_in_all_has_no_window_to_tell(rig: Rig) -> None:
    """`never` stood where receivers read a time, and 1970 where the window began."""
    async with receiver() as there:
        ledger = await rig.ledger(alerts=webhook(there.url))
        await ledger.set_budget(budget("org", 10, window="total", alerts=(0.5,)), "test")
        await rig.charge(ledger, 6)
        await ledger.flush()
        assert await courier(rig, webhook(there.url)).turn() == 1
        told = msgspec.json.decode(there.got[0][1])["data"]
        assert (told["window_start"], told["window_end"]) == (None, None)


async def test_a_channel_that_hangs_or_breaks_keeps_no_other_waiting(rig: Rig) -> None:
    """A webhook that took fifteen seconds for each alert held up every e-mail; one that raised ended them for good."""
    sent, hanging = list[str](), asyncio.Event()

    class Well:
        async def send(self, notice: Notice) -> None:
            sent.append(notice.id)

    class Hung:
        async def send(self, notice: Notice) -> None:
            hanging.set()
            await asyncio.Event().wait()

    class Broken:
        async def send(self, notice: Notice) -> None:
            raise RuntimeError("very-secret-token")

    given = webhook("https://example.org/") | {"email": {"host": "mail", "sender": "a@b", "to": ["c@d"]}}
    ledger = await rig.ledger(alerts=given)
    await ledger.set_budget(budget("org", 10, alerts=(0.5, 0.6)), "test")
    await rig.charge(ledger, 8)
    await ledger.flush()
    broken = Courier(rig.database, {"webhook": Broken()}, now=rig.ledgers[-1].instant, random=lambda: 0.5)
    assert await broken.turn() == 0
    rows = await rig.rows("SELECT * FROM alert_delivery WHERE channel = 'webhook'")
    assert {row["error"] for row in rows} == {"it could not be sent: RuntimeError"}
    rig.clock.advance(60)
    both = Courier(rig.database, {"webhook": Hung(), "email": Well()}, now=rig.ledgers[-1].instant, random=lambda: 0.5)
    running_both = rig.tasks.spawn(both.run(), "alerts")
    await until(lambda: hanging.is_set() and len(sent) == 2)
    running_both.cancel()
    with suppress(asyncio.CancelledError):
        await running_both


async def test_a_webhook_that_hangs_is_said_to_hang(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told that it could not be reached, people looked at their network, and it was their receiver that stood."""
    monkeypatch.setattr("gateway.alert_webhook.PATIENCE", 0.2)
    heard, done = asyncio.Event(), asyncio.Event()

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set()
        await done.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", port := spare_port())
    given = webhook(f"http://127.0.0.1:{port}/")
    await half_of_ten(rig, given, spent=6)
    assert await courier(rig, given).turn() == 0
    (row,) = await rig.rows("SELECT * FROM alert_delivery")
    assert heard.is_set()
    assert row["error"] == "the webhook did not answer within 0.2 s"
    done.set()
    server.close()


async def test_windows_that_a_budget_had_before_tell_nobody(rig: Rig) -> None:
    """From a day in one zone to a month in another: what is spent then is a part of three windows, and one limit."""
    async with receiver() as there:
        ledger = await rig.ledger(alerts=webhook(there.url))
        for kind, zone in (("day", "UTC"), ("day", "Asia/Kolkata"), ("month", "UTC")):
            await ledger.set_budget(budget("org", 100, window=kind, timezone=zone, alerts=(0.05,)), "test")
            await rig.charge(ledger, 1)
        await rig.charge(ledger, 4)
        await ledger.flush()
        sender = courier(rig, webhook(there.url))
        for _ in range(4):
            await sender.turn()
        told = [msgspec.json.decode(body)["data"] for _, body in there.got]
        assert [(one["window"], one["threshold"], one["spent_usd"]) for one in told] == [("month", 0.05, "0.000000007")]


class Mailbox:
    """An SMTP server's inbox."""

    def __init__(self) -> None:
        self.letters: list[tuple[list[str], bytes]] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        self.letters.append((envelope.rcpt_tos, envelope.content))
        return "250 OK"


async def test_an_email_reaches_everybody(tmp_path: Path, clock: FrozenClock) -> None:
    """The people who pay read mail, not logs."""
    box, port = Mailbox(), spare_port()
    server = Controller(box, hostname="127.0.0.1", port=port)
    server.start()
    mail = {"host": "127.0.0.1", "port": port, "security": "none", "sender": "nearhit@example.org"}
    alerts = {"email": {**mail, "to": ["ann@example.org", "bob@example.org"]}}
    try:
        async with running(tmp_path, None, clock) as rig:
            ledger = await rig.ledger(alerts=alerts)
            await ledger.set_budget(budget("tag:app=bücher", 10, alerts=(0.5,)), "test")
            await ledger.set_budget(budget("team:acme", 10, alerts=(0.5,)), "test")
            await rig.charge(ledger, 10)
            await ledger.flush()
            assert await courier(rig, alerts).turn() == 1
    finally:
        server.stop()
    ((to, raw),) = box.letters
    assert to == ["ann@example.org", "bob@example.org"]
    letter = message_from_bytes(raw, policy=policy.default)
    assert letter["subject"] == "Budget team:acme: 50 % of 0.00000001 USD per month is spent"
    assert "refused" in letter.get_content()


async def test_a_mail_server_that_is_away_is_no_disaster(tmp_path: Path, clock: FrozenClock) -> None:
    """It is tried again like any other channel, and says nothing of the password."""
    mail = {"host": "127.0.0.1", "port": spare_port(), "security": "none", "sender": "a@example.org"}
    alerts = {"email": {**mail, "to": ["b@example.org"], "username": "ann", "password": "very-secret"}}
    async with running(tmp_path, None, clock) as rig:
        ledger = await rig.ledger(alerts=alerts)
        await ledger.set_budget(budget("org", 10, alerts=(0.5,)), "test")
        await rig.charge(ledger, 8)
        await ledger.flush()
        assert await courier(rig, alerts).turn() == 0
        (row,) = await rig.rows("SELECT * FROM alert_delivery")
        assert row["due"] is not None
        assert "very-secret" not in str(row)


WRONG: list[dict[str, Any]] = [
    {"webhook": {"url": "ftp://example.org/", "secret": SECRET}},
    {"webhook": {"url": "http://example.org/", "secret": SECRET}},
    {"webhook": {"url": "https://example.org/", "secret": "short"}},
    {"webhook": {"url": "https://example.org/", "secret": "whsec_this-is-no-base64"}},
    {"webhook": {"url": "https://example.org/", "secret": "whsec_c2hvcnQxMjM="}},
    {"webhook": {"url": "https:///nowhere", "secret": SECRET}},
    {"email": {"host": "mail", "sender": "a@b", "to": []}},
    {"email": {"host": "mail", "sender": "a@b", "to": ["c@d\r\nBcc: x@y"]}},
    {"email": {"host": "mail", "sender": "a@b", "to": ["Fin, Anz <c@d>"]}},
    {"email": {"host": "mail", "sender": "   ", "to": ["c@d"]}},
    {"email": {"host": "mail", "sender": "a@b", "to": ["c@d"], "username": "u"}},
    {"email": {"host": "mail", "sender": "a@b", "to": ["c@d"], "username": "u", "password": "p", "security": "none"}},
]


@pytest.mark.parametrize("given", WRONG)
def test_settings_that_would_leak_or_go_nowhere_are_refused(given: dict[str, Any]) -> None:
    """A start that fails with a sentence is better than an alert that never arrives or a secret sent in the clear."""
    with pytest.raises(ValidationError):
        AlertSettings.model_validate(given)
