"""An alert as an e-mail.

Knows: SMTP. Does not know: how an alert reads, what has been sent already, when to try again.
"""

from email.message import EmailMessage

import aiosmtplib

from gateway.alert_channels import PATIENCE, NotSent
from gateway.alert_notices import Notice, key_of
from gateway.alert_settings import EmailSettings


class Email:
    """A plain text to everybody in `to`."""

    def __init__(self, settings: EmailSettings) -> None:
        self._settings = settings

    async def send(self, notice: Notice) -> None:
        chosen = self._settings
        try:
            await aiosmtplib.send(
                message_of(notice, chosen),
                hostname=chosen.host,
                port=chosen.port,
                username=chosen.username,
                password=None if chosen.password is None else chosen.password.get_secret_value(),
                use_tls=chosen.security == "tls",
                start_tls=chosen.security == "starttls",
                timeout=PATIENCE,
            )
        except aiosmtplib.SMTPResponseException as error:
            raise NotSent(f"the mail server answered {error.code}") from None
        except (aiosmtplib.SMTPException, OSError, TimeoutError, ValueError) as error:
            raise NotSent(f"the mail server could not be reached: {type(error).__name__}") from None


def message_of(notice: Notice, settings: EmailSettings) -> EmailMessage:
    subject, text = notice.letter()
    message = EmailMessage()
    message["From"] = settings.sender
    message["To"] = ", ".join(settings.to)
    message["Subject"] = subject
    message["Message-ID"] = f"<{key_of(notice)}@nearhit>"
    message.set_content(text)
    return message
