"""Where alerts go: a webhook, e-mail. Checked when the configuration is read; never set by a request.

Knows: shapes and what is refused. Does not know: how anything is sent.
"""

import base64
from email.utils import getaddresses
from typing import Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_SHORTEST_SECRET = 16
PREFIX = "whsec_"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class WebhookSettings(_Section):
    """`url` gets a POST per alert, signed with `secret` as Standard Webhooks say (`whsec_…` is base64, else plain).

    `plain_http`: whether a machine other than this one may be called without TLS.
    """

    url: SecretStr
    secret: SecretStr
    plain_http: bool = False

    @field_validator("secret")
    @classmethod
    def _long_enough(cls, value: SecretStr) -> SecretStr:
        secret = value.get_secret_value()
        if len(secret) < _SHORTEST_SECRET:
            raise ValueError(f"a secret has at least {_SHORTEST_SECRET} characters")
        if secret.startswith(PREFIX):
            try:
                known = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
            except ValueError as error:
                raise ValueError(f"a secret that begins with {PREFIX} is base64 behind that") from error
            if len(known) < _SHORTEST_SECRET:
                raise ValueError(f"a secret has at least {_SHORTEST_SECRET} bytes")
        return value

    @model_validator(mode="after")
    def _goes_somewhere(self) -> "WebhookSettings":
        parts = urlsplit(self.url.get_secret_value())
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise ValueError("alerts.webhook.url is an https:// address")
        if parts.scheme == "http" and parts.hostname not in _LOOPBACK and not self.plain_http:
            raise ValueError("alerts.webhook.url: http:// to another machine needs plain_http: true")
        return self


def _is_address(text: str) -> bool:
    """Or several. A comma parts addresses, so what stands beside it must be one too."""
    found = getaddresses([text])
    return text.isprintable() and bool(found) and all("@" in address for _, address in found)


class EmailSettings(_Section):
    """`security`: `tls` from the first byte, `starttls`, or `none`. `to`: everybody who gets each alert."""

    host: str = Field(min_length=1)
    port: int = Field(default=587, ge=1, le=65535)
    security: Literal["tls", "starttls", "none"] = "starttls"
    username: str | None = None
    password: SecretStr | None = None
    sender: str = Field(min_length=3)
    to: list[str] = Field(min_length=1, max_length=50)

    @model_validator(mode="after")
    def _fits_together(self) -> "EmailSettings":
        if (self.username is None) != (self.password is None):
            raise ValueError("alerts.email: username and password go together")
        if self.password is not None and self.security == "none" and self.host not in _LOOPBACK:
            raise ValueError("alerts.email: a password is not sent without TLS; set security to tls or starttls")
        if not all(map(_is_address, (self.sender, *self.to))):
            raise ValueError("alerts.email: sender and to are e-mail addresses (a name with a comma stands in quotes)")
        return self


class AlertSettings(_Section):
    """Who is told when a budget reaches one of its `alerts`, when a cache's hits are wrong too often or no longer, and
    of days that were dearer than expected.

    None of it: alerts are shown, and not sent.
    """

    webhook: WebhookSettings | None = None
    email: EmailSettings | None = None

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of what is configured."""
        given = (("webhook", self.webhook), ("email", self.email))
        return tuple(name for name, settings in given if settings is not None)
