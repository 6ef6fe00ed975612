"""`/ui/calculator`: what a use would cost a day and a month, at every model that has a price, and on an engine.

Knows: which fields the form has. Does not know: the arithmetic (`policies.calculator`), where prices come from.
"""

from decimal import Decimal
from math import isfinite
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.types import ControllerRouterHandler
from msgspec import Meta, Struct

from gateway.errors import InvalidRequest, NotFound
from gateway.routes.price_tools import WELL_KNOWN, Asked, Calculated, calculated
from gateway.routes.prices import in_use
from gateway.routes.visitor import Visitor, VisitorDep, page_router, spreadsheet
from gateway.web.sheet import Cell
from policies.calculator import MOST_REQUESTS, MOST_TOKENS

_MOST_COMPARED = 60
_ENCODER = "local/minilm"  # writes nothing: compared only when it is asked for
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Percent = Annotated[float, Meta(ge=0, le=100)]


class Use(Struct, frozen=True, kw_only=True):
    """The fields of the form, as they stand in the address; `cached` and `hits` in percent."""

    model: Annotated[str, Meta(max_length=200)] = ""
    prompt: Tokens = 1_000
    completion: Tokens = 300
    requests: Annotated[int, Meta(ge=0, le=MOST_REQUESTS)] = 10_000
    cached: Percent = 0.0
    hits: Percent = 0.0

    def at(self, model: str) -> Asked:
        """The same use of another model."""
        return Asked(
            model=model,
            prompt_tokens=self.prompt,
            completion_tokens=self.completion,
            requests_per_day=self.requests,
            cached_share=str(Decimal(str(self.cached)) / 100),
            hit_rate=str(Decimal(str(self.hits)) / 100),
        )


_MEANT = {
    "model": "Model is at most 200 characters",
    "prompt": f"Prompt tokens per request is a whole number from 0 to {MOST_TOKENS:,}",
    "completion": f"Output tokens per request is a whole number from 0 to {MOST_TOKENS:,}",
    "requests": f"Requests per day is a whole number from 0 to {MOST_REQUESTS:,}",
    "cached": "Cached by the provider is a share from 0 to 100 %",
    "hits": "Answered by our cache is a share from 0 to 100 %",
}


def _use(visitor: Visitor) -> tuple[Use, str]:
    """The form as the address has it, and what is wrong with it: such a field is as it is in an empty form."""
    found, wrong = Use(), list[str]()
    for name, meant in _MEANT.items():
        if not (given := str(visitor.request.query_params.get(name, "")).strip()):
            continue
        try:
            read = msgspec.convert({name: given}, Use, strict=False)
        except msgspec.ValidationError:
            read = None
        if read is None or (isinstance(value := getattr(read, name), float) and not isfinite(value)):
            wrong.append(f"{meant}, not {given[:40]!r}.")
        else:
            found = msgspec.structs.replace(found, **{name: getattr(read, name)})
    return found, " ".join(wrong)


async def _everywhere(visitor: Visitor, use: Use) -> tuple[list[Calculated], str]:
    """The use at every model in use or well known, cheapest first, and what is wrong with the one asked for."""
    services = visitor.services
    names: list[str] = [use.model] if use.model else []
    names += [
        name for name in (*await in_use(services, visitor.principal), *WELL_KNOWN) if name not in (*names, _ENCODER)
    ]
    found: dict[str, Calculated] = {}
    problem = ""
    for name in names[:_MOST_COMPARED]:
        try:
            found.setdefault(name, calculated(services, use.at(name)))
        except (NotFound, InvalidRequest) as error:
            problem = error.message if name == use.model else problem
    return sorted(found.values(), key=lambda one: (Decimal(one.month.total_usd), one.model)), problem


@get("/calculator", opt={"role": "viewer"})
async def calculator(visitor: VisitorDep) -> Response[bytes]:
    """One use at every priced model, in parts for the one that is chosen."""
    use, wrong = _use(visitor)
    found, problem = await _everywhere(visitor, use)
    chosen = next((one for one in found if use.model in ("", one.model)), None)
    status = 400 if wrong else 200
    return visitor.page(
        "calculator.html", status=status, found=found, chosen=chosen, problem=wrong or problem, form=use
    )


@get("/calculator.csv", opt={"role": "viewer"})
async def calculator_csv(visitor: VisitorDep) -> Response[bytes]:
    """The comparison of this view."""
    use, wrong = _use(visitor)
    if wrong:
        raise InvalidRequest(wrong)
    found, _ = await _everywhere(visitor, use)
    rows: list[list[Cell]] = [
        [one.model, one.status, Decimal(one.request_usd), Decimal(one.day.total_usd), Decimal(one.month.total_usd)]
        for one in found
    ]
    return spreadsheet(["model", "price", "request_usd", "day_usd", "month_usd"], rows, "calculator")


def route_handlers() -> list[ControllerRouterHandler]:
    return [page_router("/ui", [calculator, calculator_csv])]
