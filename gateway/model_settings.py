"""A name clients may ask for: where it leads, in which order, and what else is done with its requests.

Knows: shapes, what goes together and what does not. Does not know: how any of it is carried out.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from gateway.setting_types import Seconds, Section
from policies.money import nano
from policies.routing import known


class RouteEntry(Section):
    """One place a request can go to; `provider/model` alone will do.

    `weight`: its share for `weighted` and for sessions. `context`: tokens its window holds, where the bundled table
    does not know or is wrong. `lacks`: what it cannot do; requests that need it go elsewhere.
    """

    to: str
    weight: float = Field(default=1.0, ge=0)
    context: int | None = Field(default=None, ge=1)
    lacks: list[Literal["tools", "images", "json_schema"]] = []

    @model_serializer(mode="wrap")
    def _as_written(self, whole: SerializerFunctionWrapHandler) -> Any:
        """As short as it can be written."""
        return self.to if self.model_fields_set <= {"to"} else whole(self)


class SloSettings(Section):
    """What is promised: seconds to the first token, and per further token."""

    ttft: Seconds = 1.0
    tpot: Seconds = 0.05


class CanarySettings(Section):
    """This `share` of requests (of sessions, where they have one) is answered by `to`; the route stands behind it."""

    to: str
    share: float = Field(gt=0, le=1)


class ShadowSettings(Section):
    """This `share` of answered requests is asked at `to` as well, for comparison; clients neither wait nor pay for it.

    `budget_usd`: what all shadows of this model may cost a day; it holds hard and has ledger lines of its own.
    """

    to: str
    share: float = Field(gt=0, le=1)
    budget_usd: Annotated[str, BeforeValidator(str)] = "1.00"

    @model_validator(mode="after")
    def _an_amount(self) -> "ShadowSettings":
        if nano(self.budget_usd) < 0:
            raise ValueError("budget_usd: an amount in USD, 0 or more")
        return self


def _entry(value: Any) -> Any:
    return {"to": value} if isinstance(value, str) else value


Entry = Annotated[RouteEntry, BeforeValidator(_entry)]


_OF_ONE_ANSWER = {"canary": None, "hedge": None, "sticky": "none", "cheapest_from": None}


class ModelSettings(Section):
    """A name clients may ask for. `free` marks a route whose upstream really costs nothing.

    `strategy`: ordered, weighted, cheapest, fastest, least_busy, slo, prefix_affine, or of several answers: `cascade`
    (in written order until one is as sure as `min_logprob`, the mean log probability of its tokens) and `ensemble` (the
    first `of` candidates all answer, the majority counts). `sticky`: whose requests stay together while they can.
    `cheapest_from`: from that share of any of the asker's budgets on the order is by price. `hedge`: seconds without a
    first token after which the next candidate is asked as well, or `p95` of what was measured. `fallback_on`: answers
    that go to the next candidate although the upstream gave them.
    """

    route: list[Entry] = Field(min_length=1)
    strategy: str = "ordered"
    free: bool = False
    slo: SloSettings = SloSettings()
    sticky: Literal["none", "session", "user"] = "none"
    cheapest_from: float | None = Field(default=None, gt=0, le=1)
    canary: CanarySettings | None = None
    shadow: ShadowSettings | None = None
    hedge: Seconds | Literal["p95"] | None = None
    fallback_on: list[Literal["refusal", "content_filter", "context"]] = []
    min_logprob: float = Field(default=-0.5, le=0)
    of: int = Field(default=3, ge=2, le=9)

    @model_validator(mode="after")
    def _goes_together(self) -> "ModelSettings":
        strategies = [*known(), "cascade", "ensemble"]
        if self.strategy not in strategies:
            raise ValueError(f"unknown strategy {self.strategy!r}; known: {', '.join(strategies)}")
        if self.strategy == "cascade" and len(self.route) < 2:
            raise ValueError("a cascade needs two candidates or more")
        if self.strategy in ("cascade", "ensemble"):
            vain = [name for name, unset in _OF_ONE_ANSWER.items() if getattr(self, name) != unset]
            if vain:
                raise ValueError(f"{self.strategy} asks its candidates by itself; {', '.join(vain)} would do nothing")
        if len({entry.to for entry in self.route}) < len(self.route):
            raise ValueError("a route names each target once")
        return self
