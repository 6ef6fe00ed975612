"""Requests that failed at one place, at the door of the next: who goes in at once, who pays, who waits for news.

Knows: what every attempt says about taking over from another place. Does not know: routes, attempts, money. Nothing
here polls: who waits is woken by the end of an attempt at that place.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http import HTTPStatus

from msgspec import Struct

from gateway.catalog import Target
from gateway.deployments import Deployment, Deployments
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from policies.retry import RetryBudget

OURS_TO_MEND = (  # our key, our account there: nothing the client did
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.PAYMENT_REQUIRED,
    HTTPStatus.FORBIDDEN,
)


_PATIENCE = 2.0  # seconds without news of a place before others are asked


class Way(Struct, frozen=True):
    """Into a place. `failover`: another place failed; `paid`: with a retry, which comes back once this is answered."""

    deployment: Deployment
    failover: bool = False
    paid: bool = False


class Failovers:
    """One per worker."""

    def __init__(self, deployments: Deployments, retries: RetryBudget, *, monotonic: Callable[[], float]) -> None:
        self._deployments = deployments
        self._retries = retries
        self._monotonic = monotonic
        self._news: dict[int, asyncio.Future[None]] = {}

    def failing_since(self, target: Target) -> float | None:
        return self._deployments.of(target).takeover.failing_since

    async def way(self, target: Target, since: float | None, *, deadline: float, spare: int) -> Way | None:
        """Into `target`, for a request whose own place has been failing `since`; None: there is nothing to gain.

        `since` None: no place failed, or this try is paid for already. Returns by `deadline`. `spare`: retries to leave
        with which the places after this one are found out.
        """
        deployment = self._deployments.of(target)
        while deployment.allows(now := self._monotonic()):
            if since is None:
                return Way(deployment)
            verdict = deployment.takeover.verdict(since, now)
            if verdict == "proven":
                return Way(deployment, failover=True)
            if verdict == "unknown":
                self._retries.borrow()  # each place is asked once, or nobody would ever know
                return Way(deployment, failover=True, paid=True)
            if verdict != "crowded" and self._retries.allows(spare):
                return Way(deployment, failover=True, paid=True)
            if verdict == "failed":
                break
            if not await self._heard(deployment, min(_PATIENCE, deadline - now)):
                # Nobody knows still. Where there are others they are asked; the last one may be slow and well.
                in_time = self._monotonic() < deadline
                return Way(deployment, failover=True) if in_time and not spare else None
        return None

    @contextmanager
    def on(self, way: Way) -> Generator[None]:
        """While a request is under way there. Entered in the same turn of the loop in which the way was found."""
        if not way.failover:
            yield
            return
        way.deployment.takeover.came()
        try:
            yield
            if way.paid:
                self._retries.repay()
        except GatewayError as problem:
            if way.paid and not is_failing(problem):
                self._retries.repay()  # the client's own fault, or a budget: it says nothing against the place
            raise
        finally:
            way.deployment.takeover.left()
            self._tell(way.deployment)

    @contextmanager
    def watched(self, target: Target) -> Generator[None]:
        """One attempt at `target`, whose outcome others wait for."""
        deployment, sent = self._deployments.of(target), self._monotonic()
        takeover = deployment.takeover
        try:
            yield
        except GatewayError as problem:
            if is_failing(problem):
                takeover.failed(self._monotonic())
            elif isinstance(problem, UpstreamFailed) and not _is_hurried(problem):
                takeover.answered(sent, self._monotonic())
            raise
        else:
            takeover.answered(sent, self._monotonic())
        finally:
            self._tell(deployment)

    async def _heard(self, deployment: Deployment, patience: float) -> bool:
        """Whether there was news of a place before patience ran out."""
        if patience <= 0:
            return False
        news = self._news.get(deployment.number)
        if news is None:
            news = self._news[deployment.number] = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([news], timeout=patience)
        return bool(done)

    def _tell(self, deployment: Deployment) -> None:
        if (news := self._news.pop(deployment.number, None)) is not None:
            news.set_result(None)


def is_failing(problem: GatewayError) -> bool:
    """Whether an error says that its place does not work, for whomever; what was never sent says nothing."""
    if isinstance(problem, UpstreamRefused):
        return problem.http_status in (HTTPStatus.TOO_MANY_REQUESTS, *OURS_TO_MEND)
    return isinstance(problem, UpstreamFailed) and not (problem.unwanted or _is_hurried(problem))


def _is_hurried(problem: GatewayError) -> bool:
    return isinstance(problem, UpstreamTimeout) and problem.hurried
