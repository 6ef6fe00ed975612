"""What is wrong with settings beyond their shape: kinds, places, policies and scopes that there are none of.

Builds what a worker would build and throws it away. Does not start, ask or write anything.
"""

from collections.abc import Callable
from urllib.parse import urlsplit

from cache import weights
from engine.locate import ModelNotFound, locate, locate_draft
from gateway import file_limits
from gateway.catalog import Catalog
from gateway.firstrun import AdminKey, installation_secret
from gateway.parts import build_catalog, build_policy, build_store, build_upstream, offers
from gateway.serve_home import strange_names
from gateway.settings import Settings
from gateway.tasks import Tasks
from gateway.transport.direct import DirectTransport
from gateway.transport.proxies import of_environment


def problems(settings: Settings) -> list[str]:
    """Each in a sentence that names the setting; empty where a gateway can start with them, its engines too."""
    found: list[str] = []

    def tried(build: Callable[[], object]) -> None:
        try:
            build()
        except ValueError as error:
            found.append(str(error))

    transport, tasks = DirectTransport(proxies=of_environment()), Tasks()
    for name, chosen in settings.providers.items():
        tried(lambda name=name, chosen=chosen: build_upstream(name, chosen, transport, tasks))
    places = dict.fromkeys((*settings.providers, "local", *settings.engines))
    if taken := set(settings.providers) & {"local", *settings.engines}:
        found.append(f"a provider and an engine are both called {', '.join(sorted(taken))}")
    catalogs: list[Catalog] = []
    tried(lambda: catalogs.append(build_catalog(settings, places)))
    tried(lambda: AdminKey(settings))
    if settings.secret is not None:  # else one is made at the first start
        tried(lambda: installation_secret(settings))
    for budget in settings.budgets:
        alone = settings.model_copy(update={"budgets": [budget]})
        tried(lambda alone=alone: file_limits.check(alone, *catalogs))
    found += strange_names(settings.engines)
    found += _models_there_are_none_of(settings)
    found += _routes_that_lead_nowhere(settings)
    if (otlp := settings.telemetry.otlp) and not _is_address(otlp):
        found.append("telemetry.otlp is an http:// or https:// address")
    if settings.cache.mode in ("semantic", "shadow") and not weights.is_there(settings.cache.encoder):
        found.append(f"cache.encoder: {settings.cache.encoder} is no folder with a config.json and a model.safetensors")
    tried(lambda: build_policy(settings))
    tried(lambda: build_store(settings))
    return found


def _models_there_are_none_of(settings: Settings) -> list[str]:
    """A gateway starts without them: such an engine stays down."""
    found: list[str] = []
    for name, engine in settings.engines.items():
        if engine.model == "sim":
            continue
        for key, look in (("model", locate), ("speculate", locate_draft)):
            try:
                look(getattr(engine, key))
            except ModelNotFound as error:
                found.append(f"engines.{name}.{key}: {error}")
    return found


def _routes_that_lead_nowhere(settings: Settings) -> list[str]:
    """What an engine serves is known beforehand; a gateway starts, and answers 404 to whoever asks for such a model."""
    served = offers(settings, ())
    ours = {"local", *settings.engines} - set(settings.providers)
    found: list[str] = []
    for name, chosen in settings.models.items():
        aside = [one.to for one in (chosen.canary, chosen.shadow) if one is not None]
        for place in (*(entry.to for entry in chosen.route), *aside):
            engine, _, model = place.partition("/")
            if engine in ours and model not in served[engine]:
                found.append(f"models.{name}: {engine} serves {' and '.join(served[engine])}, not {model}")
    return found


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
