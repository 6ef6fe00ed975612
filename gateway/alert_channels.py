"""One alert to one place: an HTTP POST that is signed, or an e-mail.

Knows: signatures, SMTP. Does not know: how an alert reads, what has been sent already, when to try again.
Nothing goes anywhere but to the address in the configuration: no redirect is followed, no proxy asked, no answer read.
"""

import base64
import hmac
from collections.abc import Callable
from email.message import EmailMessage
from typing import Protocol

import aiohttp
import aiosmtplib
import msgspec

from gateway.alert_notices import Notice, key_of
from gateway.alert_settings import AlertSettings, EmailSettings, WebhookSettings
from policies.budget import told

_PATIENCE = 15.0
_PREFIX = "whsec_"
_encode = msgspec.json.Encoder().encode


class NotSent(Exception):
    """Why not, in words without any secret."""


class Channel(Protocol):
    """One place. Raises NotSent."""

    async def send(self, notice: Notice) -> None: ...


def body_of(notice: Notice) -> dict[str, object]:
    """What a webhook gets."""
    return {
        "type": notice.kind(),
        "id": key_of(notice),
        "created": told(int(notice.created)),
        "data": notice.data(),
    }


def signature(secret: str, key: str, at: int, body: bytes) -> str:
    """`v1,…` of https://www.standardwebhooks.com: HMAC-SHA256 over `id.timestamp.body`, in base64."""
    known = base64.b64decode(secret.removeprefix(_PREFIX)) if secret.startswith(_PREFIX) else secret.encode()
    made = hmac.digest(known, b"%s.%d.%s" % (key.encode(), at, body), "sha256")
    return "v1," + base64.b64encode(made).decode()


class Webhook:
    """Any answer of 200 to 299 within 15 s is a delivery."""

    def __init__(self, settings: WebhookSettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now

    async def send(self, notice: Notice) -> None:
        key, body, at = key_of(notice), _encode(body_of(notice)), int(self._now())
        headers = {
            "content-type": "application/json",
            "user-agent": "nearhit",
            "webhook-id": key,
            "webhook-timestamp": str(at),
            "webhook-signature": signature(self._settings.secret.get_secret_value(), key, at, body),
        }
        timeout = aiohttp.ClientTimeout(total=_PATIENCE)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.post(
                    self._settings.url.get_secret_value(), data=body, headers=headers, allow_redirects=False
                ) as answer,
            ):
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise NotSent(f"the webhook could not be reached: {type(error).__name__}") from None
        if not 200 <= status < 300:
            raise NotSent(f"the webhook answered {status}")


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
                timeout=_PATIENCE,
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


def channels(settings: AlertSettings, now: Callable[[], float]) -> dict[str, Channel]:
    """What is configured, by name."""
    found: dict[str, Channel] = {}
    if settings.webhook is not None:
        found["webhook"] = Webhook(settings.webhook, now)
    if settings.email is not None:
        found["email"] = Email(settings.email)
    return found
