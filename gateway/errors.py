"""Every way a request can be refused or fail, and how it is told in OpenAI's shape.

    GatewayError
    |- InvalidRequest            400  the client's mistake, `param` names where
    |  |- Unauthorized           401   |- NotAllowed 403   |- NotFound 404   |- MethodNotAllowed 405
    |  |- RequestTimeout         408   |- Conflict 409     |- TooLarge 413     |- UnsupportedMedia 415
    |  |- PromptQuarantined      422   |- UpgradeRefused 426
    |- NotPriced                 402  no price: the message names the command that sets one
    |- BudgetExhausted           429  insufficient_quota, never worth a retry
    |- RateLimited               429  with retry-after
    |- Overloaded                503  with retry-after
    |- CacheMissed               504  only-if-cached
    |- OutOfTime                 504  its time was over before it was sent anywhere
    |- Internal                  500
    |- UpstreamFailed            502  refused, cut or garbled before the first byte
       |- UpstreamTimeout        504    |- EngineUnavailable 503  |- EngineEnded 500
       |- UpstreamRefused        the upstream's own 4xx, passed on unchanged
          |- CredentialRefused   502, its 401: the key there is wrong, which is ours and not the client's

Each class answers three questions: `status`, `retryable` (may another candidate be tried), `level` (for the log).
"""

import math
from typing import ClassVar, Literal

import msgspec

Level = Literal["info", "warning", "error"]
_encode = msgspec.json.Encoder().encode
_LONGEST_MESSAGE = 4_000
_NO_MODEL = ("model_not_found", "DeploymentNotFound")  # the second is Azure's


def wait_headers(seconds: float) -> tuple[tuple[str, str], ...]:
    """How long to wait, rounded up, as clients read it."""
    return ("retry-after", str(math.ceil(seconds))), ("retry-after-ms", str(math.ceil(seconds * 1e3)))


class GatewayError(Exception):
    """Base. `headers` are extra response headers (lower case names).

    `spent`: an attempt on the way here may have cost something, whatever the last one said. `routing`: how the places
    were weighed, where none was left to ask.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None
    retryable: ClassVar[bool] = False
    level: ClassVar[Level] = "error"
    spent: bool = False
    routing: dict[str, object] | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message[:_LONGEST_MESSAGE]
        self.param = param
        self.headers = headers
        if code is not None:
            self.code = code

    @property
    def http_status(self) -> int:
        return self.status

    def body(self) -> bytes:
        """`{"error": {message, type, param, code}}`, all four keys always present."""
        return _encode({"error": self.detail()})

    def detail(self) -> dict[str, str | None]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


class InvalidRequest(GatewayError):
    """`as_asked`: the places in its `param` are those of the client's own request, not of what became of it.

    `details`: what Anthropic's clients act on, beside the words.
    """

    status = 400
    type = "invalid_request_error"
    level = "info"
    as_asked: bool = False
    details: dict[str, object] | None = None


class Unauthorized(InvalidRequest):
    status = 401
    code = "invalid_api_key"


class NotAllowed(InvalidRequest):
    status = 403
    code = "model_not_allowed"


class Conflict(InvalidRequest):
    status = 409


class NotFound(InvalidRequest):
    status = 404
    code = "model_not_found"


class MethodNotAllowed(InvalidRequest):
    status = 405
    code = "method_not_supported"


class RequestTimeout(InvalidRequest):
    status = 408
    code = "request_timeout"


class TooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"


class PromptQuarantined(InvalidRequest):
    """It ended an engine's process twice."""

    status = 422
    code = "prompt_quarantined"


class UnsupportedMedia(InvalidRequest):
    status = 415
    code = "unsupported_content_type"


class UpgradeRefused(InvalidRequest):
    """Clients that would rather have a WebSocket take this status as the sign to do without."""

    status = 426
    code = "upgrade_refused"


class NotPriced(GatewayError):
    status = 402
    type = "invalid_request_error"
    code = "model_not_priced"
    level = "warning"


class BudgetExhausted(GatewayError):
    """`scope`: of the budget; `headroom`: nano-USD it still has; `degrade_to`: the model it wants asked instead.

    `held_up`: there would be enough, were it not held for requests that are still running.
    """

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"
    level = "info"
    scope: str = ""
    headroom: int = 0
    held_up: bool = False
    degrade_to: str | None = None


class RateLimited(GatewayError):
    """`kind` is told as the error's type, as OpenAI does: `requests` or `tokens`."""

    status = 429
    type = "requests"
    code = "rate_limit_exceeded"
    level = "info"
    kind: str = "requests"

    def detail(self) -> dict[str, str | None]:
        return super().detail() | {"type": self.kind}


class Overloaded(GatewayError):
    status = 503
    code = "overloaded"
    retryable = True
    level = "warning"


class Stopping(Overloaded):
    """What outlasts the drain of a worker that is to end: its successor, or another worker, answers."""

    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__(
            "This server is being stopped, and the answer took longer than it waits for one. Send the request again.",
            headers=wait_headers(1.0),
        )


class CacheMissed(GatewayError):
    status = 504
    type = "invalid_request_error"
    code = "cache_miss"
    level = "info"


class OutOfTime(GatewayError):
    """Nothing was sent, so nothing was spent."""

    status = 504
    code = "deadline_exceeded"
    level = "info"


def comes_again(error: GatewayError) -> bool:
    """Whether it was turned away for lack of room at the moment, so that what nobody waits for is asked once more."""
    return isinstance(error, RateLimited | Overloaded) or (isinstance(error, BudgetExhausted) and error.held_up)


class Internal(GatewayError):
    code = "internal_error"


class UpstreamFailed(GatewayError):
    """`doubtful`: the request had been sent when it failed, so the upstream may have done (and bill) the work.

    `unwanted`: it did answer, in a way that is to be answered elsewhere if it can be.
    """

    status = 502
    code = "upstream_error"
    retryable = True
    level = "warning"
    doubtful: bool = False
    unwanted: bool = False


class EngineUnavailable(UpstreamFailed):
    """A bundled engine is starting, hung or gone; another provider may answer, or the same one in a moment."""

    status = 503
    code = "engine_unavailable"


class EngineEnded(EngineUnavailable):
    """Two processes of a bundled engine ended with it inside. Other places of the route may answer it."""

    status = 500
    code = "engine_ended"
    unwanted = True


class UpstreamTimeout(UpstreamFailed):
    """`hurried`: the client's time was over, not that which the upstream has: it says nothing about the upstream."""

    status = 504
    code = "upstream_timeout"
    hurried: bool = False


class UpstreamRefused(UpstreamFailed):
    """An upstream's own answer of 400-499; `retryable` only for 408, 429 (the caller reads `may_retry`).

    `lacks_model`: it has no such model.
    """

    retryable = False
    level = "info"

    def __init__(self, status: int, error: dict[str, object], *, retry_after: float | None = None) -> None:
        later = () if retry_after is None else wait_headers(retry_after)
        super().__init__(str(error.get("message") or "The upstream refused this request."), headers=later)
        self.upstream_status = status
        self.upstream_error = error
        self.retry_after = retry_after
        # Where a name leads is the operator's: what one place does not have the next may.
        self.lacks_model = error.get("code") in _NO_MODEL
        self.unwanted = self.lacks_model

    @property
    def http_status(self) -> int:
        return self.upstream_status

    @property
    def may_retry(self) -> bool:
        return self.upstream_status in (408, 429)

    def detail(self) -> dict[str, str | None]:
        found = {k: self.upstream_error.get(k) for k in ("message", "type", "param", "code")}
        return {k: None if v is None else str(v)[:_LONGEST_MESSAGE] for k, v in found.items()}


class CredentialRefused(UpstreamRefused):
    """Where no other place was left: a 401 would say that the client's own key is wrong, and quote some of ours."""

    level = "warning"
    code = "upstream_credential_refused"

    def __init__(self, provider: str, status: int) -> None:
        why = f"{provider} refuses the credential that this gateway has for it. Only an operator can mend that."
        told: dict[str, object] = {"message": why, "type": self.type, "param": None, "code": self.code}
        super().__init__(status, told)
        self.headers = (("x-should-retry", "false"),)

    @property
    def http_status(self) -> int:
        return self.status


def in_doubt(error: GatewayError) -> bool:
    """Whether an upstream may have done, and may bill, the work of what ended like this."""
    return error.spent or isinstance(error, UpstreamTimeout) or (isinstance(error, UpstreamFailed) and error.doubtful)
