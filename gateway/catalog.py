"""Which names clients may ask for and where each leads.

Knows: configured models, providers, the names that always exist. Does not know: health, prices, requests.
"""

from collections.abc import Mapping
from difflib import get_close_matches

from msgspec import Struct

from gateway.errors import NotFound
from gateway.model_settings import ModelSettings, RouteEntry

_NEAR = 3
_LONGEST_SHOWN = 128
_MOST_MET = 1_024  # `provider/model` names remembered between requests
_PLAIN = ModelSettings(route=[RouteEntry(to="-/-")])


class Target(Struct, frozen=True):
    """One place a request can go: a provider's name, the model's name there, and which of several servers."""

    provider: str
    model: str
    replica: str = ""

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"

    @property
    def told(self) -> str:
        """With the server."""
        return f"{self}@{self.replica}" if self.replica else str(self)


class Route(Struct, frozen=True):
    """`targets` as written; `chosen` says in which order they are tried and what else is done. `free`: costs nothing.

    `told`: the targets in one string; `names`: each in one.
    """

    name: str
    targets: tuple[Target, ...]
    chosen: ModelSettings = _PLAIN
    free: bool = False
    told: str = ""
    names: tuple[str, ...] = ()


def _route(name: str, targets: tuple[Target, ...], chosen: ModelSettings | None = None) -> Route:
    if chosen is None:
        chosen = ModelSettings(route=[RouteEntry(to=str(target)) for target in targets])
    names = tuple(map(str, targets))
    return Route(name, targets, chosen, chosen.free, ",".join(names), names)


class Catalog:
    """`offers`: for each provider the models it is known to serve (an empty list: any name is passed on).

    `aliases`: short names that exist unless the configuration gives them another meaning.
    """

    def __init__(
        self, models: Mapping[str, ModelSettings], offers: Mapping[str, list[str]], aliases: Mapping[str, str]
    ) -> None:
        self._aliases = dict(aliases)
        self._offers: dict[str, list[str]] = {}
        self._routes: dict[str, Route] = {}
        self._met: dict[str, Route] = {}
        self.put(models, offers)

    def put(self, models: Mapping[str, ModelSettings], offers: Mapping[str, list[str]]) -> None:
        """These from now on. Raises ValueError, and changes nothing, for a route that leads nowhere."""
        before, self._offers = self._offers, dict(offers)
        try:
            routes = {name: self._configured(name, model) for name, model in models.items()}
        except ValueError:
            self._offers = before
            raise
        for alias, target in self._aliases.items():
            if alias not in routes:
                routes[alias] = _route(alias, (_target(target),))
        self._routes, self._met = routes, {}

    def _configured(self, name: str, model: ModelSettings) -> Route:
        targets = tuple(_target(entry.to) for entry in model.route)
        others = [more.to for more in (model.canary, model.shadow) if more is not None]
        for target in (*targets, *map(_target, others)):
            if target.provider not in self._offers:
                known = ", ".join(sorted(self._offers))
                raise ValueError(f"models.{name}: no provider or engine is called {target.provider!r}. Known: {known}.")
        return _route(name, targets, model)

    def _direct(self, name: str) -> Route | None:
        provider, slash, model = name.partition("/")
        offered = self._offers.get(provider)
        if not slash or not model or offered is None or (offered and model not in offered):
            return None
        return _route(name, (Target(provider, model),))

    def resolve(self, name: str) -> Route:
        """Where this name leads. Raises NotFound (404 model_not_found) that lists near names."""
        route = self._routes.get(name) or self._met.get(name)
        if route is None and (route := self._direct(name)) is not None:
            if len(self._met) >= _MOST_MET:
                self._met.clear()
            self._met[name] = route
        if route is None:
            shown = name if len(name) <= _LONGEST_SHOWN else name[:_LONGEST_SHOWN] + "…"
            near = get_close_matches(shown, self.names(), n=_NEAR, cutoff=0.5)
            hint = f" Near names: {', '.join(near)}." if near else " GET /v1/models lists what there is."
            raise NotFound(f"The model `{shown}` does not exist or you do not have access to it.{hint}")
        return route

    def kept_as(self, name: str) -> str:
        """What answers to this name are kept under: the places it leads to; the name itself where it leads nowhere."""
        try:
            return self.resolve(name).told
        except NotFound:
            return name

    def names(self) -> list[str]:
        """Every name worth listing, configured ones first."""
        direct = [f"{provider}/{model}" for provider, offered in self._offers.items() for model in offered]
        return [*self._routes, *(name for name in direct if name not in self._routes)]


def _target(text: str) -> Target:
    provider, slash, model = text.partition("/")
    if not slash or not provider or not model:
        raise ValueError(f"a route names <provider>/<model>, not {text!r}")
    return Target(provider, model)
