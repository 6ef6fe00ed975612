"""An alert as an e-mail.

Knows: SMTP. Does not know: how an alert reads, what has been sent already, when to try again.
"""

import asyncio
from contextlib import suppress
from email.message import EmailMessage
from email.utils import formatdate

import aiosmtplib

from gateway.alert_channels import LONGEST, PATIENCE, NotSent
from gateway.alert_notices import Notice, key_of
from gateway.alert_settings import EmailSettings

_NOT_SMTP = -1  # aiosmtplib's code for it


class Email:
    """A plain text to everybody in `to`."""

    def __init__(self, settings: EmailSettings) -> None:
        self._settings = settings

    async def send(self, notice: Notice) -> str | None:
        """One letter for all. Servers that look through it first are slow: given up, it would come again each time."""
        server = self._server()
        try:
            async with asyncio.timeout(LONGEST):
                await server.connect()
                refused, _ = await server.send_message(message_of(notice, self._settings), timeout=LONGEST)
        except (aiosmtplib.SMTPException, OSError, ValueError) as error:
            raise NotSent(_why(error)) from None
        else:
            with suppress(aiosmtplib.SMTPException, OSError):  # it has the letter, whatever becomes of the farewell
                await server.quit(timeout=1.0)
        finally:
            server.close()
        told = ", ".join(f"{answer.code} for {address}" for address, answer in sorted(refused.items()))
        return f"the mail server answered {told}" if told else None

    def _server(self) -> aiosmtplib.SMTP:
        chosen = self._settings
        return aiosmtplib.SMTP(
            hostname=chosen.host,
            port=chosen.port,
            username=chosen.username,
            password=None if chosen.password is None else chosen.password.get_secret_value(),
            use_tls=chosen.security == "tls",
            start_tls=chosen.security == "starttls",
            timeout=PATIENCE,
        )


def _why(error: Exception) -> str:
    """In words that lead to the place where it can be mended, without anything that the server said."""
    if isinstance(error, aiosmtplib.SMTPResponseException):
        if error.code == _NOT_SMTP:
            return "the mail server answered what is no SMTP"
        return f"the mail server answered {error.code}"
    if isinstance(error, aiosmtplib.SMTPRecipientsRefused):
        codes = ", ".join(sorted({str(one.code) for one in error.recipients}))
        return f"the mail server answered {codes} for every address in alerts.email.to"
    if isinstance(error, TimeoutError):
        return "the mail server did not answer in time"
    if type(error) is aiosmtplib.SMTPException:  # the library's own, of extensions that are not there
        lacks = "STARTTLS" if "STARTTLS extension" in str(error) else "signing in (AUTH)"
        return f"the mail server does not offer {lacks}"
    return f"the mail server could not be reached: {type(error).__name__}"


def message_of(notice: Notice, settings: EmailSettings) -> EmailMessage:
    subject, text = notice.letter()
    message = EmailMessage()
    message["From"] = settings.sender
    message["To"] = ", ".join(settings.to)
    message["Subject"] = subject
    message["Date"] = formatdate(notice.created, usegmt=True)
    message["Message-ID"] = f"<{key_of(notice)}@nearhit>"
    message["Auto-Submitted"] = "auto-generated"  # nobody's "I am away" is wanted
    message.set_content(text)
    return message
