"""Every setting: defaults < nearhit.yaml < NEARHIT_* environment < flags; unknown keys are errors.

The only reader of the environment. `load()` is called once, by the command line; everything else is handed a value.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gateway.alert_settings import AlertSettings
from gateway.distillation_settings import DistillationSettings
from gateway.engine_settings import EngineSettings
from gateway.export_settings import ExportSettings
from gateway.kept_settings import KeptSettings, RetentionSettings
from gateway.log_lines import Form
from gateway.model_settings import ModelSettings
from gateway.oidc_settings import OidcSettings
from gateway.secret_files import with_files
from gateway.setting_types import Octets, Place, Seconds, Section, TooMuch, filled_in, mistakes, no_json, read_yaml
from policies.money import nano

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

# Providers that switch on by themselves when their usual key is in the environment: its name, and where they are.
WELL_KNOWN = {
    "openai": ("OPENAI_API_KEY", "https://api.openai.com/v1"),
    "anthropic": ("ANTHROPIC_API_KEY", "https://api.anthropic.com/v1"),
    "gemini": ("GEMINI_API_KEY", "https://generativelanguage.googleapis.com/v1beta"),
    "azure": ("AZURE_OPENAI_API_KEY", "${AZURE_OPENAI_ENDPOINT}"),
    "bedrock": ("AWS_BEARER_TOKEN_BEDROCK", "https://bedrock-runtime.${AWS_REGION}.amazonaws.com"),
    "groq": ("GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    "deepseek": ("DEEPSEEK_API_KEY", "https://api.deepseek.com/v1"),
    "mistral": ("MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
    "openrouter": ("OPENROUTER_API_KEY", "https://openrouter.ai/api/v1"),
    "together": ("TOGETHER_API_KEY", "https://api.together.xyz/v1"),
    "fireworks": ("FIREWORKS_API_KEY", "https://api.fireworks.ai/inference/v1"),
    "xai": ("XAI_API_KEY", "https://api.x.ai/v1"),
    "cerebras": ("CEREBRAS_API_KEY", "https://api.cerebras.ai/v1"),
}
_OF_NO_KIND = ("cerebras",)  # plain OpenAI's language


def _amount(value: object) -> object:
    return value if value is None else str(value)


def _off(value: object) -> object:
    """YAML reads a bare `off` as false."""
    return "off" if value is False else value


class Server(Section):
    """The listening socket and what one request may cost it. `mirror_headers`: gateways whose reply headers come too.

    `max_in_flight`: per worker. `lag_target`: how long the event loop may keep a request waiting before newcomers are
    turned away.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    workers: int = Field(default=1, ge=1, le=64)
    server: Literal["uvicorn", "granian"] = "uvicorn"
    max_body: Octets = 16 << 20
    body_timeout: Seconds = 10.0
    header_timeout: Seconds = 10.0
    drain_timeout: Seconds = 120.0
    hang_timeout: Seconds | None = Field(default=60.0, ge=5)
    max_in_flight: int = Field(default=2_000, ge=1)
    mirror_headers: list[Literal["litellm", "helicone", "portkey", "cloudflare"]] = []
    lag_target: Seconds = 0.025
    log: Form = "text"


class ProviderSettings(Section):
    """An upstream. `api_key: none` sends no credential; `api_keys`: several, one of which is taken for each call.

    `replicas`: addresses of equal servers, or `dns://name:port`, `srv://name`. Further keys belong to the kind.
    `answer_timeout`: for what is not streamed; None: its request's time. `batch: own`: at its own batch endpoint.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str
    base_url: str | None = None
    api_key: SecretStr | None = None
    api_keys: list[SecretStr] = []
    replicas: list[str] = []
    first_chunk_timeout: Seconds = 30.0
    answer_timeout: Seconds | None = Field(default=None, gt=0)
    idle_timeout: Seconds = 30.0
    max_in_flight: int = Field(default=512, ge=1)
    billing: Literal["stops-on-close", "bills-anyway"] = "bills-anyway"
    batch: Annotated[Literal["off", "own"], BeforeValidator(_off)] = "off"


class JudgeSettings(Section):
    """Who says whether two answers are the same. `model`: a configured one, asked in batches; None: no model at all."""

    model: str | None = None
    batch: int = Field(default=8, ge=1, le=32)


class CacheSettings(Section):
    """When an answer may be reused; both error budgets hold, a client may only tighten them.

    `audit_budget_usd`: what audits and a judging model may cost a day, in all; never exceeded, 0 switches audits off.
    `audit_charge`: audits also draw on the budgets of the team, project and key whose hit they check. `audit_share`: of
    hits by meaning, how many are audited at least; None leaves it to the policy. `encoder_hour_usd`: what an hour
    costs of what the encoder computes on; its time is subtracted from savings. `encryption_key_file`: keys of 32 bytes,
    one per line, the newest first: it seals what is kept, all of them open.
    """

    mode: Annotated[Literal["off", "exact", "shadow", "semantic"], BeforeValidator(_off)] = "semantic"
    policy: str = "learned"
    max_error_rate: float = Field(default=0.01, ge=0, le=1)
    max_wrong_hit_rate: float = Field(default=0.05, ge=0, le=1)
    max_temperature: float = Field(default=1.0, ge=0, le=2)
    ttl: Seconds = 86_400.0
    scope: Literal["user", "key", "project", "team", "org"] = "project"
    store: Literal["auto", "memory", "sqlite", "redis"] = "auto"
    embed_timeout: Seconds = 0.15
    max_entries: int = Field(default=100_000, ge=1)
    encoder: str = "minilm"
    herd_wait: Seconds = 2.0
    wait_for_others: Seconds = 30.0
    wait_beyond_first: Seconds = 0.25
    audit_budget_usd: Annotated[str, BeforeValidator(str)] = "0.10"
    audit_charge: bool = False
    encoder_hour_usd: Annotated[str, BeforeValidator(str)] = "0.05"
    audit_share: float | None = Field(default=None, ge=0, le=1)
    judge: JudgeSettings = JudgeSettings()
    encryption_key_file: Place | None = None

    @field_validator("encryption_key_file")
    @classmethod
    def _keys(cls, value: Path | None) -> Path | None:
        if value is not None:
            from cache.codec import read_keys

            try:
                read_keys(value)
            except OSError as error:
                raise ValueError(f"cannot read the file: {error.strerror}") from error  # it may be the key itself
        return value

    @field_validator("audit_budget_usd", "encoder_hour_usd")
    @classmethod
    def _an_amount(cls, value: str) -> str:
        if nano(value) < 0:
            raise ValueError("an amount in USD, 0 or more")
        return value


class BudgetSettings(Section):
    """A limit kept in the file; limits set through the API live in the database. Money, a rate, or both.

    `rpm`, `tpm`: requests and tokens per minute. `on_exhausted`: `refuse`, or `degrade:<model>` once the share
    `degrade_at` of the limit is used.
    """

    scope: str
    limit_usd: Annotated[str | None, BeforeValidator(_amount)] = None
    window: Literal["day", "week", "month", "quarter", "year", "total"] = "month"
    timezone: str = "UTC"
    mode: Literal["hard", "soft"] = "hard"
    alerts: list[float] = [0.5, 0.8, 0.95]
    rpm: int | None = Field(default=None, ge=0)
    tpm: int | None = Field(default=None, ge=0)
    on_exhausted: str = Field(default="refuse", pattern=r"^(refuse|degrade:.+)$")
    degrade_at: float = Field(default=1.0, gt=0, le=1)

    @model_validator(mode="after")
    def _limits_something(self) -> "BudgetSettings":
        if self.limit_usd is None and self.rpm is None and self.tpm is None:
            raise ValueError("a budget needs limit_usd, rpm or tpm")
        return self


class TelemetrySettings(Section):
    """What is traced and where it goes; prompts and answers never, unless `capture_content`.

    `ttft_target`, `tpot_target`: a streamed answer that keeps both counts as goodput.
    """

    otlp: str | None = None
    capture_content: bool = False
    sample: float = Field(default=0.1, ge=0, le=1)
    slow: Seconds = 5.0
    explain_days: int = Field(default=7, ge=0)
    ttft_target: Seconds = 1.0
    tpot_target: Seconds = 0.05


class LedgerSettings(Section):
    """`durability: write` survives kill -9 but not a power cut; `off` is for throw-away runs."""

    durability: Annotated[Literal["fsync", "write", "off"], BeforeValidator(_off)] = "fsync"
    max_output_tokens: int = Field(default=4_096, ge=1)


class Settings(BaseSettings):
    """The whole configuration. `home` holds everything the process writes."""

    model_config = SettingsConfigDict(
        env_prefix="NEARHIT_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    home: Place = Path(".nearhit")
    admin_key: SecretStr | None = None
    secret: SecretStr | None = None
    server: Server = Server()
    database: str | None = None
    redis: str | None = None
    providers: dict[str, ProviderSettings] = {}
    engines: dict[str, EngineSettings] = {"local": EngineSettings()}
    models: dict[str, ModelSettings] = {}
    cache: CacheSettings = CacheSettings()
    budgets: list[BudgetSettings] = []
    alerts: AlertSettings = AlertSettings()
    ledger: LedgerSettings = LedgerSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    distillation: DistillationSettings = DistillationSettings()
    retention: RetentionSettings = RetentionSettings()
    kept: KeptSettings = KeptSettings()
    exports: list[ExportSettings] = []
    oidc: OidcSettings | None = None

    @field_validator("database")
    @classmethod
    def _known_database(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("postgresql://", "postgresql+asyncpg://", "sqlite:///")):
            raise ValueError("expected postgresql://user@host/name (or leave it out for SQLite)")
        return value

    @field_validator("redis")
    @classmethod
    def _known_redis(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("expected redis://host:6379/0 (or rediss://, unix://)")
        return value

    @field_validator("exports")
    @classmethod
    def _names_once(cls, value: list[ExportSettings]) -> list[ExportSettings]:
        if len({export.name for export in value}) < len(value):
            raise ValueError("every export needs a name of its own")
        return value

    @model_validator(mode="after")
    def _workers_need_services(self) -> "Settings":
        if self.server.workers > 1 and (self.database is None or self.database.startswith("sqlite")):
            raise ValueError("server.workers > 1 needs database: postgresql://… (SQLite serves exactly one worker)")
        if self.server.workers > 1 and self.cache.mode != "off" and self.redis is None:
            raise ValueError("server.workers > 1 with caching needs redis: redis://… (or cache.mode: off)")
        return self

    _file: Path | None = PrivateAttr(default=None)

    @property
    def file(self) -> Path | None:
        """The file these were read from, None for ./nearhit.yaml where that is there."""
        return self._file

    @property
    def database_url(self) -> str:
        """SQLAlchemy's form, async driver included."""
        if self.database is None:
            return f"sqlite+aiosqlite:///{quote(str(self.home / 'nearhit.db'))}"  # a `?` would end the file's name
        return self.database.replace("postgresql://", "postgresql+asyncpg://").replace(
            "sqlite:///", "sqlite+aiosqlite:///"
        )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then environment, then the file (`_file` is taken out of the flags by `load`).

        An empty variable is one that is not set, as where a compose file says `${NEARHIT_HOME:-}`.
        """
        of_file = InitSettingsSource(settings_cls, _FileValues.current)
        if isinstance(env_settings, EnvSettingsSource):
            seen = {name.lower(): value for name, value in (_FileValues.seen or os.environ).items() if value}
            env_settings.env_vars = {name: value for name, value in seen.items() if name.startswith("nearhit_")}
            if not env_settings.env_vars:  # each setting would be looked for, and none found
                return init_settings, of_file
        return init_settings, env_settings, of_file


class _FileValues:
    """The values of the file being loaded, and the environment with its secret files; set only inside `load`."""

    current: dict[str, Any] = {}
    seen: dict[str, str] = {}


def load(config: Path | None = None, **flags: Any) -> Settings:
    """Settings from the file (default: ./nearhit.yaml when it is there), the environment and `flags`.

    Raises ValueError for a mistake (its message names the key), an unreadable file or `${UNSET}`.
    """
    path = config or Path("nearhit.yaml")
    try:
        _FileValues.seen = with_files(os.environ, _may_be_files(path))
        _refuse_unknown(_FileValues.seen)
        _FileValues.current = _read(path) if config or path.exists() else {}
        _add_well_known(_FileValues.current)
        found = Settings(**flags)
        found._file = config  # pyright: ignore[reportPrivateUsage] - said by the one place that knows
        return found
    except ValidationError as error:
        raise ValueError(mistakes(error)) from None
    except SettingsError as error:
        raise ValueError(no_json(error)) from None
    finally:
        _FileValues.current, _FileValues.seen = {}, {}


def _refuse_unknown(seen: dict[str, str]) -> None:
    """pydantic passes over parts that there are none of. Names without `__` may be others' (Kubernetes makes some)."""
    for name in map(str.upper, seen):
        part, separator, _ = name.removeprefix("NEARHIT_").partition("__")
        if separator and name.startswith("NEARHIT_") and part.lower() not in Settings.model_fields:
            raise ValueError(f"the environment names {name}: there is no such setting")


def _may_be_files(path: Path) -> list[str]:
    """Names that the file refers to, and the usual ones of providers."""
    named = _REFERENCE.findall(path.read_text("utf-8", "replace")) if path.is_file() else []
    return [*named, *(variable for variable, _ in WELL_KNOWN.values())]


def environment() -> dict[str, str]:
    """A copy of this process's environment for child processes."""
    return dict(os.environ)


def _read(path: Path) -> dict[str, Any]:
    found = read_yaml(path)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a mapping, not a {type(found).__name__}")
    try:
        return cast(
            "dict[str, Any]", filled_in(cast("object", found), lambda text: _REFERENCE.sub(_from_environment, text))
        )
    except TooMuch as error:
        raise ValueError(f"cannot read {path}: {error}") from None


def _from_environment(found: re.Match[str]) -> str:
    if not _FileValues.seen.get(found[1]):  # empty is unset, as where a compose file says `${NAME:-}`
        raise ValueError(f"the configuration names ${{{found[1]}}}, which is not set in the environment")
    return _FileValues.seen[found[1]]


def _add_well_known(values: dict[str, Any]) -> None:
    """A provider whose address the environment does not tell stays off."""
    for name, (variable, address) in WELL_KNOWN.items():
        providers = values.setdefault("providers", {})
        told = all(_FileValues.seen.get(needed) for needed in (variable, *_REFERENCE.findall(address)))
        if told and isinstance(providers, dict) and name not in providers:
            base_url = _REFERENCE.sub(_from_environment, address)
            kind = "openai" if name in _OF_NO_KIND else name
            providers[name] = {"kind": kind, "base_url": base_url, "api_key": _FileValues.seen[variable]}
            if name == "azure" and _FileValues.seen.get("OPENAI_API_VERSION"):
                providers[name]["api_version"] = _FileValues.seen["OPENAI_API_VERSION"]
