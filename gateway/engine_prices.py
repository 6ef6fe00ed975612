"""The price of an engine's tokens: what its hour costs over what it reads and writes in one.

Knows: settings of engines, assumed speeds. Does not know: the ledger, upstream prices, how speeds are measured.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from gateway.price_terms import amount, named, up
from policies.engine_cost import Hardware, Speed, token_pico
from policies.money import Price, PriceStatus

if TYPE_CHECKING:
    from gateway.settings import EngineSettings

ENCODER = "minilm"
ASSUMED_DECODE_TPS = 50.0  # small model, two cores; replaced by `nearhit engine bench`
PREFILL_TO_DECODE = 10.0  # reading is at least that much faster than writing
_ENCODER = Speed(prefill_tps=20_000.0, decode_tps=20_000.0)
_NANO_PER_USD = 10**9
_DEFAULT_HOUR = "0.50"


def hour_usd(settings: "EngineSettings | None") -> str:
    return settings.hour_usd if settings else _DEFAULT_HOUR


def engine_speed(settings: "EngineSettings | None", model: str) -> Speed:
    """How fast an engine is believed to be; measured only where both speeds are."""
    if settings is None or model == ENCODER:
        return (
            _ENCODER
            if model == ENCODER
            else Speed(prefill_tps=ASSUMED_DECODE_TPS * PREFILL_TO_DECODE, decode_tps=ASSUMED_DECODE_TPS)
        )
    decode = settings.tokens_per_second or ASSUMED_DECODE_TPS
    return Speed(
        prefill_tps=settings.prefill_tokens_per_second or decode * PREFILL_TO_DECODE,
        decode_tps=decode,
        busy=settings.busy_share,
        measured=settings.tokens_per_second is not None and settings.prefill_tokens_per_second is not None,
    )


def engine_price(name: str, hour: str, speed: Speed) -> Price:
    """The price of a token on hardware that costs `hour` USD and is that fast; `name` begins its id.

    The hour is taken to the nano-USD, rounded up. Raises ValueError for an hour that is no amount.
    """
    read, written = token_pico(hour_nano(hour), speed)
    status: PriceStatus = "measured" if speed.measured else "assumed"
    made = Price(
        id=name,
        input=read,
        output=written,
        cached_input=read,
        cache_write=read,
        status="free" if read == written == 0 else status,
    )
    return named(made)


class Basis(Struct, frozen=True, kw_only=True):
    """What an engine's price is made from."""

    hour_usd: str
    prefill_tps: float
    decode_tps: float
    busy: float
    measured: bool

    @property
    def speed(self) -> Speed:
        return Speed(prefill_tps=self.prefill_tps, decode_tps=self.decode_tps, busy=self.busy, measured=self.measured)


def hardware_of(settings: "EngineSettings | None", model: str, hours: float, basis: Basis | None = None) -> Hardware:
    """The engine as something that is paid by the hour; `basis`, that of a price in force, goes before the settings."""
    if basis is not None:
        return Hardware(hour_nano=hour_nano(basis.hour_usd), speed=basis.speed, hours=hours)
    return Hardware(hour_nano=hour_nano(hour_usd(settings)), speed=engine_speed(settings, model), hours=hours)


def hour_nano(hour: str) -> int:
    """Nano-USD of an hour. Raises ValueError."""
    return up(amount(hour) * _NANO_PER_USD)
