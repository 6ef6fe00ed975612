"""The columns of a FOCUS dataset, in the order in which they are written, and of which kind each is.

Knows: versions 1.2 (57 columns) and 1.3 (65), and the four columns of our own. Does not know: values.
Source: FOCUS specification 1.2 (2025-05-29) and 1.3, CC-BY-4.0; `tests/data/focus_columns.csv` is its table.
"""

from typing import Literal

Version = Literal["1.2", "1.3"]
Kind = Literal["text", "number", "instant", "count"]

_NUMBERS = (
    "BilledCost CommitmentDiscountQuantity ConsumedQuantity ContractedCost ContractedUnitPrice EffectiveCost ListCost "
    "ListUnitPrice PricingCurrencyContractedUnitPrice PricingCurrencyEffectiveCost PricingCurrencyListUnitPrice "
    "PricingQuantity x_AvoidedCost"
)
_INSTANTS = frozenset({"BillingPeriodEnd", "BillingPeriodStart", "ChargePeriodEnd", "ChargePeriodStart"})
_COUNTS = frozenset({"x_RequestCount"})
_COMMON = (
    "AvailabilityZone BilledCost BillingAccountId BillingAccountName BillingAccountType BillingCurrency "
    "BillingPeriodEnd BillingPeriodStart CapacityReservationId CapacityReservationStatus ChargeCategory ChargeClass "
    "ChargeDescription ChargeFrequency ChargePeriodEnd ChargePeriodStart CommitmentDiscountCategory "
    "CommitmentDiscountId CommitmentDiscountName CommitmentDiscountQuantity CommitmentDiscountStatus "
    "CommitmentDiscountType CommitmentDiscountUnit ConsumedQuantity ConsumedUnit ContractedCost ContractedUnitPrice "
    "EffectiveCost InvoiceId InvoiceIssuerName ListCost ListUnitPrice PricingCategory PricingCurrency "
    "PricingCurrencyContractedUnitPrice PricingCurrencyEffectiveCost PricingCurrencyListUnitPrice PricingQuantity "
    "PricingUnit ProviderName PublisherName RegionId RegionName ResourceId ResourceName ResourceType ServiceCategory "
    "ServiceName ServiceSubcategory SkuId SkuMeter SkuPriceDetails SkuPriceId SubAccountId SubAccountName "
    "SubAccountType Tags"
)
_SINCE_1_3 = (
    "AllocatedMethodDetails AllocatedMethodId AllocatedResourceId AllocatedResourceName AllocatedTags ContractApplied "
    "HostProviderName ServiceProviderName"
)
_OWN = ("x_AvoidedCost", "x_CacheStatus", "x_CostBasis", "x_RequestCount")


def columns(version: Version) -> list[str]:
    """FOCUS's columns in alphabetical order, then our own."""
    names = _COMMON.split() + (_SINCE_1_3.split() if version == "1.3" else [])
    return [*sorted(names), *_OWN]


def kind(column: str) -> Kind:
    """`number` is a decimal with at most 12 places, `count` a whole number, `instant` a time in UTC."""
    if column in _NUMBERS.split():
        return "number"
    if column in _INSTANTS:
        return "instant"
    return "count" if column in _COUNTS else "text"
