"""What may be said of a bundled engine: its model, its price, its processes.

Knows: shapes and ranges. Does not know: which models exist, how processes are started.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from gateway.price_terms import amount
from gateway.setting_types import Octets, Seconds, Section

_MIB = 2**20


def _at_least_a_mib(value: int | None) -> int | None:
    """A process is told in whole MiB: one that is told 0 ends, and is started again for ever."""
    if value is not None and value < _MIB:
        raise ValueError("at least 1MiB")
    return value


class EngineSettings(Section):
    """A bundled engine. Its tokens are priced from its hour.

    `tokens_per_second` (written) and `prefill_tokens_per_second` (read): as `nearhit engine bench` measures them with
    several requests at once; None prices by an assumed rate. `busy_share`: of its paid hours, those it should work.
    `quant`, `kv_dtype`: weights and cache in fewer bits; `python -m engine quality` says what they cost. `memory`: of
    the cache. `speculate`: off, predicted (requests with a prediction), ngram (all), or a smaller model's folder.
    `deterministic`: on a GPU, the same tokens in any batch.
    `replicas`: processes; one idle for `sleep_after` drops its cache (`sleep_level` 2: weights too). `slo_`: goodput's.
    """

    model: str = "demo"
    hour_usd: Annotated[str, BeforeValidator(str)] = "0.50"
    tokens_per_second: float | None = Field(default=None, gt=0)
    prefill_tokens_per_second: float | None = Field(default=None, gt=0)
    busy_share: float = Field(default=1.0, gt=0, le=1)
    threads: int | None = Field(default=None, ge=1)
    max_queue: int = Field(default=256, ge=1)
    quant: Literal["none", "int8", "int4", "fp8"] = "none"
    kv_dtype: Literal["auto", "float32", "bfloat16", "int8", "fp8"] = "auto"
    max_sequences: int = Field(default=32, ge=1, le=4_096)
    context: int | None = Field(default=None, ge=16)
    memory: Annotated[Octets | None, AfterValidator(_at_least_a_mib)] = None
    device: Literal["auto", "cpu", "cuda"] = "auto"
    deterministic: bool = False
    speculate: str = "predicted"
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    replicas: int = Field(default=1, ge=1, le=64)
    sleep_after: Seconds | None = None
    sleep_level: Literal[1, 2] = 1
    slo_ttft_ms: float | None = Field(default=None, gt=0)
    slo_tpot_ms: float | None = Field(default=None, gt=0)

    @field_validator("hour_usd")
    @classmethod
    def _an_amount(cls, value: str) -> str:
        amount(value)
        return value
