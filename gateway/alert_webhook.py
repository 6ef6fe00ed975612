"""An alert as an HTTP POST that is signed.

Knows: signatures. Does not know: how an alert reads, what has been sent already, when to try again.
Nothing goes anywhere but to the address in the configuration: no redirect is followed, no proxy asked, no answer read.
"""

import base64
import hmac
from collections.abc import Callable

import aiohttp
import msgspec

from gateway.alert_channels import PATIENCE, NotSent
from gateway.alert_notices import Notice, key_of
from gateway.alert_settings import PREFIX, WebhookSettings
from policies.budget import told

_encode = msgspec.json.Encoder().encode


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
    known = base64.b64decode(secret.removeprefix(PREFIX)) if secret.startswith(PREFIX) else secret.encode()
    made = hmac.digest(known, b"%s.%d.%s" % (key.encode(), at, body), "sha256")
    return "v1," + base64.b64encode(made).decode()


class Webhook:
    """Any answer of 200 to 299 within 15 s is a delivery."""

    def __init__(self, settings: WebhookSettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now

    async def send(self, notice: Notice) -> str | None:
        key, body, at = key_of(notice), _encode(body_of(notice)), int(self._now())
        headers = {
            "content-type": "application/json",
            "user-agent": "nearhit",
            "webhook-id": key,
            "webhook-timestamp": str(at),
            "webhook-signature": signature(self._settings.secret.get_secret_value(), key, at, body),
        }
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.post(
                    self._settings.url.get_secret_value(), data=body, headers=headers, allow_redirects=False
                ) as answer,
            ):
                status = answer.status
        except TimeoutError:  # one that was reached and hangs is looked for elsewhere than one that is away
            raise NotSent(f"the webhook did not answer within {PATIENCE:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NotSent(f"the webhook could not be reached: {type(error).__name__}") from None
        if not 200 <= status < 300:
            raise NotSent(f"the webhook answered {status}")
        return None
