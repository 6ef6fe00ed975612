"""Alerts by mail at servers as they are: with TLS, with refusals, slow, and away in the middle."""

import asyncio
import ssl
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from sqlalchemy.exc import OperationalError

from gateway.alert_channels import NotSent
from gateway.alert_email import Email
from gateway.alert_notices import HitsWrong, Notice
from gateway.alert_settings import EmailSettings
from gateway.alerts import Courier
from tests.clock import FrozenClock
from tests.contract.test_alerts import half_of_ten
from tests.services import spare_port
from tests.unit.ledger.rig import running

NOTICE = HitsWrong(
    id="one",
    team="Müller & Söhne\r\nBcc: eve@example.org",
    project="p",
    model="m",
    over=False,
    rate=0.1,
    low=0.08,
    high=0.12,
    allowed=0.05,
    created=1_795_824_000.0,
)


class Box:
    """An inbox that refuses some addresses."""

    def __init__(self, **refused: str) -> None:
        self.letters: list[tuple[list[str], bytes]] = []
        self._refused = refused

    async def handle_RCPT(self, *told: Any) -> str:  # noqa: N802 - aiosmtpd's name
        *_, envelope, address, _options = told
        if (answer := self._refused.get(address.partition("@")[0])) is not None:
            return answer
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's name
        self.letters.append((envelope.rcpt_tos, envelope.content))
        return "250 OK"


@contextmanager
def served(box: Box, **options: Any) -> Generator[int, None, None]:
    server = Controller(box, hostname="127.0.0.1", port=spare_port(), **options)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


def email(port: int, *to: str, **more: Any) -> Email:
    sender = "Nähe <nearhit@example.org>"
    given = {"host": "127.0.0.1", "port": port, "security": "none", "sender": sender, "to": to or ("ann@example.org",)}
    return Email(EmailSettings.model_validate(given | more))


async def test_a_letter_is_whole_and_nobodys_name_adds_a_header_to_it() -> None:
    """Filters count against a letter that has no date, and a team's name must not choose who reads it."""
    box = Box()
    with served(box) as port:
        assert await email(port, '"Fin, Anz" <ann@example.org>', "bob@example.org").send(NOTICE) is None
    ((to, raw),) = box.letters
    letter = message_from_bytes(raw, policy=policy.default)
    assert to == ["ann@example.org", "bob@example.org"]
    assert (letter["bcc"], letter["auto-submitted"]) == (None, "auto-generated")
    assert letter["date"].datetime.timestamp() == NOTICE.created
    assert "Müller & Söhne??Bcc: eve@example.org" in letter["subject"]
    assert letter["from"].addresses[0].display_name == "Nähe"


async def test_who_was_refused_is_told_where_others_were_not() -> None:
    """It counted as delivered to all, and whoever pays may have been the one address with a mistake in it."""
    box = Box(bob="550 no such user", eve="450 later")
    with served(box) as port:
        told = await email(port, "ann@example.org", "bob@example.org", "eve@example.org").send(NOTICE)
        with pytest.raises(NotSent, match="answered 450, 550 for every address"):
            await email(port, "bob@example.org", "eve@example.org").send(NOTICE)
    assert told == "the mail server answered 550 for bob@example.org, 450 for eve@example.org"
    assert [to for to, _ in box.letters] == [["ann@example.org"]]


async def test_what_a_server_lacks_is_named() -> None:
    """People looked at their network ("could not be reached: SMTPException"), and a word of the settings was wrong."""
    with served(Box()) as port:
        with pytest.raises(NotSent, match=r"^the mail server does not offer STARTTLS$"):
            await email(port, security="starttls").send(NOTICE)
        with pytest.raises(NotSent, match=r"^the mail server does not offer signing in \(AUTH\)$"):
            await email(port, username="ann", password="very-secret").send(NOTICE)


async def test_starttls_and_signing_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The usual way to a company's server; one whose certificate nobody vouches for gets no password."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate)]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    tried: list[bytes] = []

    def known(server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        tried.append(data.password)
        return AuthResult(success=data.password == "geheim, schön".encode(), handled=False)

    box = Box()
    options = {"tls_context": context, "authenticator": known, "auth_required": True, "auth_require_tls": True}
    right = {"security": "starttls", "username": "ann", "password": "geheim, schön"}
    with served(box, **options) as port:
        with pytest.raises(NotSent, match="SSLCertVerificationError"):
            await email(port, **right).send(NOTICE)
        assert not tried
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert await email(port, **right).send(NOTICE) is None
        with pytest.raises(NotSent, match=r"^the mail server answered 535$"):
            await email(port, **right | {"password": "wrong"}).send(NOTICE)
    assert len(box.letters) == 1


@asynccontextmanager
async def scripted(*, taking: Callable[[], Awaitable[object]], parting: bytes | None) -> AsyncGenerator[int, None]:
    """A server that awaits `taking` before it says that it has the letter, and answers QUIT with `parting` or never."""

    talks: set[asyncio.Task[Any]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            talks.add(task)
        try:
            await _smtp(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _smtp(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 here\r\n")
        while line := await reader.readline():
            if line.startswith(b"QUIT"):
                if parting is not None:
                    writer.write(parting)
                    return
                continue
            writer.write(b"354 go on\r\n" if line.startswith(b"DATA") else b"250 well\r\n")
            if line.startswith(b"DATA"):
                await reader.readuntil(b"\r\n.\r\n")
                await taking()
                with suppress(ConnectionError):
                    writer.write(b"250 taken\r\n")

    server = await asyncio.start_server(talk, "127.0.0.1", port := spare_port())
    try:
        yield port
    finally:
        server.close()
        for one in talks:  # who still waits would be collected with its socket open, in the middle of another test
            one.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def test_a_server_that_looks_through_the_letter_first_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given up after its 15 s it took the letter all the same, and got it again at every try of that day."""
    monkeypatch.setattr("gateway.alert_email.PATIENCE", 0.2)
    async with scripted(taking=lambda: asyncio.sleep(0.6), parting=b"221 bye\r\n") as port:
        assert await email(port).send(NOTICE) is None


async def test_a_server_that_is_slow_at_every_step_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer in time, and all of them longer than a letter is this worker's: another one sent it as well."""
    monkeypatch.setattr("gateway.alert_email.LONGEST", 0.2)
    async with scripted(taking=asyncio.Event().wait, parting=None) as port:
        with pytest.raises(NotSent, match=r"^the mail server did not answer in time$"):
            await email(port).send(NOTICE)


async def test_a_farewell_that_is_not_answered_undoes_nothing() -> None:
    """The letter has been taken."""
    async with scripted(taking=lambda: asyncio.sleep(0), parting=None) as port:
        assert await email(port).send(NOTICE) is None
    async with scripted(taking=lambda: asyncio.sleep(0), parting=b"") as port:
        assert await email(port).send(NOTICE) is None


async def test_a_letter_that_could_not_be_noted_is_not_sent_again(
    tmp_path: Path, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that went away while a letter was sent had it sent a second time when it was back."""
    sent: list[str] = []

    class Well:
        async def send(self, notice: Notice) -> str | None:
            sent.append(notice.id)
            monkeypatch.setattr(rig.database, "begin", gone)
            return "the mail server answered 550 for bob@example.org"

    def gone() -> Any:
        raise OperationalError("UPDATE", {}, Exception("away"))

    given = {"email": {"host": "mail", "sender": "a@b", "to": ["c@d"]}}
    async with running(tmp_path, None, clock) as rig:
        ledger = await half_of_ten(rig, given, spent=8)
        courier = Courier(rig.database, {"email": Well()}, now=ledger.instant, random=lambda: 0.5)
        for _ in range(2):
            with pytest.raises(OperationalError):
                await courier.turn()
        clock.advance(3_600)
        monkeypatch.undo()
        await courier.turn()
        (row,) = await rig.rows("SELECT * FROM alert_delivery")
    assert len(sent) == 1
    assert (row["due"], row["error"]) == (None, "the mail server answered 550 for bob@example.org")
    assert row["delivered"] is not None


async def test_what_is_being_sent_at_a_stop_is_noted(tmp_path: Path, clock: FrozenClock) -> None:
    """The database was closed under it, and the next start sent the letter once more."""
    sending, taken = asyncio.Event(), asyncio.Event()

    class Slow:
        async def send(self, notice: Notice) -> str | None:
            sending.set()
            await taken.wait()

    given = {"email": {"host": "mail", "sender": "a@b", "to": ["c@d"]}}
    async with running(tmp_path, None, clock) as rig:
        ledger = await half_of_ten(rig, given, spent=8)
        courier = Courier(rig.database, {"email": Slow()}, now=ledger.instant, random=lambda: 0.5)
        rig.tasks.spawn(courier.run(), "alerts")
        await sending.wait()
        courier.stop()
        waiting = rig.tasks.spawn(courier.ended(60.0), "the end")
        taken.set()
        await waiting
        (row,) = await rig.rows("SELECT * FROM alert_delivery")
    assert row["delivered"] is not None
