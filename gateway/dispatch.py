"""From a call to a begun answer: the candidates of its route in order, until one has sent its first chunk.

Knows the single failover rule: before the first chunk the next candidate may be tried, after it never.
Every attempt is held, journalled and ended on its own. Does not know: who waits for the answer, the cache, HTTP.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping

from msgspec import Struct, structs

from gateway import errors
from gateway.call import PASSED, Body, Call, Chunk
from gateway.catalog import Route, Target
from gateway.estimate import Bound, bound, within
from gateway.flights import Ended, Landing, Step
from gateway.ledger import AttemptPlan, Hold, Ledger, Settlement
from gateway.prices import PriceBook
from gateway.providers import Partial, Provider, Sending
from gateway.settings import Settings
from gateway.traces import traceparent_for
from policies.money import Price, Usage, bound_nano, usd
from policies.retry import RetryBudget, pause, worth_retrying
from policies.routing import rank

_MOST_ATTEMPTS = 3
_MOST_SHORTER = 3  # budgets that may each allow less than the one before


class Live(Struct, kw_only=True):
    """A begun answer: its first chunk is in hand, the rest is still to come, the money is held."""

    target: Target
    provider: Provider
    price: Price
    plan: AttemptPlan
    hold: Hold
    bound: Bound
    first: Chunk
    rest: AsyncGenerator[Chunk, None]
    step: Step


class Means(Struct, frozen=True, kw_only=True):
    """What a dispatcher works with."""

    providers: Mapping[str, Provider]
    prices: PriceBook
    ledger: Ledger


class Dispatcher:
    """Tries candidates. `random` yields numbers in [0, 1) for the jitter of retries."""

    def __init__(
        self, means: Means, settings: Settings, *, monotonic: Callable[[], float], random: Callable[[], float]
    ) -> None:
        self._providers = means.providers
        self._prices = means.prices
        self._ledger = means.ledger
        self._settings = settings
        self._monotonic = monotonic
        self._random = random
        self._gates = {name: asyncio.Semaphore(self._most(name)) for name in means.providers}
        self._retries = RetryBudget()

    def _most(self, name: str) -> int:
        found = self._settings.providers.get(name)
        return found.max_in_flight if found else self._settings.server.max_in_flight

    async def begin(self, call: Call, route: Route, landing: Landing) -> Live:
        """The first candidate that starts to answer. Raises the last GatewayError when none does."""
        candidates = self._ranked(call, route)
        self._retries.began()
        try:
            return await self._try_candidates(call, route, candidates, landing)
        finally:
            self._retries.ended()

    def quote(self, call: Call, route: Route) -> list[dict[str, object]]:
        """What each candidate would cost at worst, in the order they would be tried; nothing is sent or held."""
        limits = bound(call, self._settings.ledger.max_output_tokens)
        quotes: list[dict[str, object]] = []
        for target in self._ranked(call, route):
            price = self._price(call, route, target)
            worst = None if price is None else usd(bound_nano(limits.input, limits.output, price))
            version = None if price is None else price.id
            quotes.append({"target": str(target), "worst_case_usd": worst, "price": version})
        return quotes

    def _ranked(self, call: Call, route: Route) -> list[Target]:
        if len(route.targets) == 1:
            return list(route.targets)
        prices = [self._price(call, route, target) for target in route.targets]
        return [route.targets[i] for i in rank(route.strategy, prices)]

    async def _try_candidates(self, call: Call, route: Route, candidates: list[Target], landing: Landing) -> Live:
        error: errors.GatewayError | None = None
        for number in range(max(_MOST_ATTEMPTS, len(candidates))):
            if number >= len(candidates) and not await self._may_repeat(call, error, number - len(candidates)):
                break
            target = candidates[number % len(candidates)]
            try:
                return await self._try_once(call, route, target, landing)
            except errors.NotPriced as problem:
                if number + 1 >= len(candidates):
                    raise
                error = problem
            except (errors.UpstreamFailed, errors.Overloaded) as problem:
                error = problem
                if not worth_retrying(problem.http_status, refused=isinstance(problem, errors.UpstreamRefused)):
                    raise
        raise error or errors.UpstreamFailed("no candidate could be tried")

    async def _may_repeat(self, call: Call, error: errors.GatewayError | None, again: int) -> bool:
        """Whether the route may be walked once more, having waited as long as the upstream asked for."""
        wait = pause(again, self._random(), retry_after=getattr(error, "retry_after", None))
        if not self._retries.allows() or self._monotonic() + wait >= call.deadline:
            return False
        await asyncio.sleep(wait)
        return True

    async def _try_once(self, call: Call, route: Route, target: Target, landing: Landing) -> Live:
        provider = self._providers[target.provider]
        price = self._price(call, route, target)
        if price is None:
            raise errors.NotPriced(
                f"There is no price for {target}. Set one with `nearhit prices set {target} INPUT-USD OUTPUT-USD` "
                f"(per million tokens), or mark the model `free: true` in nearhit.yaml."
            )
        limits = bound(call, self._settings.ledger.max_output_tokens)
        plan = self._plan(call, target, price, limits, len(landing.steps) + 1)
        most = call.directives.max_cost_nano
        if most is not None and plan.reserve_nano > most:
            raise errors.InvalidRequest(
                f"This request could cost up to {usd(plan.reserve_nano)} USD at {target}; x-nearhit-max-cost-usd "
                f"allows {usd(most)}. Lower max_tokens or raise the header.",
                param="x-nearhit-max-cost-usd",
                code="max_cost_exceeded",
            )
        gate = self._gates[target.provider]
        await self._enter(gate, call, target)
        try:
            return await self._send(call, plan, provider, price, limits, landing)
        except BaseException:
            gate.release()
            raise

    async def _enter(self, gate: asyncio.Semaphore, call: Call, target: Target) -> None:
        if not gate.locked():
            await gate.acquire()
            return
        try:
            async with asyncio.timeout(max(0.0, call.deadline - self._monotonic())):
                await gate.acquire()
        except TimeoutError:
            raise errors.Overloaded(f"Too many requests wait for {target.provider}.", headers=_LATER) from None

    def _plan(self, call: Call, target: Target, price: Price, limits: Bound, number: int) -> AttemptPlan:
        return AttemptPlan(
            id=f"{call.id}.{number}",
            request_id=call.id,
            provider=target.provider,
            model=target.model,
            price=price,
            reserve_nano=bound_nano(limits.input, limits.output, price),
            input_bound=limits.input,
            max_output=limits.output,
            billing=self._providers[target.provider].billing,
        )

    async def _send(
        self, call: Call, plan: AttemptPlan, provider: Provider, price: Price, limits: Bound, landing: Landing
    ) -> Live:
        step = Step(id=plan.id, provider=plan.provider, model=plan.model, held_at=self._monotonic())
        hold, limits = await self._hold(call, plan, limits, landing)
        plan = hold.plan
        landing.steps.append(step)
        landing.billing = provider.billing
        landing.capped = limits.injected
        step.sent_at = self._monotonic()
        chunks = provider.send(self._sending(call, plan, limits, step.sent_at))
        try:
            first = await anext(chunks)
        except errors.GatewayError as problem:
            step.result, step.ended_at = problem.code or "failed", self._monotonic()
            step.cost_nano = self._close(hold, plan, problem)
            raise
        except asyncio.CancelledError:
            step.result, step.ended_at = "cancelled", self._monotonic()
            step.cost_nano = self._ledger.settle(hold, self._given_up(plan))
            raise
        except (StopAsyncIteration, Partial):
            step.result, step.ended_at = "empty", self._monotonic()
            step.cost_nano = self._ledger.settle(hold, self._doubtful(plan))
            raise errors.UpstreamFailed(f"{plan.provider} ended its answer before it began.") from None
        step.first_chunk_at = self._monotonic()
        landing.provider, landing.model, landing.price = plan.provider, plan.model, price
        return Live(
            target=Target(plan.provider, plan.model),
            provider=provider,
            price=price,
            plan=plan,
            hold=hold,
            bound=limits,
            first=first,
            rest=chunks,
            step=step,
        )

    async def _hold(self, call: Call, plan: AttemptPlan, limits: Bound, landing: Landing) -> tuple[Hold, Bound]:
        """Reserve; where the budget is too small for an answer of the usual length, as long a one as it can pay for.

        Only where the client named no length itself.
        """
        landing.short = ""
        for _ in range(_MOST_SHORTER):
            try:
                return await self._ledger.hold(call, plan), limits
            except errors.BudgetExhausted as refusal:
                shorter = within(limits, plan.price, refusal.headroom)
                if shorter is None:
                    raise
                limits, landing.short = shorter, refusal.scope
                reserve = bound_nano(limits.input, limits.output, plan.price)
                plan = structs.replace(plan, reserve_nano=reserve, max_output=limits.output)
        return await self._ledger.hold(call, plan), limits

    def _sending(self, call: Call, plan: AttemptPlan, limits: Bound, now: float) -> Sending:
        found = self._settings.providers.get(plan.provider)
        patience = found.first_chunk_timeout if found else _ENGINE_PATIENCE
        return Sending(
            id=plan.id,
            operation=call.operation,
            model=plan.model,
            body=self._body(call, plan, limits),
            stream=call.stream,
            tenant=f"{call.principal.team}/{call.principal.project}",
            # A whole body is one chunk that comes when all is done, so only the call's own deadline bounds it.
            timeout=max(0.001, min(patience, call.deadline - now) if call.stream else call.deadline - now),
            idle=found.idle_timeout if found else _ENGINE_PATIENCE,
            background=call.background,
            traceparent=traceparent_for(call, plan.id, self._settings.telemetry.sample) if found else None,
        )

    def _body(self, call: Call, plan: AttemptPlan, limits: Bound) -> Body:
        body = _prepared(call, plan.model, limits)
        if call.background:
            tier, told = self._tier(call, Target(plan.provider, plan.model))
            if told:
                body["service_tier"] = tier
        return body

    def _close(self, hold: Hold, plan: AttemptPlan, problem: errors.GatewayError) -> int:
        """End the money of an attempt that never answered: nothing where it provably cost nothing, else the bound."""
        if isinstance(problem, errors.UpstreamTimeout) or (
            isinstance(problem, errors.UpstreamFailed) and problem.doubtful
        ):
            return self._ledger.settle(hold, self._doubtful(plan))
        self._ledger.void(hold, problem.code or "failed")
        return 0

    @staticmethod
    def _doubtful(plan: AttemptPlan) -> Settlement:
        """Sent, and never heard of again: the provider may bill all of it."""
        worst = Usage(prompt=plan.input_bound, completion=plan.max_output)
        return Settlement(usage=worst, source="upper_bound", ended="failed", provider_id="")

    @staticmethod
    def _given_up(plan: AttemptPlan) -> Settlement:
        """Closed before the first chunk: an upstream that stops at the close has read the prompt and hardly begun."""
        output = plan.max_output if plan.billing == "bills-anyway" else min(plan.max_output, _BEGUN_TOKENS)
        usage = Usage(prompt=plan.input_bound, completion=output)
        return Settlement(usage=usage, source="estimated", ended="cancelled", provider_id="")

    def _price(self, call: Call, route: Route, target: Target) -> Price | None:
        if route.free:
            return FREE
        tier, _ = self._tier(call, target)
        return self._prices.price(target.provider, self._kind(target.provider), target.model, call.at, tier=tier)

    def _tier(self, call: Call, target: Target) -> tuple[str, bool]:
        """The service tier it is charged by, and whether the upstream is to be told so by us."""
        asked = call.body.get("service_tier")
        if call.background and asked in (None, "auto"):
            return self._prices.background_tier(target.provider, self._kind(target.provider), target.model, call.at)
        return str(asked or "default"), False

    def _kind(self, provider: str) -> str:
        found = self._settings.providers.get(provider)
        return found.kind if found else "local"

    def release(self, live: Live) -> None:
        """Give back the place of an answer that has ended."""
        self._gates[live.target.provider].release()

    def settle(self, live: Live, usage: Usage | None, ended: Ended, received: Usage, provider_id: str) -> int:
        """Post what a begun answer cost. `usage` is the provider's own count; without it, what was `received`."""
        source = "engine" if self._kind(live.target.provider) == "local" else "provider"
        if usage is None:
            source = "estimated" if live.provider.billing == "stops-on-close" or ended == "complete" else "upper_bound"
            usage = received if source == "estimated" else Usage(prompt=live.bound.input, completion=live.bound.output)
        settlement = Settlement(usage=usage, source=source, ended=ended, provider_id=provider_id)
        live.step.cost_nano = self._ledger.settle(live.hold, settlement)
        live.step.result, live.step.ended_at = ended, self._monotonic()
        return live.step.cost_nano


_ENGINE_PATIENCE = 120.0
_BEGUN_TOKENS = 256
_LATER = (("retry-after", "1"),)
FREE = Price(id="free", input=0, output=0, cached_input=0, cache_write=0, status="free")


def _prepared(call: Call, model: str, limits: Bound) -> Body:
    """The client's own request with the upstream's model name, a bounded output and usage asked for."""
    body = dict(call.body)
    body["model"] = model
    if limits.injected is not None:
        body[limits.field] = limits.injected
    if call.operation == "embedding" or call.operation in PASSED:
        return body
    if call.stream:
        options = body.get("stream_options")
        body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
    else:
        body.pop("stream", None)
        body.pop("stream_options", None)
    return body
