"""The price that a line of the ledger was charged at, as JSON: USD per million tokens, and per call or search.

Knows: one version of a price. Does not know: lines, what is in force now (`gateway.routes.price_shapes`).
"""

from decimal import Decimal

from msgspec import Struct, convert, structs

from gateway.db.rows import PriceLine
from policies.money import Price

_PICO_PER_USD = 1_000_000  # pico-USD per token and USD per million tokens are the same number times this


class PriceView(Struct, kw_only=True):
    """The version a line was charged at, in USD per million tokens (`request`: per call, `web_search`: each).

    `apart`: classes of tokens that are priced apart from their whole.
    """

    id: str
    input_usd_per_million: str
    output_usd_per_million: str
    cached_input_usd_per_million: str
    cache_write_usd_per_million: str
    request_usd: str
    status: str
    apart: dict[str, str] = {}
    web_search_usd: str | None = None
    file_search_usd: str | None = None


def price_view(price: PriceLine) -> PriceView:
    terms = None if price.terms is None else convert(price.terms, Price)
    return PriceView(
        id=price.id,
        input_usd_per_million=per_million(price.input_pico),
        output_usd_per_million=per_million(price.output_pico),
        cached_input_usd_per_million=per_million(price.cached_pico),
        cache_write_usd_per_million=per_million(price.cache_write_pico),
        request_usd=f"{Decimal(price.request_pico) / 10**12:f}",
        status=price.status,
        apart=_apart(terms),
        web_search_usd=_fee(terms and terms.web_search),
        file_search_usd=_fee(terms and terms.file_search),
    )


def _fee(pico: int | None) -> str | None:
    return None if pico is None else f"{Decimal(pico) / 10**12:f}"


def _apart(terms: Price | None) -> dict[str, str]:
    rates = None if terms is None else terms.apart
    told = {} if rates is None else structs.asdict(rates)
    return {name: per_million(rate) for name, rate in told.items() if rate is not None}


def per_million(pico: int) -> str:
    """Pico-USD per token as USD per million tokens."""
    return f"{(Decimal(pico) / _PICO_PER_USD).normalize():f}"
