"""One attempt at one target: held, journalled, sent, and ended exactly once.

Knows: the money of an attempt, the gate of its provider, what its end says about the place it was sent to.
Does not know: which target comes next, who waits for the answer, HTTP.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Literal

import structlog
from msgspec import Struct, structs

from gateway import errors
from gateway.call import Body, Call, Chunk
from gateway.catalog import Route, Target
from gateway.charging import Charging, worst
from gateway.deployments import Deployment, Deployments, Told
from gateway.estimate import Bound, bound, within
from gateway.flights import Ended, Landing, Step
from gateway.ledger import AttemptPlan, Hold, Ledger, Settlement, doubtful, given_up
from gateway.outgoing import outgoing
from gateway.prices import PriceBook
from gateway.providers import Partial, Provider, Sending
from gateway.traces import traceparent_for
from gateway.upstreams import Upstreams
from policies.money import Price, Usage, unpriced, usd

log = structlog.get_logger("nearhit.attempts")
_MOST_SHORTER = 3  # budgets that may each allow less than the one before
_ENGINE_PATIENCE = 120.0
_TICK = 0.01  # seconds; a timer may fire so early
_LATER = (("retry-after", "1"),)


class Trial(Struct, frozen=True, kw_only=True):
    """What is to be tried. `prompt`: tokens expected, for the place's load; `why`: where it is not plainly next."""

    call: Call
    route: Route
    target: Target
    prompt: int = 0
    why: str = ""


class Live(Struct, kw_only=True):
    """A begun answer: its first chunk is in hand, the rest is still to come, the money is held.

    `gate`: the place among the requests of its provider that it takes. `price`: by what has been told so far.
    """

    target: Target
    provider: Provider
    price: Price
    plan: AttemptPlan
    hold: Hold
    bound: Bound
    first: Chunk
    rest: AsyncGenerator[Chunk, None]
    step: Step
    gate: asyncio.Semaphore
    deployment: Deployment
    trial: Trial


class Attempts:
    """One per worker."""

    def __init__(
        self,
        upstreams: Upstreams,
        deployments: Deployments,
        prices: PriceBook,
        ledger: Ledger,
        *,
        monotonic: Callable[[], float],
    ) -> None:
        self._upstreams = upstreams
        self._deployments = deployments
        self.charging = Charging(upstreams, prices)
        self._ledger = ledger
        self._monotonic = monotonic

    def limits(self, call: Call, route: Route, target: Target) -> Bound:
        def window() -> int | None:
            told = next((entry.context for entry in route.chosen.route if entry.to == str(target)), None)
            return told or self._upstreams.window(target)

        most = self._upstreams.settings.ledger.max_output_tokens
        return bound(call, min(most, self._upstreams.loaded(target) or most), target.model, window)

    async def start(self, trial: Trial, landing: Landing) -> Live:
        """Send it; the answer has begun when this returns. Raises GatewayError, with everything given back."""
        call, target = trial.call, trial.target
        provider = self._upstreams.of(target)
        if provider is None:
            raise errors.UpstreamFailed(f"{target.told} is no longer configured.")
        limits = self.limits(call, trial.route, target)
        plan = self._plan(trial, provider, limits, landing.tried + 1)
        most = call.directives.max_cost_nano
        if most is not None and plan.reserve_nano > most:
            raise errors.InvalidRequest(
                f"This request could cost up to {usd(plan.reserve_nano)} USD at {target}; x-nearhit-max-cost-usd "
                f"allows {usd(most)}. Lower max_tokens or raise the header.",
                param="x-nearhit-max-cost-usd",
                code="max_cost_exceeded",
            )
        landing.tried += 1
        # Now, not once it is sent: who chooses in the meantime has to see it.
        # What was made elsewhere tells nothing of the place.
        place = self._deployments.of(target) if call.given is None else Deployment(target, 0)
        report = _Report(deployment=place, prompt=trial.prompt)
        report.deployment.sent(trial.prompt, self._monotonic())
        gate = self._upstreams.gate(target.provider)
        try:
            if not gate.enter():
                await self._wait_for(gate, call, target)
            try:
                return await self._send(trial, plan, limits, landing, _Way(provider, gate, report))
            except BaseException:
                gate.release()
                raise
        finally:
            report.end("nothing", self._monotonic())

    def apart(self, call: Call, route: Route, target: Target) -> tuple[AttemptPlan, Sending]:
        """What a request of a provider's own batch is, and may cost. Raises GatewayError for what cannot be sent."""
        if (provider := self._upstreams.of(target)) is None:
            raise errors.UpstreamFailed(f"{target.told} is no longer configured.")
        limits = self.limits(call, route, target)
        plan = self._plan(Trial(call=call, route=route, target=target), provider, limits, 1)
        return plan, self._sending(call, plan, limits, self._monotonic())

    async def _wait_for(self, gate: asyncio.Semaphore, call: Call, target: Target) -> None:
        try:
            async with asyncio.timeout(max(0.0, call.deadline - self._monotonic())):
                await gate.acquire()
        except TimeoutError:
            raise errors.Overloaded(f"Too many requests wait for {target.provider}.", headers=_LATER) from None

    def _plan(self, trial: Trial, provider: Provider, limits: Bound, number: int) -> AttemptPlan:
        """Raises NotPriced, and NotAllowed for other models than the key is for."""
        call, target = trial.call, trial.target
        self.charging.check_key(call, (target,))
        price = self.charging.priced(call, trial.route, target)
        return AttemptPlan(
            id=f"{call.id}.{number}",
            request_id=call.id,
            provider=target.provider,
            model=target.model,
            price=price,
            reserve_nano=self.charging.reserve(call, trial.route, target, price, limits),
            input_bound=limits.input,
            max_output=limits.output,
            billing=provider.billing,
        )

    async def _send(self, trial: Trial, plan: AttemptPlan, limits: Bound, landing: Landing, way: "_Way") -> Live:
        call, provider, report = trial.call, way.provider, way.report
        step = Step(id=plan.id, provider=plan.provider, model=plan.model, billing=plan.billing)
        step.held_at, step.replica, step.why = self._monotonic(), trial.target.replica, trial.why
        hold, limits = await self._hold(call, plan, limits, landing)
        plan = hold.plan
        landing.steps.append(step)
        landing.capped = limits.injected
        now = self._monotonic()
        if now >= call.deadline:
            step.result, step.ended_at, step.settled = "deadline_exceeded", now, True
            self._ledger.void(hold, "too late to send")
            raise errors.OutOfTime(f"The {_allowed(call)} were over before it could be sent to {plan.provider}.")
        step.sent_at = now
        sending = self._sending(call, plan, limits, step.sent_at)
        step.keys = sending.keys
        try:
            first, chunks = await self._first(provider, sending, hold, step, report)
        except errors.UpstreamTimeout as problem:
            if step.ended_at >= call.deadline - _TICK:  # our own hurry: whoever reads this must not blame the upstream
                problem.message = f"The {_allowed(call)} were over before {plan.provider} had answered."
            raise
        report.began(step.first_chunk_at - step.sent_at, step.first_chunk_at)
        return Live(
            target=trial.target,
            provider=provider,
            price=self.charging.told(call, plan, first.data, plan.price),
            plan=plan,
            hold=hold,
            bound=limits,
            first=first,
            rest=chunks,
            step=step,
            gate=way.gate,
            deployment=report.deployment,
            trial=trial,
        )

    def told(self, live: Live, chunk: Chunk) -> None:
        """What the end of an answer says of its service tier holds: a stream's beginning may not know it yet."""
        live.price = self.charging.told(live.trial.call, live.plan, chunk.data, live.price)

    async def _first(
        self, provider: Provider, sending: Sending, hold: Hold, step: Step, report: "_Report"
    ) -> tuple[Chunk, AsyncGenerator[Chunk, None]]:
        """The first chunk, or the attempt ended, its money too, and its place told what that says about it."""
        plan, chunks = hold.plan, provider.send(sending)
        try:
            first = await anext(chunks)
        except errors.GatewayError as problem:
            step.result, step.ended_at = problem.code or "failed", self._monotonic()
            step.settled = errors.in_doubt(problem)
            told, patience = self._verdict(problem, sending, step)
            report.end(told, step.ended_at, patience)
            if step.settled:
                await self._pay(provider, hold, step, doubtful(plan))
            else:
                self._ledger.void(hold, problem.code or "failed")
            raise
        except asyncio.CancelledError:
            step.result, step.ended_at, step.settled = "cancelled", self._monotonic(), True
            report.end("nothing", step.ended_at)
            await self._pay(provider, hold, step, given_up(plan, streamed=sending.stream))
            raise
        except Exception as problem:
            empty = isinstance(problem, StopAsyncIteration | Partial)
            step.result, step.ended_at, step.settled = "empty" if empty else "broken", self._monotonic(), True
            report.end("failed", step.ended_at)
            await self._pay(provider, hold, step, doubtful(plan))
            if not empty:  # a mistake of ours: told as one, but its money is not held for ever
                raise
            raise errors.UpstreamFailed(f"{plan.provider} ended its answer before it began.") from None
        step.first_chunk_at = self._monotonic()
        return first, chunks

    def _verdict(self, problem: errors.GatewayError, sending: Sending, step: Step) -> tuple[Told, float | None]:
        """What a refusal or failure says about the place: our own hurry says nothing."""
        if isinstance(problem, errors.UpstreamRefused):
            told = "unknown" if problem.lacks_model else _SAYS.get(problem.http_status, "nothing")
            return told, problem.retry_after
        if isinstance(problem, errors.UpstreamTimeout):
            problem.hurried = step.ended_at - step.sent_at < self._patience(sending.stream, step.provider) - 0.05
            return ("nothing" if problem.hurried else "failed"), None
        return ("failed" if isinstance(problem, errors.UpstreamFailed) else "nothing"), None

    def _bound(self, stream: bool, provider: str, otherwise: float) -> float:
        """The longest wait for the first chunk; of a whole answer, which comes when all is done, only as configured."""
        found = self._upstreams.settings.providers.get(provider)
        if stream:
            return found.first_chunk_timeout if found else _ENGINE_PATIENCE
        return (found.answer_timeout if found else None) or otherwise

    def _patience(self, stream: bool, provider: str) -> float:
        """Silence from which on the place is to blame, and not the client's hurry."""
        return self._bound(stream, provider, _ENGINE_PATIENCE)

    async def _hold(self, call: Call, plan: AttemptPlan, limits: Bound, landing: Landing) -> tuple[Hold, Bound]:
        """Reserve; where the budget is too small for an answer of the usual length, as long a one as it can pay for.

        Only where the client named no length itself; and what nobody waits for waits for what others hold instead.
        """
        landing.short = ""
        for _ in range(_MOST_SHORTER):
            try:
                return await self._ledger.hold(call, plan), limits
            except errors.BudgetExhausted as refusal:
                waits = refusal.held_up and call.background and call.given is None
                shorter = None if waits else within(limits, plan.price, refusal.headroom)
                if shorter is None:
                    raise
                limits, landing.short = shorter, refusal.scope
                reserve = worst(limits, plan.price)
                plan = structs.replace(plan, reserve_nano=reserve, max_output=limits.output)
        return await self._ledger.hold(call, plan), limits

    def _sending(self, call: Call, plan: AttemptPlan, limits: Bound, now: float) -> Sending:
        settings = self._upstreams.settings
        found = settings.providers.get(plan.provider)
        left = call.deadline - now
        return Sending(
            id=plan.id,
            operation=call.operation,
            model=plan.model,
            body=self._body(call, plan, limits),
            stream=call.stream,
            tenant=f"{call.principal.team}/{call.principal.project}",
            timeout=max(0.001, min(self._bound(call.stream, plan.provider, left), left)),
            idle=found.idle_timeout if found else _ENGINE_PATIENCE,
            background=call.background,
            native=call.native,
            given=call.given,
            traceparent=traceparent_for(call, plan.id, settings.telemetry.sample) if found else None,
        )

    def _body(self, call: Call, plan: AttemptPlan, limits: Bound) -> Body:
        body = outgoing(call, plan.model, limits)
        if call.background:
            tier, told = self.charging.tier(call, Target(plan.provider, plan.model))
            if told:
                body["service_tier"] = tier.partition("+")[0]
        return body

    async def _pay(self, provider: Provider, hold: Hold, step: Step, guess: Settlement) -> None:
        """End the money of an attempt that was sent and never answered: by its provider's own count, else by a guess.

        Settled however this is interrupted.
        """
        try:
            step.counted = await provider.consumed(step.id)
        finally:
            if step.counted is not None:
                step.exact = hold.plan.price.status != "assumed"
                guess = structs.replace(guess, usage=step.counted, source=self._source(step.provider))
            step.cost_nano = self._ledger.settle(hold, guess)

    def _source(self, provider: str) -> Literal["engine", "provider"]:
        """Who counted."""
        return "engine" if self._upstreams.kind(provider) == "local" else "provider"

    def settle(self, live: Live, usage: Usage | None, ended: Ended, received: Usage, provider_id: str) -> int:
        """Post what a begun answer cost and give back its place. `usage`: the provider's own count; else `received`.

        Only the first time: whoever gives an answer up may be interrupted while doing so.
        """
        if live.hold.ended:
            return live.hold.amount
        live.gate.release()
        source = self._source(live.target.provider)
        if usage is None:
            source = "estimated" if live.provider.billing == "stops-on-close" or ended == "complete" else "upper_bound"
            usage = received if source == "estimated" else Usage(prompt=live.bound.input, completion=live.bound.output)
        other = None if live.price is live.plan.price else live.price
        settlement = Settlement(usage=usage, source=source, ended=ended, provider_id=provider_id, price=other)
        step = live.step
        step.counted = usage if source in ("engine", "provider") else None
        fees = 0 if step.counted is None else unpriced(usage, live.price)
        step.exact = step.counted is not None and live.price.status != "assumed" and not fees
        if fees:
            log.warning("a service asked a fee that has no price here", attempt=step.id, of=step.model, times=fees)
        step.cost_nano = self._ledger.settle(live.hold, settlement)
        step.result, step.ended_at, step.settled = ended, self._monotonic(), True
        if ended == "complete":
            live.deployment.wrote(usage.completion - 1, step.ended_at - step.first_chunk_at, step.ended_at)
        told: Told = "succeeded" if ended == "complete" else "failed" if ended == "cut" else "nothing"
        live.deployment.ended(told, step.ended_at)
        return step.cost_nano


# What a refusal says about the place; 403 may be about the request.
_SAYS: dict[int, Told] = {401: "refused", 402: "refused", 429: "patience"}


def _allowed(call: Call) -> str:
    return f"{call.deadline - call.received:g} s that this request may take"


class _Report(Struct, kw_only=True):
    """Tells a place once what became of an attempt that was sent there: that it began, or that it never did."""

    deployment: Deployment
    prompt: int
    told: bool = False

    def began(self, ttft: float, now: float) -> None:
        self.told = True
        self.deployment.began(self.prompt, ttft, now)

    def end(self, told: Told, now: float, patience: float | None = None) -> None:
        if not self.told:
            self.told = True
            self.deployment.ended(told, now, prompt=self.prompt, patience=patience)


class _Way(Struct, frozen=True):
    """Who is asked, at which gate, and who is told how it went."""

    provider: Provider
    gate: asyncio.Semaphore
    report: _Report
