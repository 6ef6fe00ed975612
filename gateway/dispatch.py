"""From a call to a begun answer: the candidates of its route in order, until one has sent its first chunk.

Knows the single failover rule: before the first chunk the next candidate may be tried, after it never; how often, and
when a second one is asked beside the first. Does not know: how candidates are ordered (`gateway.routing`), what an
attempt is (`gateway.attempts`), which failovers would be in vain (`gateway.failovers`), who waits for the answer, HTTP.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from http import HTTPStatus
from itertools import chain
from typing import Any

from msgspec import Struct

from gateway import errors, rehearsal
from gateway.attempts import Attempts, Live, Trial
from gateway.call import Call, Chunk
from gateway.catalog import Route, Target
from gateway.deployments import Deployments
from gateway.estimate import text_size
from gateway.failovers import OURS_TO_MEND, Failovers, Left, Way, is_failing
from gateway.flights import Ended, Landing
from gateway.ledger import Ledger
from gateway.routed import routed_nano
from gateway.routing import Choice, Router
from gateway.tasks import Tasks
from gateway.unwanted import look_over
from policies.money import Usage
from policies.retry import RetryBudget, pause, worth_retrying

_MOST_ATTEMPTS = 3
_FILTERED = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")
_TOO_DEAR = "max_cost_exceeded"
_NOT_THERE = (
    "unsupported_operation",
    "unsupported_parameter",
    "unsupported_content",
    _TOO_DEAR,
)  # another place may do
_MAYBE_ELSEWHERE = (  # how an attempt ends that another place may do better
    *(errors.UpstreamFailed, errors.Overloaded),
    *(errors.NotPriced, errors.BudgetExhausted, errors.InvalidRequest),
)
_LEAST_HEDGE = 0.05  # seconds; what is measured may be shorter than is worth another call


class Means(Struct, frozen=True, kw_only=True):
    """What a dispatcher works with."""

    attempts: Attempts
    router: Router
    deployments: Deployments
    ledger: Ledger
    tasks: Tasks


class Dispatcher:
    """Tries candidates. `random` yields numbers in [0, 1) for the jitter of retries."""

    def __init__(self, means: Means, *, monotonic: Callable[[], float], random: Callable[[], float]) -> None:
        self._attempts = means.attempts
        self._router = means.router
        self._deployments = means.deployments
        self._ledger = means.ledger
        self._tasks = means.tasks
        self._monotonic = monotonic
        self._random = random
        self._retries = RetryBudget()
        self._failovers = Failovers(means.deployments, self._retries, monotonic=monotonic)

    async def begin(self, call: Call, route: Route, landing: Landing, why: str = "") -> Live:
        """The first candidate that starts to answer. Raises the last GatewayError when none does."""
        if call.given is not None:
            made_at = Target(call.given.provider, call.given.model)
            trial = Trial(call=call, route=route, target=made_at, why="batch")
            return took_off(landing, await self._attempts.start(trial, landing))
        choice = self._choice(call, route, landing)
        self._retries.began()
        try:
            live = await self._walk(call, route, choice, landing, why)
        except errors.UpstreamRefused as problem:
            if problem.http_status != HTTPStatus.UNAUTHORIZED:
                raise
            place = landing.steps[-1].provider if landing.steps else "The upstream"
            raise errors.CredentialRefused(place, problem.http_status) from None
        finally:
            self._retries.ended()
        return took_off(landing, live)

    def _choice(self, call: Call, route: Route, landing: Landing) -> Choice:
        """The candidates; how they were weighed is noted where there was anything to choose, or nothing left."""
        try:
            choice = self._router.choose(call, route, cheapest=self._saving(call, route))
        except errors.GatewayError as problem:
            told: dict[str, object] = {"routing": problem.routing}
            landing.told.append(lambda: told)
            raise
        if choice.ranking.weighed:
            landing.told.append(lambda: {"routing": choice.told()})
        return choice

    def quote(self, call: Call, route: Route) -> dict[str, object]:
        """Where it would go, in which order and why, at what cost at worst, out of which budgets; nothing is held."""
        choice = self._router.weigh(call, route, cheapest=self._saving(call, route))
        quotes: list[dict[str, object]] = []
        charging = self._attempts.charging
        for target in choice.targets:
            limits = self._attempts.limits(call, route, target)
            models = (target, *charging.in_its_place(call, target))
            prices = {one.model: charging.price(call, route, one) for one in models}
            pools = self._ledger.drawn_on(call, target.provider, target.model)
            quotes.append({"target": str(target), **rehearsal.attempt(call, prices, limits, pools)})
        return rehearsal.whole(quotes, choice.told(), both=route.chosen.hedge is not None)

    def settle(self, live: Live, usage: Usage | None, ended: Ended, received: Usage, provider_id: str) -> int:
        """Post what a begun answer cost. `usage` is the provider's own count; without it, what was `received`."""
        return self._attempts.settle(live, usage, ended, received, provider_id)

    def told(self, live: Live, chunk: Chunk) -> None:
        """The chunk that tells what was used may also tell at which price."""
        self._attempts.told(live, chunk)

    def routed(self, call: Call, route: Route, landing: Landing) -> int:
        """What choosing among the places of the route saved on this answer, nano-USD; negative where it cost more."""
        return routed_nano(route, landing, lambda target: self._attempts.charging.price(call, route, target))

    def _saving(self, call: Call, route: Route) -> bool:
        """Whether so much of a budget is used that the price decides."""
        least = route.chosen.cheapest_from
        if least is None:
            return False
        first = route.targets[0]
        return self._ledger.used(call, first.provider, first.model) >= least

    async def _walk(self, call: Call, route: Route, choice: Choice, landing: Landing, why: str) -> Live:
        """The candidates one after another, those that were silent once more, and all again while that is worth it."""
        error: errors.GatewayError | None = None
        left: Left | None = None  # the place that has failed
        passing: dict[int, errors.GatewayError] = {}  # what failed in a way that may pass, the longest ago first
        targets, silent = choice.targets, list[int]()
        for number in chain(range(len(targets)), silent, range(len(targets), _MOST_ATTEMPTS)):
            at, again = number, number - len(targets)
            if again >= 0:
                at = next(iter(passing), -1)
                if at < 0 or not await self._may_repeat(call, targets[at], passing.pop(at), again, landing):
                    break
            target = targets[at]
            spare = 0 if number in silent else len(targets) - number - 1
            way = await self._way(call, target, left, number, spare)
            if way is None:
                self._pass_over(number, target, left, silent)
                continue
            queued = choice.to_read(at)
            trial = Trial(call=call, route=route, target=target, prompt=queued, why=why or choice.ranking.first)
            self._router.sent(choice, target)
            sent = self._monotonic()
            try:
                following = targets[number + 1] if number + 1 < len(targets) else None
                with self._failovers.on(way):
                    return await self._try(trial, following, landing)
            except _MAYBE_ELSEWHERE as problem:
                late = self._monotonic() >= call.deadline
                error = _go_on(problem, error, route, others=number + 1 < len(targets), late=late)
                if _may_pass(problem):
                    passing[at] = problem
                left = self._failovers.left(target, sent, left) if is_failing(problem) else left
        raise error or errors.UpstreamFailed("no candidate could be tried")

    async def _way(self, call: Call, target: Target, left: Left | None, number: int, spare: int) -> Way | None:
        """Into a candidate; one that is tried again has been paid for, others as `gateway.failovers` says."""
        if not number:
            return Way(self._deployments.of(target))
        known = left if spare >= 0 else None
        return await self._failovers.way(target, known, deadline=call.deadline, spare=spare)

    def _pass_over(self, number: int, target: Target, left: Left | None, silent: list[int]) -> None:
        """Where a candidate has only not been heard of, it is come back to; once, since by then it is the last."""
        if number not in silent and self._failovers.is_silent(target, left):
            silent.append(number)

    async def _may_repeat(
        self, call: Call, target: Target, error: errors.GatewayError, again: int, landing: Landing
    ) -> bool:
        """Whether a place may be asked once more, having waited as long as it asked for in its own `error`.

        One that is to be left alone for longer than that is not worth the wait.
        """
        wait = pause(again, self._random(), retry_after=getattr(error, "retry_after", None))
        began = self._monotonic()
        then = began + wait
        if then >= call.deadline or not self._deployments.of(target).allows(then) or not self._retries.allows():
            return False
        await asyncio.sleep(wait)
        landing.paused += self._monotonic() - began
        return True

    def _try(self, trial: Trial, following: Target | None, landing: Landing) -> Coroutine[Any, Any, Live]:
        """One attempt, or two of which the quicker counts."""
        wait = self._hedge_after(trial)
        if wait is None or following is None or not self._is_well(following):
            return self._one(trial, landing)
        return self._hedged(trial, following, landing, wait)

    async def _hedged(self, trial: Trial, following: Target, landing: Landing, wait: float) -> Live:
        """A second attempt elsewhere where the first says nothing for so many seconds."""
        first = self._tasks.spawn(self._one(trial, landing), f"attempt {trial.call.id}")
        try:
            done, _ = await asyncio.wait([first], timeout=wait)
            if done or not self._is_well(following) or not self._retries.allows():
                return await first
            second = self._tasks.spawn(self._one(_beside(trial, following), landing), f"hedge {trial.call.id}")
        except asyncio.CancelledError:
            await self._leave(first)
            raise
        return await self._quicker(first, second)

    def _is_well(self, target: Target) -> bool:
        """Whether a place that need not be asked is worth it: it did not fail last, nor ask for patience meanwhile."""
        there = self._deployments.of(target)
        return not there.circuit.in_a_row and there.allows(self._monotonic())

    async def _quicker(self, first: "asyncio.Task[Live]", second: "asyncio.Task[Live]") -> Live:
        """The first answer of two; the other is given up, and its money settled as its provider bills."""
        running = {first, second}
        try:
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                good = [task for task in done if not task.cancelled() and task.exception() is None]
                if good:
                    for late in (*good[1:], *running):
                        await self._leave(late)
                    return good[0].result()
        except asyncio.CancelledError:
            for task in (first, second):
                await self._leave(task)
            raise
        return first.result()

    async def _leave(self, task: "asyncio.Task[Live]") -> None:
        await _given_up(task)
        if not task.cancelled() and task.exception() is None:
            await self.drop(task.result())

    async def drop(self, live: Live, ended: Ended = "cancelled", usage: Usage | None = None) -> None:
        """A begun answer that nobody will read: closed, and settled however this is interrupted.

        `usage`: where it is known already, else its provider is asked.
        """
        received = Usage(prompt=live.bound.input, completion=min(live.bound.output, text_size(live.first.data)))
        try:
            await live.rest.aclose()
            usage = usage or await live.provider.consumed(live.plan.id)
        finally:
            self.settle(live, usage, ended, received, "")

    async def _one(self, trial: Trial, landing: Landing) -> Live:
        unwanted = trial.route.chosen.fallback_on
        with self._failovers.watched(trial.target):
            live = await self._attempts.start(trial, landing)
            return await look_over(live, unwanted, self.drop) if unwanted else live

    def _hedge_after(self, trial: Trial) -> float | None:
        """Seconds of silence after which another candidate is asked as well."""
        hedge = trial.route.chosen.hedge
        if hedge is None or trial.call.operation not in ("chat", "completion") or trial.call.background:
            return None
        if isinstance(hedge, str):
            measured = self._deployments.of(trial.target).slow_ttft
            return max(_LEAST_HEDGE, measured) if measured > 0 else None
        return hedge


def took_off(landing: Landing, live: Live) -> Live:
    """This is the answer."""
    landing.provider, landing.model, landing.price = live.plan.provider, live.plan.model, live.price
    landing.answered = live.step
    return live


def _go_on(
    problem: errors.GatewayError, before: errors.GatewayError | None, route: Route, *, others: bool, late: bool
) -> errors.GatewayError:
    """What is told if no other place answers either. Raises it where none is to be asked; `before`: what another said.

    A budget refuses the request, unless another place has failed: then it only refuses this one, which is dearer.
    """
    if isinstance(problem, errors.InvalidRequest):
        if problem.code not in _NOT_THERE or not others:
            raise before or problem
        return before or problem
    if isinstance(problem, errors.NotPriced | errors.BudgetExhausted):
        if not others or (isinstance(problem, errors.BudgetExhausted) and not _has_failed(before)):
            raise problem
    elif late or not _worth_another(problem, route):
        raise problem
    return problem


def _has_failed(before: errors.GatewayError | None) -> bool:
    """Whether a place was asked in vain; one that has no price or is dearer than the client allows was not asked."""
    return before is not None and not isinstance(before, errors.NotPriced) and getattr(before, "code", "") != _TOO_DEAR


def _worth_another(problem: errors.GatewayError, route: Route) -> bool:
    if getattr(problem, "unwanted", False):
        return True
    refused = isinstance(problem, errors.UpstreamRefused)
    if refused and (problem.http_status in OURS_TO_MEND or _is_unwanted(problem, route)):
        return True
    return worth_retrying(problem.http_status, refused=refused)


def _may_pass(problem: errors.GatewayError) -> bool:
    """Whether the same place may answer the same request a moment later: not with our key that it does not know, not
    where it has no such thing, not where its answer is unwanted, which would be paid for once more.
    """
    refused = isinstance(problem, errors.UpstreamRefused)
    return not getattr(problem, "unwanted", False) and worth_retrying(problem.http_status, refused=refused)


def _is_unwanted(problem: errors.GatewayError, route: Route) -> bool:
    """A refusal of the content, or of its length, that the route wants tried elsewhere."""
    code = str(problem.detail().get("code") or "")
    on = route.chosen.fallback_on
    if "context" in on and code in ("context_length_exceeded", "string_above_max_length"):
        return True
    return "content_filter" in on and code in _FILTERED


def _beside(trial: Trial, target: Target) -> Trial:
    return Trial(call=trial.call, route=trial.route, target=target, prompt=trial.prompt, why="hedge")


async def _given_up(task: "asyncio.Task[Live]") -> None:
    """Cancelled, and waited for: its money is settled when this returns."""
    task.cancel()
    with suppress(asyncio.CancelledError, errors.GatewayError):
        await asyncio.wait([task])
