"""Requests that failed at one place, at the door of the next: who goes in at once, who pays, who waits for news.

Knows: what every attempt says about taking over from another place. Does not know: routes, attempts, money. Nothing
here polls: who waits is woken by the end of an attempt at that place.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http import HTTPStatus
from types import TracebackType

from msgspec import Struct

from gateway.catalog import Target
from gateway.deployments import Deployment, Deployments
from gateway.errors import GatewayError, UpstreamFailed, UpstreamRefused, UpstreamTimeout
from policies.retry import RetryBudget
from policies.routing.takeover import Verdict

OURS_TO_MEND = (  # our key, our account there: nothing the client did
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.PAYMENT_REQUIRED,
    HTTPStatus.FORBIDDEN,
)


_PATIENCE = 2.0  # seconds without news of a place before others are asked
_STEP = 0.25  # seconds; after three of them without news more of those who wait go in, where there is no other place
_LIKE_THE_LAST = 0.67  # of what the last place took to fail, at least: twice that, before silence says anything
_FIRST = nullcontext()  # most requests come from nowhere else


class Left(Struct, frozen=True):
    """A place that a request comes from: it has been failing `since`, and `took` seconds to say so."""

    since: float
    took: float


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

    def left(self, target: Target, sent: float, before: Left | None) -> Left | None:
        """What a request takes along that was `sent` to `target` and failed there; None: it is not failing any more."""
        since, took = self._deployments.of(target).takeover.failing_since, self._monotonic() - sent
        return None if since is None else Left(since, max(took, before.took) if before else took)

    async def way(self, target: Target, left: Left | None, *, deadline: float, spare: int) -> Way | None:
        """Into `target`, for a request that comes from elsewhere; None: there is nothing to gain.

        `left` None: no place failed, or this try is paid for already. Returns by `deadline`. `spare`: retries to leave
        with which the places after this one are found out.
        """
        deployment = self._deployments.of(target)
        until = min(deadline, self._monotonic() + _PATIENCE)
        while deployment.allows(now := self._monotonic()):
            if left is None:
                return Way(deployment)
            verdict = deployment.takeover.verdict(left.since, now)
            if verdict in ("proven", "slow"):
                return Way(deployment, failover=True)
            if now >= until:
                # Nobody knows still. Where there are others they are asked; the last one may be slow and well, but
                # one that nobody could pay for is not asked by everybody.
                alone = verdict != "unknown" and not spare and now < deadline
                return Way(deployment, failover=True) if alone else None
            if self._pays(verdict, spare):
                return Way(deployment, failover=True, paid=True)
            if verdict == "failed":
                break
            step = max(_STEP, _LIKE_THE_LAST * left.took)
            if await self._heard(deployment, min(step, until - now)):
                until = min(deadline, self._monotonic() + _PATIENCE)
            elif verdict in ("crowded", "unheard") or not spare:
                deployment.takeover.is_quiet(self._monotonic(), step)
        return None

    def is_silent(self, target: Target, left: Left | None) -> bool:
        """Whether a place that was passed over may be well all the same: it has not failed, nothing is heard of it."""
        if left is None:
            return False
        verdict = self._deployments.of(target).takeover.verdict(left.since, self._monotonic())
        return verdict in ("asked", "unheard", "crowded")

    def _pays(self, verdict: Verdict, spare: int) -> bool:
        """Each place is asked once, by whoever comes first; others may go with him as long as retries are left."""
        if verdict == "unknown":
            return self._retries.finds_out()
        return verdict != "crowded" and self._retries.allows(spare)

    def on(self, way: Way) -> AbstractContextManager[None]:
        """While a request is under way there. Entered in the same turn of the loop in which the way was found."""
        return self._taking_over(way) if way.failover else _FIRST

    @contextmanager
    def _taking_over(self, way: Way) -> Generator[None]:
        way.deployment.takeover.came(self._monotonic())
        try:
            yield
            if way.paid:
                self._retries.repay()
        except GatewayError as problem:
            if way.paid and not (is_failing(problem) or _is_hurried(problem)):
                self._retries.repay()  # the client's own fault, or a budget: it says nothing against the place
            raise
        finally:
            way.deployment.takeover.left()
            self._tell(way.deployment)

    def watched(self, target: Target) -> "_Watched":
        """One attempt at `target`, whose outcome others wait for."""
        return _Watched(self._deployments.of(target), self._monotonic, self._tell)

    async def _heard(self, deployment: Deployment, patience: float) -> bool:
        """Whether there was news of a place before patience ran out."""
        news = self._news.get(deployment.number)
        if news is None:
            news = self._news[deployment.number] = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([news], timeout=patience)
        return bool(done)

    def _tell(self, deployment: Deployment) -> None:
        if (news := self._news.pop(deployment.number, None)) is not None:
            news.set_result(None)


class _Watched:
    """As a class, since every attempt passes here: as a generator it took 1.6 µs instead of 0.7."""

    __slots__ = ("_deployment", "_monotonic", "_sent", "_tell")

    def __init__(
        self, deployment: Deployment, monotonic: Callable[[], float], tell: Callable[[Deployment], None]
    ) -> None:
        self._deployment, self._monotonic, self._tell = deployment, monotonic, tell
        self._sent = monotonic()

    def __enter__(self) -> None:
        """It has been begun already."""

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        takeover = self._deployment.takeover
        if isinstance(problem, GatewayError) and is_failing(problem):
            takeover.failed(self._monotonic())
        elif problem is None or (isinstance(problem, UpstreamFailed) and not _is_hurried(problem)):
            takeover.answered(self._sent, self._monotonic())
        self._tell(self._deployment)


def is_failing(problem: GatewayError) -> bool:
    """Whether an error says that its place does not work, for whomever; what was never sent says nothing."""
    if isinstance(problem, UpstreamRefused):
        return problem.http_status in (HTTPStatus.TOO_MANY_REQUESTS, *OURS_TO_MEND)
    return isinstance(problem, UpstreamFailed) and not (problem.unwanted or _is_hurried(problem))


def _is_hurried(problem: GatewayError) -> bool:
    return isinstance(problem, UpstreamTimeout) and problem.hurried
