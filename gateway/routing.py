"""Which places a request can go to and in which order: a route and the state of its targets, as the strategies see it.

Knows: what a request needs (tokens, tools, pictures, a schema), who it belongs to, which places stay together with it.
Does not know: how strategies weigh (`policies.routing`), how anything is sent or measured.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

from msgspec import Struct, structs

from gateway.call import Body, Call, Need
from gateway.catalog import Route, Target
from gateway.deployments import Deployment, Deployments
from gateway.errors import GatewayError, InvalidRequest, Overloaded, UpstreamRefused, wait_headers
from gateway.estimate import asked_output
from gateway.model_settings import RouteEntry
from gateway.prompt_text import prompt_text
from gateway.providers import Cannot
from gateway.upstreams import Upstreams
from policies.money import Price
from policies.routing import (
    CAPABILITIES,
    IMAGES,
    JSON_SCHEMA,
    TOOLS,
    Asked,
    Place,
    Ranking,
    brought_forward,
    home_of,
    rank,
    strategy,
)
from policies.routing.affinity import numbers
from policies.routing.beginnings import ENDS, beginnings
from policies.routing.draws import fraction, mixed, number_of

_BYTES_PER_TOKEN = 4  # of a usual prompt; only compared and told, never charged
_SMALL = 8 << 10  # bytes of a request that are counted whole, pictures or not
_USUAL_OUTPUT, _LONG_OUTPUT = 256, 2_048  # tokens of an answer whose length nobody named, and the most that counts
_MOST_PLANS = 2_048
_MOST_HOMES = 4_096  # sessions of a route whose home is remembered
_REFRESHED = 1.0  # seconds
OF_SEVERAL = ("cascade", "ensemble")
_BY_SPEED = ("fastest", "slo")


class Choice(Struct, frozen=True, kw_only=True):
    """`targets` in this order, and why. `keys`: of the beginnings of the prompt, where they count.

    `instead_of`: the strategy of the route, where a budget wants it cheap.
    """

    targets: list[Target]
    ranking: Ranking
    asked: Asked
    keys: list[int] = []
    instead_of: str = ""

    def told(self) -> dict[str, object]:
        """For people."""
        told = self.ranking.told()
        return told | {"instead_of": self.instead_of} if self.instead_of else told

    def to_read(self, number: int) -> int:
        """Tokens of the prompt that this target is believed not to hold yet."""
        held = self.asked.matched[self.ranking.order[number].number] if self.asked.matched else 0
        return max(1, self.asked.prompt - held)


class _Plan:
    """A route laid out: its places in written order, each with its target and deployment."""

    def __init__(self, route: Route, rows: list[tuple[Place, Deployment]], generation: int) -> None:
        self.route = route
        self.places = [place for place, _ in rows]
        self.deployments = [deployment for _, deployment in rows]
        self.targets = [deployment.target for _, deployment in rows]
        self.numbers = {deployment.number: place.number for place, deployment in rows}
        self.bits = sum(1 << number for number in self.numbers)
        self.looked_at = 0.0
        self.generation = generation
        self.lacking = any(place.lacks for place in self.places)
        self.equals = any(place.beside for place in self.places)
        self.priced: tuple[str, object, int, int] | None = None
        self.picky: dict[Cannot, list[Place]] = {}
        self.speaks: list[str] = []  # of the places, in order: the dialect that each takes as it came
        self._homes: dict[int, Place] = {}
        # Where there is nothing to choose, and nothing is remembered of what was sent there.
        self.alone: Ranking | None = None
        if len(rows) == 1 and route.chosen.strategy != "prefix_affine":
            self.alone = Ranking(strategy=strategy("ordered"), order=self.places, costs=[], left_out=[])

    def home(self, session: int, order: Sequence[Place]) -> Place:
        """Where a session lives: the best of all places is the best of those that are left, if it is among them."""
        home = self._homes.get(session)
        if home is None:
            if len(self._homes) >= _MOST_HOMES:
                self._homes.clear()
            home = self._homes[session] = home_of(session, self.places)
        return home if any(place is home for place in order) else home_of(session, order)

    def leave(self) -> None:
        """Another plan takes its place: nobody needs to keep these places current."""
        for place, deployment in zip(self.places, self.deployments, strict=True):
            deployment.places = [other for other in deployment.places if other is not place]


class Router:
    """One per worker. `random` gives numbers in [0, 1); `price` what a target costs a call."""

    def __init__(
        self,
        upstreams: Upstreams,
        deployments: Deployments,
        price: Callable[[Call, Route, Target], Price | None],
        *,
        monotonic: Callable[[], float],
        random: Callable[[], float],
    ) -> None:
        self._upstreams = upstreams
        self._deployments = deployments
        self._price = price
        self._monotonic = monotonic
        self._random = random
        self._plans: dict[str, _Plan] = {}

    def choose(self, call: Call, route: Route, *, cheapest: bool = False) -> Choice:
        """The order in which to try. Raises as `weigh` does."""
        plan = self._plan(route)
        return self._only(call, plan) or self.weigh(call, route, cheapest=cheapest)

    def _only(self, call: Call, plan: _Plan) -> Choice | None:
        """Of a route to one place, which is most routes; None where something may stand against it."""
        if plan.alone is None or call.need is not None:
            return None
        place, prompt = plan.places[0], max(1, _text_bytes(call) // _BYTES_PER_TOKEN)
        if place.shut_until or place.lacks or 0 < place.context < prompt + _LONG_OUTPUT:
            return None
        now = self._monotonic()
        self._refresh(plan, now, speed=False)
        asked = Asked(prompt=prompt, output=_LONG_OUTPUT, now=now)
        return Choice(targets=plan.targets, ranking=plan.alone, asked=asked)

    def weigh(self, call: Call, route: Route, *, cheapest: bool = False) -> Choice:
        """The order in which to try, and what each place was thought to cost.

        Raises InvalidRequest where no place can do what is asked, and where every place is to be left alone, the
        refusal that says until when.
        """
        now, plan, chosen = self._monotonic(), self._plan(route), route.chosen
        name = "cheapest" if cheapest else chosen.strategy
        name = "ordered" if name in OF_SEVERAL else name
        asked, keys = self._asked(call, plan, now), list[int]()
        if name == "prefix_affine":
            asked, keys = self._matched(call, plan, asked)
        self._refresh(plan, now, speed=name in _BY_SPEED)
        if name in ("cheapest", "slo"):
            self._set_prices(plan, call, route)
        ranking = rank(strategy(name), asked, plan.places, equals=plan.equals)
        if call.need is not None:
            ranking = _speaking(ranking, call, plan, call.need)
        if plan.picky:
            ranking = _able(ranking, call, plan)
        if not ranking.order:
            ranking = self._anywhere(ranking, asked, plan)
        ranking = self._kept_together(ranking, asked, route, plan)
        targets = [plan.targets[place.number] for place in ranking.order]
        instead_of = chosen.strategy if cheapest else ""
        return Choice(targets=targets, ranking=ranking, asked=asked, keys=keys, instead_of=instead_of)

    def sent(self, choice: Choice, target: Target) -> None:
        """The prompt is being sent there: its beginning will be in that place's cache."""
        if choice.keys:
            self._deployments.held.note(choice.keys, self._deployments.of(target).number, self._monotonic())

    def _plan(self, route: Route) -> _Plan:
        plan = self._plans.get(route.name)
        if plan is None or plan.route is not route or plan.generation != self._upstreams.generation:
            if len(self._plans) >= _MOST_PLANS or (plan is not None and plan.generation != self._upstreams.generation):
                self._plans.clear()
                self._deployments.forget_places()
            elif plan is not None:
                plan.leave()
            plan = self._plans[route.name] = self._laid_out(route)
        return plan

    def _laid_out(self, route: Route) -> _Plan:
        rows: list[tuple[Place, Deployment]] = []
        entries = [*route.chosen.route]
        if route.chosen.canary is not None and all(entry.to != route.chosen.canary.to for entry in entries):
            entries.append(RouteEntry(to=route.chosen.canary.to, weight=0.0))
        for entry in entries:
            provider, _, model = entry.to.partition("/")
            for beside, target in enumerate(self._upstreams.spread(Target(provider, model))):
                deployment, place = self._deployments.of(target), self._place(entry, target, len(rows))
                place.beside = beside
                rows.append((place, deployment))
        for place, deployment in rows:
            deployment.attach(place)
        plan = _Plan(route, rows, self._upstreams.generation)
        plan.speaks = [getattr(self._upstreams.of(deployment.target), "speaks", "") for _, deployment in rows]
        if len(rows) > 1:  # a lone place says itself what it cannot do
            for place, deployment in rows:
                cannot: Cannot | None = getattr(self._upstreams.of(deployment.target), "cannot", None)
                if cannot is not None:
                    plan.picky.setdefault(cannot, []).append(place)
        return plan

    def _place(self, entry: RouteEntry, target: Target, number: int) -> Place:
        context = entry.context or self._upstreams.window(target) or 0
        lacks = sum(CAPABILITIES[name] for name in entry.lacks)
        return Place(name=target.told, number=number, weight=entry.weight, context=context, lacks=lacks)

    def _asked(self, call: Call, plan: _Plan, now: float) -> Asked:
        chosen = plan.route.chosen
        draw = int(self._random() * (1 << 53)) << 11
        return Asked(
            prompt=max(1, _text_bytes(call) // _BYTES_PER_TOKEN),
            output=min(_LONG_OUTPUT, asked_output(call, _USUAL_OUTPUT)),
            needs=_needs(call.body) if plan.lacking and call.operation == "chat" else 0,
            draw=draw,
            session=_session(call, chosen.sticky),
            ttft_ms=chosen.slo.ttft * 1e3,
            tpot_ms=chosen.slo.tpot * 1e3,
            now=now,
        )

    def _refresh(self, plan: _Plan, now: float, *, speed: bool) -> None:
        """What is old falls out of what is known of the places: once a second, speeds whenever somebody chooses by
        them.
        """
        if speed or now - plan.looked_at >= _REFRESHED:
            plan.looked_at = now
            for deployment in plan.deployments:
                deployment.refresh(now, speed=speed)

    def _set_prices(self, plan: _Plan, call: Call, route: Route) -> None:
        """At most once a second for a tier: prices change that slowly, or say so by their generation."""
        key = (call.tier, call.region, self._upstreams.prices_read(), int(call.at))
        if plan.priced != key:
            plan.priced = key
            for place, deployment in zip(plan.places, plan.deployments, strict=True):
                place.price = self._price(call, route, deployment.target)

    def _matched(self, call: Call, plan: _Plan, asked: Asked) -> tuple[Asked, list[int]]:
        """The same with how much of the prompt each place is believed to hold; the keys of its beginnings."""
        text = prompt_text(call.body)
        keys = beginnings(text, f"{call.principal.team}/{call.principal.project}")
        tokens = [0] * len(plan.places)
        for holders, count in self._deployments.held.groups(keys, asked.now):
            held = asked.prompt * ENDS[count - 1] // len(text)
            if not plan.bits & ~holders:
                tokens = [held] * len(plan.places)
                continue
            for number in numbers(holders & plan.bits):
                tokens[plan.numbers[number]] = held
        return structs.replace(asked, matched=tokens), keys

    def _kept_together(self, ranking: Ranking, asked: Asked, route: Route, plan: _Plan) -> Ranking:
        """A canary's share first, a session at its home."""
        chosen, order = route.chosen, ranking.order
        if chosen.canary is not None and len(order) > 1:
            drawn = fraction(mixed(asked.session if asked.session is not None else asked.draw, number_of(route.name)))
            canary = [place for place in order if str(plan.targets[place.number]) == chosen.canary.to]
            if canary and drawn < chosen.canary.share:
                home = canary[0] if asked.session is None else home_of(asked.session, canary)
                return brought_forward(ranking, home, "canary")
            if 0 < len(canary) < len(order) and all(entry.to != chosen.canary.to for entry in chosen.route):
                ranking = _without(ranking, {id(place): "canary of others" for place in canary})
                order = ranking.order
        if asked.session is not None and len(order) > 1:
            return brought_forward(ranking, plan.home(asked.session, order), "session")
        return ranking

    def _anywhere(self, ranking: Ranking, asked: Asked, plan: _Plan) -> Ranking:
        """Nobody is left: where only our guess of the length is against it, the largest window may say for itself."""
        short = [place for place, why in ranking.left_out if why == "context"]
        if short and all(why == "context" or why.startswith("refuses ") for _, why in ranking.left_out):
            largest = max(short, key=lambda place: place.context)
            rest = [(place, why) for place, why in ranking.left_out if place is not largest]
            (cost,) = ranking.strategy.costs(asked, [largest])
            return Ranking(
                strategy=ranking.strategy, order=[largest], costs=[cost], left_out=rest, first="largest window"
            )
        refusal = _refusal(ranking, asked, plan)
        refusal.routing = ranking.told()
        raise refusal


def _speaking(ranking: Ranking, call: Call, plan: _Plan, need: Need) -> Ranking:
    """Only the places that take the client's request as it came. Raises InvalidRequest where there is none."""
    dialect = call.native.dialect if call.native is not None else None
    able = [place for place, speaks in zip(plan.places, plan.speaks, strict=True) if speaks == dialect]
    if not able:
        raise need.refusal()
    kept, why = {place.number for place in able}, f"refuses {need.param}"
    ranking = _without(ranking, {id(place): why for place in plan.places if place.number not in kept})
    left_out = [(place, told if place.number in kept else why) for place, told in ranking.left_out]
    return structs.replace(ranking, left_out=left_out)


def _able(ranking: Ranking, call: Call, plan: _Plan) -> Ranking:
    """Without the places whose provider would refuse the request, unless all of them would: each says best why."""
    refused = {
        id(place): f"refuses {what}"
        for cannot, places in plan.picky.items()
        if (what := cannot(call.operation, call.body, call.native))
        for place in places
    }
    return _without(ranking, refused) if 0 < len(refused) < len(plan.places) else ranking


def _without(ranking: Ranking, reasons: Mapping[int, str]) -> Ranking:
    """`reasons`: by the id of the place that is left out."""
    rows = zip(ranking.order, ranking.costs, strict=True)
    kept = [(place, cost) for place, cost in rows if id(place) not in reasons]
    left_out = [(place, reasons[id(place)]) for place in ranking.order if id(place) in reasons]
    return Ranking(
        strategy=ranking.strategy,
        order=[place for place, _ in kept],
        costs=[cost for _, cost in kept],
        left_out=[*ranking.left_out, *left_out],
        first=ranking.first,
    )


def _refusal(ranking: Ranking, asked: Asked, plan: _Plan) -> GatewayError:
    shut = [place for place, why in ranking.left_out if why in ("circuit open", "asked for patience", "shut")]
    if not shut:
        why = "; ".join(f"{place.name}: {reason}" for place, reason in ranking.left_out[:8])
        return InvalidRequest(
            f"No place of the model `{plan.route.name}` can do what this request asks ({why}).",
            param="model",
            code="unsupported_by_model",
        )
    soonest = min(shut, key=lambda place: place.shut_until)
    wait = max(0.0, soonest.shut_until - asked.now)
    if all(place.shut == "asked for patience" for place in shut):
        error: Body = {
            "message": f"Every upstream of `{plan.route.name}` has asked for patience.",
            "type": "requests",
            "code": "rate_limit_exceeded",
        }
        return UpstreamRefused(429, error, retry_after=wait)
    return Overloaded(
        f"Every upstream of `{plan.route.name}` has failed repeatedly and is left alone for a moment.",
        code="upstream_unavailable",
        headers=wait_headers(wait),
    )


def _session(call: Call, sticky: str) -> int | None:
    """Whose requests stay together, as a number."""
    if sticky == "none":
        return None
    asked, body = call.directives, call.body
    name = asked.session or body.get("prompt_cache_key") if sticky == "session" else None
    name = name or asked.user or body.get("user") or body.get("safety_identifier")
    if not isinstance(name, str) or not name:
        return None
    return number_of(f"{call.principal.team}/{call.principal.project}/{name}")


def _needs(body: Body) -> int:
    needs = TOOLS if body.get("tools") or body.get("functions") else 0
    shape = body.get("response_format")
    if isinstance(shape, dict) and cast("Body", shape).get("type") == "json_schema":
        needs |= JSON_SCHEMA
    return needs | (IMAGES if _pictures(body) else 0)


def _pictures(body: Body) -> list[str]:
    """The addresses of all pictures in a chat."""
    found: list[str] = []
    for message in cast("list[object]", body.get("messages") or []):
        content = cast("Body", message).get("content") if isinstance(message, dict) else None
        for part in cast("list[object]", content) if isinstance(content, list) else ():
            if isinstance(part, dict) and cast("Body", part).get("type") in ("image_url", "input_image"):
                image = cast("Body", part).get("image_url")
                url = cast("Body", image).get("url") if isinstance(image, dict) else image
                found.append(url if isinstance(url, str) else "")
    return found


def _text_bytes(call: Call) -> int:
    """The size of a request without its pictures, which count by their pixels and not by their bytes."""
    if call.size < _SMALL or call.operation != "chat":
        return call.size
    return call.size - sum(len(url) for url in _pictures(call.body))
