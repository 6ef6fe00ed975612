"""Amazon Bedrock's Converse and InvokeModel, signed.

Knows: its addresses and those of a batch's files, its two kinds of credentials, that it names its models elsewhere.
Does not know: how requests and answers are translated (`gateway.upstream.bedrock_*`), prices, retries.
"""

import re
import time
from collections.abc import Callable, Mapping
from urllib.parse import quote

import msgspec
from pydantic import SecretStr

from gateway.call import Body, Chunk
from gateway.errors import GatewayError
from gateway.providers import Sending
from gateway.settings import ProviderSettings
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.transport.credential import Credential
from gateway.upstream.bedrock_answers import Events, body_of, refusal
from gateway.upstream.bedrock_batches import BedrockBatches, Store, as_json
from gateway.upstream.bedrock_embeddings import embedded
from gateway.upstream.bedrock_requests import cannot, translated
from gateway.upstream.event_frames import FrameParser
from gateway.upstream.exchanges import Asked, check_secrecy, config_of
from gateway.upstream.native import Answered, Means, NativeConfig, NativeProvider
from gateway.upstream.sigv4 import Signer

_HOST = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.amazonaws\.com")
_REGION = re.compile(r"[a-z]{2}(?:-[a-z]+)+-\d")
# An access key, its secret and, for temporary ones, the session token.
_ACCESS_KEY = re.compile(r"(A[KS]IA[A-Z0-9]{12,124}):([^:\s]+)(?::(\S+))?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]+", re.ASCII)
_encode = msgspec.json.Encoder().encode


class Config(NativeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`region`: needed unless `base_url` tells it. `models`: what to list; the real list is kept at another host.

    `api_key` is a Bedrock API key, or ACCESS-KEY-ID:SECRET, or ACCESS-KEY-ID:SECRET:SESSION-TOKEN.
    For `batch: own`: `batch_bucket` (BUCKET or BUCKET/PREFIX) holds its files, `batch_role` is the ARN of the role that
    Bedrock reads and writes them as, `batch_least` how many requests a job must have. `control_url` and `s3_url`: where
    jobs and buckets are, if not at AWS's usual addresses.
    """

    region: str = ""
    batch_bucket: str = ""
    batch_role: str = ""
    batch_least: int = 100
    control_url: str = ""
    s3_url: str = ""


class BedrockProvider(NativeProvider):
    """Obeys gateway.providers.Provider; chat and embeddings."""

    cannot = staticmethod(cannot)

    def __init__(self, name: str, settings: ProviderSettings, means: Means) -> None:
        """Raises ValueError for settings that cannot work."""
        config = config_of(name, settings, Config)
        told = _HOST.search(settings.base_url or "")
        region = config.region or (told[1] if told else "")
        secret = settings.api_key.get_secret_value().strip() if settings.api_key else ""
        keys = _ACCESS_KEY.fullmatch(secret)
        if (keys or settings.base_url is None) and not _REGION.fullmatch(region):
            raise ValueError(f"providers.{name}: region is missing (eu-central-1, say)")
        base = (settings.base_url or f"https://bedrock-runtime.{region}.amazonaws.com").rstrip("/")
        self._signer = Signer(keys[1], keys[2], keys[3] or "", region, "bedrock") if keys else None
        # A secret key is never sent; it is kept as a credential only to be taken out of an upstream's words.
        credential = Credential(SecretStr(keys[2]) if keys else settings.api_key, base)
        super().__init__(name, settings, config, credential, base, means)
        if self._signer is not None:
            self._headers.pop(credential.header, None)
        self._store = _store(name, config, region) if settings.batch == "own" and keys else None
        if settings.batch == "own" and self._store is None:
            raise ValueError(f"providers.{name}: `batch: own` needs an api_key KEY-ID:SECRET; S3 takes no other")
        if self._store is not None:
            for url in (self._store.control, self._store.url):
                check_secrecy(name, url, credential, {}, config.plain_http)

    async def _whole(self, sending: Sending) -> Chunk:
        if sending.operation != "embedding":
            return await super()._whole(sending)
        deadline = self._monotonic() + sending.timeout  # of all texts together

        async def ask(body: Body) -> tuple[Body, Mapping[str, str]]:
            left = max(0.001, deadline - self._monotonic())
            return await self._heard_of(self._to_model(sending, "invoke", body), left)

        return await embedded(sending, ask)

    def _asked(self, sending: Sending) -> Asked:
        self._only_chat(sending)
        return self._to_model(sending, "converse-stream" if sending.stream else "converse", translated(sending))

    def _to_model(self, sending: Sending, method: str, body: Body) -> Asked:
        # Quoted whole: a model's name is a part of the address, and an ARN holds slashes and colons.
        url = f"{self._base}/model/{quote(sending.model, safe='')}/{method}"
        content = _encode(body)
        headers = {**self._headers, **sending.headers}
        if self._signer is not None:
            signed = {"Content-Type": self._headers["Content-Type"]}
            headers |= self._signer.sign("POST", url, signed, content, self._now())
        return Asked(url, headers, content)

    def batching(self) -> BedrockBatches | None:
        store, signer = self._store, self._signer
        if store is None or signer is None:
            return None
        signers = {store.url: msgspec.structs.replace(signer, service="s3"), store.control: signer}

        def sign(method: str, url: str, content: bytes) -> Mapping[str, str]:
            mine = next(found for base, found in signers.items() if url.startswith(f"{base}/"))
            return mine.sign(method, url, {}, content, self._now())

        line = msgspec.structs.replace(self._line(), sign=sign)
        return BedrockBatches(line, store, self._alone)

    def _alone(self, sending: Sending) -> Body:
        self._only_chat(sending)
        return translated(sending)

    def _framing(self) -> FrameParser:
        return FrameParser()

    def _translator(self, sending: Sending) -> Events:
        return Events(sending.model, self._now(), sending.id)

    def _told(self, body: Body, sending: Sending) -> Chunk:
        return body_of(body, self._translator(sending))

    def _refusal(self, answered: Answered) -> GatewayError:
        return refusal(self.name, as_json(answered))


def _store(name: str, config: Config, region: str) -> Store:
    """Raises ValueError for settings that cannot work."""
    bucket, _, prefix = config.batch_bucket.removeprefix("s3://").strip("/").partition("/")
    if not _BUCKET.fullmatch(bucket) or not _ROLE.fullmatch(config.batch_role) or config.batch_least < 1:
        raise ValueError(
            f"providers.{name}: `batch: own` needs `batch_bucket` (BUCKET or BUCKET/PREFIX) and `batch_role` (an ARN)"
        )
    # A name with a dot in it is no part of a host that certificates know.
    host = f"https://{bucket}.s3.{region}.amazonaws.com"
    if config.s3_url or "." in bucket:
        host = f"{(config.s3_url or f'https://s3.{region}.amazonaws.com').rstrip('/')}/{bucket}"
    return Store(
        control=(config.control_url or f"https://bedrock.{region}.amazonaws.com").rstrip("/"),
        url=host,
        bucket=bucket,
        prefix=f"{prefix}/" if prefix else "",
        role=config.batch_role,
        least=config.batch_least,
    )


def build(
    name: str,
    settings: ProviderSettings,
    *,
    transport: Transport,
    tasks: Tasks,
    monotonic: Callable[[], float] = time.monotonic,
    now: Callable[[], float] = time.time,
) -> BedrockProvider:
    """Raises ValueError for settings that cannot work."""
    means = Means(transport=transport, tasks=tasks, monotonic=monotonic, now=now)
    return BedrockProvider(name, settings, means)
