"""One alert to one place: an HTTP POST that is signed, or an e-mail.

Knows: how an alert reads, signatures, SMTP. Does not know: what has been sent already, when to try again.
Nothing goes anywhere but to the address in the configuration: no redirect is followed, no proxy asked, no answer read.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable
from email.message import EmailMessage
from typing import Protocol

import aiohttp
import aiosmtplib
import msgspec
from msgspec import Struct

from gateway.alert_settings import AlertSettings, EmailSettings, WebhookSettings
from policies.budget import parse_window_id, told
from policies.money import usd

_PATIENCE = 15.0
_PREFIX = "whsec_"
_encode = msgspec.json.Encoder().encode


class Alert(Struct, frozen=True, kw_only=True):
    """A budget that has reached a fraction of its limit. `id` never changes, whoever sends it and how often."""

    id: str
    window_id: str
    threshold: float
    limit_nano: int
    spent_nano: int
    mode: str
    created: float

    @property
    def key(self) -> str:
        """The id in a form that any receiver takes."""
        return "msg_" + hashlib.sha256(self.id.encode()).hexdigest()[:32]


class NotSent(Exception):
    """Why not, in words without any secret."""


class Channel(Protocol):
    """One place. Raises NotSent."""

    async def send(self, alert: Alert) -> None: ...


def body_of(alert: Alert) -> dict[str, object]:
    """What a webhook gets."""
    scope, window, span = parse_window_id(alert.window_id)
    return {
        "type": "budget.threshold",
        "id": alert.key,
        "created": told(int(alert.created)),
        "data": {
            "scope": scope,
            "window": window,
            "window_start": told(span.start),
            "window_end": told(span.end),
            "mode": alert.mode,
            "threshold": alert.threshold,
            "limit_usd": usd(alert.limit_nano),
            "spent_usd": usd(alert.spent_nano),
            "remaining_usd": usd(max(0, alert.limit_nano - alert.spent_nano)),
        },
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

    async def send(self, alert: Alert) -> None:
        body, at = _encode(body_of(alert)), int(self._now())
        headers = {
            "content-type": "application/json",
            "user-agent": "nearhit",
            "webhook-id": alert.key,
            "webhook-timestamp": str(at),
            "webhook-signature": signature(self._settings.secret.get_secret_value(), alert.key, at, body),
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

    async def send(self, alert: Alert) -> None:
        chosen = self._settings
        try:
            await aiosmtplib.send(
                message_of(alert, chosen),
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


def message_of(alert: Alert, settings: EmailSettings) -> EmailMessage:
    """The e-mail. A scope is printable text without line ends, so it cannot add headers; the library checks again."""
    scope, window, span = parse_window_id(alert.window_id)
    share = f"{alert.threshold * 100:g} %"
    limit, spent = usd(alert.limit_nano), usd(alert.spent_nano)
    message = EmailMessage()
    message["From"] = settings.sender
    message["To"] = ", ".join(settings.to)
    message["Subject"] = f"Budget {scope}: {share} of {limit} USD per {window} is spent"
    message["Message-ID"] = f"<{alert.key}@nearhit>"
    beyond = "Further requests are refused." if alert.mode == "hard" else "Further requests are let through."
    message.set_content(
        f"The budget {scope} has spent {spent} USD of {limit} USD per {window}.\n"
        f"It has reached the threshold of {share} at {told(int(alert.created))} and begins anew at {told(span.end)}.\n"
        f"{beyond if alert.spent_nano >= alert.limit_nano else ''}\n"
    )
    return message


def channels(settings: AlertSettings, now: Callable[[], float]) -> dict[str, Channel]:
    """What is configured, by name."""
    found: dict[str, Channel] = {}
    if settings.webhook is not None:
        found["webhook"] = Webhook(settings.webhook, now)
    if settings.email is not None:
        found["email"] = Email(settings.email)
    return found
