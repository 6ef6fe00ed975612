"""How each part that has a choice of implementations is chosen from the settings.

Knows constructors and defaults. Does not start, stop or call anything.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from cache import priors, weights
from cache.codec import Codec, read_keys
from cache.embedder import EncoderClient
from cache.judging import Judge
from cache.judging.offline import OfflineJudge
from cache.partitions import Saving
from cache.semantic import SemanticCache
from cache.snapshots import Snapshots
from cache.store import Store
from cache.types import CacheConfig
from cache.verify import Watch
from engine.api import Engine
from engine.locate import ModelNotFound, locate
from gateway.catalog import Catalog
from gateway.errors import NotFound
from gateway.fleet import Fleet
from gateway.judging import Ask, Leads, ModelJudge
from gateway.keeping import is_answer
from gateway.key_pool import KeyPool
from gateway.providers import Provider, load
from gateway.providers import local as local_provider
from gateway.serve_engines import engine_sockets
from gateway.settings import EngineSettings, ProviderSettings, Settings
from gateway.tasks import Tasks
from gateway.transport import Transport
from gateway.upstream.batching import batching_of
from policies.reuse import ReusePolicy
from policies.reuse import load as load_policy

ENCODER = "minilm"  # the name under which the bundled encoder is asked for


def build_codec(settings: Settings, unreadable: Callable[[str], None] | None = None) -> Codec:
    """How entries are written: sealed where there is a file of keys. Raises ValueError and OSError as `read_keys`."""
    path = settings.cache.encryption_key_file
    return Codec(() if path is None else read_keys(path), unreadable, is_answer)


def build_store(settings: Settings, unreadable: Callable[[str], None] | None = None) -> Store:
    """`auto` is Redis when one is configured, else a file in NEARHIT_HOME."""
    kind, most = settings.cache.store, settings.cache.max_entries
    if kind == "auto":
        kind = "redis" if settings.redis else "sqlite"
    if kind == "redis":
        from cache.redis_link import Link
        from cache.store.redis import RedisStore

        if settings.redis is None:
            raise ValueError("cache.store: redis needs redis: redis://host:6379/0")
        codec = build_codec(settings, unreadable)
        return RedisStore(Link(settings.redis, monotonic=time.monotonic), now=time.time, max_entries=most, codec=codec)
    if kind == "sqlite":
        from cache.store.sqlite import SqliteStore

        codec = build_codec(settings, unreadable)
        return SqliteStore(settings.home / "cache.db", now=time.time, max_entries=most, codec=codec)
    from cache.store.memory import MemoryStore

    return MemoryStore(max_entries=most, now=time.time)


def build_encoder(settings: Settings) -> EncoderClient:
    trusted = priors.digest(priors.reader_artefact())
    return EncoderClient(socket_of(settings.home, "encoder"), monotonic=time.monotonic, trusted=trusted)


def socket_of(home: Path, name: str) -> Path:
    """Where a process of ours listens."""
    return home / "run" / f"{name}.sock"


def build_engines(settings: Settings) -> dict[str, Engine]:
    """One engine per configured name; a simulated one lives in this process."""
    return {name: _engine(settings, name, chosen) for name, chosen in settings.engines.items()}


def _engine(settings: Settings, name: str, chosen: EngineSettings) -> Engine:
    # Tokenizers and grammars take 10 MB that a worker without an engine has no use for.
    if chosen.model == "sim":
        from engine.sim import DEFAULT_CONTEXT, SimEngine

        return SimEngine(context=chosen.context or DEFAULT_CONTEXT, monotonic=time.monotonic)
    from engine.client import EngineClient
    from engine.pool import EnginePool

    sockets = engine_sockets(settings.home / "run", name, chosen.replicas)
    clients = [EngineClient(chosen.model, path, monotonic=time.monotonic) for path in sockets]
    return clients[0] if len(clients) == 1 else EnginePool(clients)


def build_providers(
    settings: Settings,
    engines: Mapping[str, Engine],
    encoder: EncoderClient,
    transport: Transport,
    tasks: Tasks,
) -> dict[str, Provider]:
    """Upstreams by name, and one for every engine; the encoder answers as `local`."""
    taken = set(settings.providers) & {"local", *engines}
    if taken:
        raise ValueError(f"a provider and an engine are both called {', '.join(sorted(taken))}")
    found: dict[str, Provider] = {}
    for name, chosen in settings.providers.items():
        found[name] = build_upstream(name, chosen, transport, tasks)
    for name in ("local", *(other for other in engines if other != "local")):
        found[name] = local_provider.build(
            {label(settings, name): engines[name]} if name in engines else {},
            encoder if name == "local" else None,
            tasks=tasks,
            name=name,
            encoder_name=ENCODER,
            encoder_model=settings.cache.encoder,
            now=time.time,
        )
    return found


def build_upstream(name: str, chosen: ProviderSettings, transport: Transport, tasks: Tasks) -> Provider:
    """One upstream. Raises ValueError, which names it, for a kind there is none of and what cannot work."""
    try:
        return _upstream(name, chosen, transport, tasks)
    except (LookupError, ValueError) as error:
        if str(error).startswith("providers."):
            raise
        raise ValueError(f"providers.{name}: {error}") from error


def _upstream(name: str, chosen: ProviderSettings, transport: Transport, tasks: Tasks) -> Provider:
    """A fleet where there are several servers, a pool where there are several keys."""
    if chosen.batch == "own" and (chosen.replicas or chosen.api_keys):
        raise ValueError(f"providers.{name}: `batch: own` needs one server and one api_key, whose batches they are")
    if chosen.replicas:
        if chosen.base_url is not None:
            raise ValueError(f"providers.{name}: give base_url or replicas, not both")
        return Fleet(name, chosen.replicas, lambda url: build_upstream(name, _at(chosen, url), transport, tasks))
    build = load(chosen.kind).build
    if not chosen.api_keys:
        made = build(name, chosen, transport=transport, tasks=tasks)
        if chosen.batch == "own" and batching_of(made) is None:
            raise ValueError(
                f"providers.{name}: `batch: own` needs a service whose batches are spoken here, not {chosen.kind}"
            )
        return made
    if chosen.api_key is not None:
        raise ValueError(f"providers.{name}: give api_key or api_keys, not both")
    keyed = [chosen.model_copy(update={"api_key": key, "api_keys": []}) for key in chosen.api_keys]
    members = [build(name, one, transport=transport, tasks=tasks) for one in keyed]
    return KeyPool(name, members, monotonic=time.monotonic)


def _at(chosen: ProviderSettings, url: str) -> ProviderSettings:
    return chosen.model_copy(update={"base_url": url, "replicas": []})


def label(settings: Settings, engine: str) -> str:
    """What the model of an engine is called by clients: `demo`, `sim`, or the folder's name.

    A folder that is not there has a name too: its engine stays down and says why, the others answer.
    """
    model = settings.engines[engine].model
    try:
        return model if model == "sim" else locate(model).name
    except ModelNotFound:
        return Path(model).name


def offers(settings: Settings, providers: Iterable[str]) -> dict[str, list[str]]:
    """For each provider, by name, the models it serves; an empty list where any name is passed on."""
    found: dict[str, list[str]] = {name: [] for name in providers}
    for name in {"local", *settings.engines}:
        engine = [label(settings, name)] if name in settings.engines else []
        found[name] = [*engine, ENCODER] if name == "local" else engine
    for name, chosen in settings.providers.items():
        if chosen.kind == "scripted":
            found[name] = list((chosen.model_extra or {}).get("models", ["scripted"]))
    return found


def aliases(settings: Settings) -> dict[str, str]:
    """`chat` is the bundled engine's model (the engine called `local`, else the first), `embed` the encoder's."""
    found = {"embed": f"local/{ENCODER}"}
    if settings.engines:
        engine = "local" if "local" in settings.engines else next(iter(settings.engines))
        found["chat"] = f"{engine}/{label(settings, engine)}"
    return found


def build_catalog(settings: Settings, providers: Iterable[str]) -> Catalog:
    """Raises ValueError for a name that leads nowhere: a route's, or the judge's, who would never say a word."""
    catalog = Catalog(settings.models, offers(settings, providers), aliases(settings))
    judge = settings.cache.judge.model
    try:
        route = None if judge is None else catalog.resolve(judge)
    except NotFound as error:
        raise ValueError(f"cache.judge.model: {error.message}") from error
    if route is not None and any(str(target) == f"local/{ENCODER}" for target in route.targets):
        raise ValueError(f"cache.judge.model: {judge} makes embeddings, it cannot judge.")
    return catalog


def build_policy(settings: Settings) -> ReusePolicy:
    """The reuse policy by its name; one that learns starts from the prior that ships for the encoder, if one does.

    Raises ValueError.
    """
    chosen = settings.cache
    try:
        module = load_policy(chosen.policy)
    except LookupError as error:
        raise ValueError(f"cache.policy: {error}") from error
    if chosen.policy != "learned":
        return module.Policy()
    digest = weights.PINNED["model.safetensors"] if chosen.encoder == weights.BUNDLED else chosen.encoder
    return module.Policy(prior=priors.shipped(digest))


def build_judge(settings: Settings, encoder: EncoderClient, ask: Ask, leads: Leads) -> Judge:
    """`ask` puts a question to a configured model, for a judge that is one; `leads` says where its name leads."""
    chosen = settings.cache.judge
    if chosen.model is None:
        return OfflineJudge(encoder)
    return ModelJudge(chosen.model, ask, settings.home, leads=leads, batch=chosen.batch)


def resident(max_entries: int) -> int:
    """How many vectors a worker may hold: all the store can, so that no scope pushes another out for want of room.

    A partition also holds removed ones, until they are a fifth of it.
    """
    return max(CacheConfig().resident_vectors, max_entries + max_entries // 4)


def build_cache(
    settings: Settings, encoder: EncoderClient, judge: Judge | None = None, watch: Watch | None = None
) -> SemanticCache:
    chosen = settings.cache
    config = CacheConfig(
        mode=chosen.mode,
        ttl=chosen.ttl,
        embed_timeout=chosen.embed_timeout,
        max_error_rate=chosen.max_error_rate,
        max_wrong_hit_rate=chosen.max_wrong_hit_rate,
        audit_share=chosen.audit_share,
        resident_vectors=resident(chosen.max_entries),
    )
    return SemanticCache(
        build_store(settings, None if watch is None else watch.unreadable),
        encoder,
        build_policy(settings),
        config=config,
        now=time.time,
        monotonic=time.monotonic,
        judge=judge,
        watch=watch,
        saving=Saving(Snapshots(settings.home / "index")),
    )
