"""The FOCUS dataset of a month: one row per day, team, project, key, provider, model, meter, unit price and basis.

Knows: what FOCUS asks of each column, how a charge becomes rows. Does not know: SQL, file formats.

Costs of a meter are exact to a pico-USD, so ListCost is ListUnitPrice times PricingQuantity without rounding. Under a
price of the operator's own, list prices are the bundled table's where that knows the model, else the contract's. What
the ledger posted beyond (each attempt is rounded up to a nano-USD; of a broken one the reservation is posted) stands in
a row of its own, so that BilledCost adds up to the ledger's sum to the nano-USD. Hits are rows that cost nothing, with
what they avoided in `x_AvoidedCost`: a cost that never was must not stand in ListCost.
"""

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from gateway.exports.columns import Version, columns
from gateway.ledger.grouping import DAY, Group
from gateway.ledger.hits import Hits
from policies.meters import ADJUSTMENT, COUNTED, REQUESTS, ROUNDING, rate
from policies.money import Price
from policies.months import span

PRODUCT = "nearhit"
_PICO = 12
_MILLION = 6
_MOST_LISTED = 4_096
_NOON = 43_200  # a list price that depends on the hour is taken at noon, UTC
_CATEGORY = "AI and Machine Learning"
_SUBCATEGORY = "Generative AI"
_encode = msgspec.json.Encoder(order="deterministic").encode
_strings = msgspec.json.Decoder(list[str]).decode
_BASIS = {"estimated": "estimated", "upper_bound": "upper_bound", "adjust": "adjusted"}


class Charge(Struct, frozen=True, kw_only=True):
    """What all rows of one group have in common. `day`: whole days since the epoch of the admission, UTC.

    `tags`: JSON list of `name=value` as the ledger keeps it. `late`: it belongs to an earlier, closed month.
    """

    day: int
    team: str
    project: str
    key_id: str
    provider: str
    model: str
    tags: str | None
    price: str
    source: str
    late: bool = False


class Names(Struct, frozen=True):
    """Names that people gave: of teams, of projects (by `team/project`), of keys."""

    teams: Mapping[str, str]
    projects: Mapping[str, str]
    keys: Mapping[str, str]


# What a provider, a model and a price id of the operator's own stand for in the public list, at an instant.
Listed = Callable[[str, str, str, float], Price | None]


class Dataset:
    """Makes the rows of one month in one version of the specification."""

    def __init__(self, month: str, version: Version, names: Names, listed: Listed) -> None:
        self._names = names
        self._listed = lru_cache(_MOST_LISTED)(listed)
        its = span(month)
        self._blank: dict[str, Any] = dict.fromkeys(columns(version))
        self._blank |= {
            "BillingCurrency": "USD",
            "BillingPeriodStart": float(its.start),
            "BillingPeriodEnd": float(its.end),
            "BillingAccountType": "Team",
            "ChargeFrequency": "Usage-Based",
            "PricingCurrency": "USD",
            "ServiceCategory": _CATEGORY,
            "ServiceSubcategory": _SUBCATEGORY,
        }
        self._hosted = version != "1.2"

    def charge(self, of: Charge, group: Group) -> Iterator[dict[str, Any]]:
        """A row per meter and unit price, and one for what no unit price explains."""
        common = self._common(of.day, of.team, of.project, of.key_id, of.provider) | {
            "ChargeClass": "Correction" if of.late else None,
            "ServiceName": "Model Inference",
            "Tags": _tags(of.tags),
            "x_CacheStatus": "miss",
            "x_CostBasis": _BASIS.get(of.source, "confirmed"),
        }
        rest, count = group.amount * 1_000, 0 if of.source == "adjust" else group.entries
        public = self._listed(of.provider, of.model, of.price, float(of.day * DAY + _NOON))
        for (meter, pico), quantity in sorted(group.parts.items()):
            rest -= quantity * pico
            asked = None if public is None else rate(public, meter)
            metered = self._metered(of, meter, quantity, pico) | _as_listed(meter, quantity, asked)
            yield common | metered | {"x_RequestCount": count}
            count = 0
        if rest or count:
            yield common | self._rest(of, rest) | {"x_RequestCount": count}

    def hits(self, of: Hits) -> dict[str, Any]:
        """Requests the cache answered: they cost nothing, and their avoided cost is no cost."""
        sku = f"{PRODUCT}/cache/{of.kind}"
        return self._common(of.day, of.team, of.project, of.key_id, PRODUCT) | {
            "ChargeCategory": "Usage",
            "ChargeDescription": f"{of.model} answered from the cache ({of.kind})",
            "ServiceName": "Semantic Cache",
            **_costs(0),
            **_unit_prices(Decimal(0)),
            **_quantities(Decimal(of.requests), Decimal(of.requests), REQUESTS, REQUESTS),
            "PricingCategory": "Standard",
            "SkuId": sku,
            "SkuMeter": "Cache Hits",
            "SkuPriceId": f"{sku}/free",
            "SkuPriceDetails": _details(of.model),
            "x_AvoidedCost": Decimal(of.avoided_nano).scaleb(-9),
            "x_CacheStatus": f"hit-{of.kind}",
            "x_CostBasis": "confirmed",
            "x_RequestCount": of.requests,
        }

    def _common(self, day: int, team: str, project: str, key_id: str, provider: str) -> dict[str, Any]:
        names = self._names
        account = team or "organization"
        row = self._blank | {
            "BillingAccountId": account,
            "BillingAccountName": names.teams.get(team) or account,
            "ChargePeriodStart": float(day * DAY),
            "ChargePeriodEnd": float((day + 1) * DAY),
            "InvoiceIssuerName": provider,
            "ProviderName": provider,
            "PublisherName": provider,
        }
        if project:
            row |= {
                "SubAccountId": f"{account}/{project}",
                "SubAccountName": names.projects.get(f"{team}/{project}") or project,
                "SubAccountType": "Project",
            }
        if key_id:
            row |= {"ResourceId": key_id, "ResourceName": names.keys.get(key_id), "ResourceType": "API Key"}
        if self._hosted:
            row |= {"HostProviderName": provider, "ServiceProviderName": provider}
        return row

    def _metered(self, of: Charge, meter: str, quantity: int, pico: int) -> dict[str, Any]:
        counted = meter in COUNTED
        unit = meter if counted else "1000000 Tokens"
        sku = f"{of.provider}/{of.model}/{meter.lower().replace(' ', '-')}"
        priced = Decimal(quantity) if counted else Decimal(quantity).scaleb(-_MILLION)
        return {
            "ChargeCategory": "Usage",
            "ChargeDescription": f"{of.model}: {meter.lower()}",
            **_costs(quantity * pico),
            **_unit_prices(_unit_price(meter, pico)),
            **_quantities(priced, Decimal(quantity), unit, meter if counted else "Tokens"),
            "PricingCategory": "Standard",
            "SkuId": sku,
            "SkuMeter": meter,
            "SkuPriceId": f"{of.price}/{sku}/{pico}",
            "SkuPriceDetails": _details(of.model),
        }

    def _rest(self, of: Charge, pico: int) -> dict[str, Any]:
        words = {
            "adjust": f"{of.model}: corrections of charges",
            "upper_bound": f"{of.model}: reserved beyond the counted tokens of attempts that broke off",
        }
        return {
            "ChargeCategory": "Adjustment",
            "ChargeDescription": words.get(of.source, f"{of.model}: rounding up of each attempt to a nano-USD"),
            **_costs(pico),
            "SkuId": f"{of.provider}/{of.model}",
            "SkuMeter": ADJUSTMENT if of.source == "adjust" else ROUNDING,
            "SkuPriceId": of.price,
            "SkuPriceDetails": _details(of.model),
        }


def _costs(pico: int) -> dict[str, Decimal]:
    cost = Decimal(pico).scaleb(-_PICO)
    names = ("BilledCost", "ContractedCost", "EffectiveCost", "ListCost", "PricingCurrencyEffectiveCost")
    return dict.fromkeys(names, cost)


def _unit_prices(price: Decimal) -> dict[str, Decimal]:
    names = (
        "ContractedUnitPrice",
        "ListUnitPrice",
        "PricingCurrencyContractedUnitPrice",
        "PricingCurrencyListUnitPrice",
    )
    return dict.fromkeys(names, price)


def _unit_price(meter: str, pico: int) -> Decimal:
    return Decimal(pico).scaleb(-(_PICO if meter in COUNTED else _MILLION))


def _as_listed(meter: str, quantity: int, pico: int | None) -> dict[str, Decimal]:
    """What it would have cost without the contract; nothing where that is not known."""
    if pico is None:
        return {}
    price = _unit_price(meter, pico)
    return {
        "ListCost": Decimal(quantity * pico).scaleb(-_PICO),
        "ListUnitPrice": price,
        "PricingCurrencyListUnitPrice": price,
    }


def _quantities(priced: Decimal, consumed: Decimal, unit: str, counted: str) -> dict[str, Any]:
    return {
        "PricingQuantity": priced,
        "PricingUnit": unit,
        "ConsumedQuantity": consumed,
        "ConsumedUnit": counted,
    }


def _details(model: str) -> str:
    """Properties the specification does not define begin with `x_`."""
    return _encode({"x_ModelId": model}).decode()


def _tags(kept: str | None) -> str | None:
    if not kept:
        return None
    pairs = (text.partition("=") for text in _strings(kept))
    return _encode({name: value for name, _, value in pairs}).decode()
