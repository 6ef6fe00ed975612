"""Where alerts go: what is configured, each loaded only then, since HTTP and SMTP are 8 MB in every worker.

Knows: what a channel is. Does not know: how an alert reads, what has been sent already, when to try again.
"""

from collections.abc import Callable
from typing import Protocol

from gateway.alert_notices import Notice
from gateway.alert_settings import AlertSettings

PATIENCE = 15.0  # seconds that a receiver may take to answer
LONGEST = 150.0  # seconds one attempt may take in all


class NotSent(Exception):
    """Why not, in words without any secret."""


class Channel(Protocol):
    """One place. Raises NotSent; what is answered is who of several did not get it."""

    async def send(self, notice: Notice) -> str | None: ...


def channels(settings: AlertSettings, now: Callable[[], float]) -> dict[str, Channel]:
    """What is configured, by name."""
    found: dict[str, Channel] = {}
    if settings.webhook is not None:
        from gateway.alert_webhook import Webhook

        found["webhook"] = Webhook(settings.webhook, now)
    if settings.email is not None:
        from gateway.alert_email import Email

        found["email"] = Email(settings.email)
    return found
