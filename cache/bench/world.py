"""The cache as it runs, in a world whose truth is known: labelled requests, a clock of its own, a judge with coins.

Knows how the gateway uses the cache (find, keep, compare; a hit that is audited is served first) and what is right at
each moment. The cache, its store, its scopes and its policy are the real ones; only upstream, judge and clock are
played. Does not know what is to be shown with them: that is each arm's.
"""

import asyncio
import hashlib
import random
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from cache.bench.readings import Readings
from cache.embedder import Encoded, Read
from cache.judging import Judgement, Pair
from cache.learning import ScopeForm, learning
from cache.scope import Identity, scope_query
from cache.scopes import name_of
from cache.semantic import SemanticCache
from cache.store import Store
from cache.store.memory import MemoryStore
from cache.types import CacheConfig, Entry, Hit, Kept, Miss, Query
from cache.verify import Alert, Watch, ticket
from policies.reuse import Budget, ReusePolicy

Matrix = NDArray[np.float32]
Embed = Callable[[Sequence[str]], Matrix]
_SECRET = b"a world of its own"
_SECONDS = 1.0  # between two requests
_START = 1_790_000_000.0
_PATIENCE = 3_000


class Said(Struct, frozen=True):
    """What an upstream answers, as it is kept. `serial`: no two answers share it."""

    choices: list[dict[str, dict[str, str]]]
    serial: int

    @property
    def text(self) -> str:
        return self.choices[0]["message"]["content"]


class Asked(Struct, frozen=True, kw_only=True):
    """What became of one request. `hit`: it was served from the cache, `text` and `serial` are those of the answer."""

    text: str
    serial: int
    wrong: bool = False
    hit: Hit | None = None
    query: Query

    @property
    def by_meaning(self) -> bool:
        return self.hit is not None and self.hit.tier == "semantic"


class Known:
    """Implements `cache.embedder.Encoder` with vectors computed before, and with the reader that ships."""

    name = "known"
    window = 256

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._readings = Readings(None)
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self.dimension = 0

    def learn(self, texts: Sequence[str]) -> None:
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors]
        if new:
            made = self._embed(new)
            self.dimension = int(made.shape[1])
            self._vectors.update(zip(new, made, strict=True))

    async def start(self) -> None:
        """Nothing to wait for."""

    async def encode(self, texts: Sequence[str]) -> Encoded:
        return Encoded(await self.embed(texts), [1] * len(texts))

    async def embed(self, texts: Sequence[str]) -> Matrix:
        return np.stack([self._vectors[text] for text in texts])

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [1] * len(texts)

    @property
    def reader(self) -> str:
        return self._readings.digest

    async def read(self, pairs: Sequence[tuple[str, str]]) -> Read:
        return Read(self._readings.read(pairs))

    def status(self) -> str | None:
        return None

    async def close(self) -> None:
        """Nothing is held."""


class Labelled:
    """Implements `cache.judging.Judge`: right but for a coin, and says how often it is not."""

    name = "labelled"

    def __init__(self, flip: float, coin: random.Random) -> None:
        self._flip = flip
        self._coin = coin

    async def compare(self, pairs: Sequence[Pair]) -> list[Judgement]:
        return [self._one(pair) for pair in pairs]

    def _one(self, pair: Pair) -> Judgement:
        same = (pair.kept == pair.fresh) != (self._coin.random() < self._flip)
        return Judgement(
            verdict="same" if same else "different", probability=float(same), flip=self._flip, by=self.name
        )


class Plan(Struct, frozen=True, kw_only=True):
    """How a world is set up. `flip`: how often the judge errs; `ttl` in seconds, a second passes per request."""

    policy: ReusePolicy
    embed: Embed
    budget: Budget = Budget()
    seed: int = 0
    flip: float = 0.0
    ttl: float = 86_400.0


class World:
    """One cache. `truth` is handed in with each request, so arms may change it.

    `alerts`: what the cache raised. `headroom`: what the policy said of the scope of the last request that came near.
    """

    def __init__(self, plan: Plan, texts: Sequence[str], store: Store | None = None) -> None:
        self._policy = plan.policy
        self._encoder = Known(plan.embed)
        self._encoder.learn(texts)
        self.coin = random.Random(plan.seed)  # noqa: S311 - coins of a simulation
        self.seconds = _START
        self._serial = 0
        self.alerts: list[Alert] = []
        self.headroom: dict[str, float] = {}
        self.store: Store = store if store is not None else MemoryStore(now=self.now)
        self.cache = SemanticCache(
            self.store,
            self._encoder,
            plan.policy,
            config=CacheConfig(
                ttl=plan.ttl,
                max_error_rate=plan.budget.max_error_rate,
                max_wrong_hit_rate=plan.budget.max_wrong_hit_rate,
            ),
            now=self.now,
            monotonic=self.now,
            judge=Labelled(plan.flip, self.coin),
            random=self.coin.random,
            watch=Watch(alert=self.alerts.append),
        )

    def now(self) -> float:
        return self.seconds

    async def __aenter__(self) -> "World":
        await self.cache.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.cache.close()

    def query(self, text: str, tenant: str = "one") -> Query:
        """Through the real table of what must match exactly. `tenant`: team/project/system prompt."""
        team, project, system = (*tenant.split("/"), "", "")[:3]
        found = scope_query(
            {"messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]},
            "chat",
            identity=Identity(team=team, project=project),
            secret=_SECRET,
            model="labelled",
            max_temperature=1.0,
            encoder=self._encoder.name,
        )
        if not isinstance(found, Query):
            # A text no request may hold: kept apart from all others, as the gateway would.
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()
            return Query(scope=digest, exact=digest, text=text, semantic_bar=found.reason, team=team)
        return found

    async def ask(self, text: str, truth: str, tenant: str = "one") -> Asked:
        """One request, to its end; what is learned from it is learned before the next."""
        self.seconds += _SECONDS
        query = self.query(text, tenant)
        found = await self._found(query)
        if found.sight is not None:
            self.headroom = found.sight.headroom
        if isinstance(found, Miss):
            return await self._miss(query, truth, found)
        said = msgspec.json.decode(found.entry.answer, type=Said)
        if found.audit:
            await self.cache.compare(query, self._fresh(truth)[0], found)
        return Asked(text=said.text, serial=said.serial, wrong=said.text != truth, hit=found, query=query)

    async def _found(self, query: Query) -> Hit | Miss:
        """Reading an index takes real time, and none in this world: without waiting a busy machine would see misses."""
        found = await self.cache.find(query)
        for _ in range(_PATIENCE):
            if not isinstance(found, Miss) or found.reason != "index-loading":
                break
            await asyncio.sleep(0.01)
            found = await self.cache.find(query)
        return found

    async def plant(self, text: str, answer: str, tenant: str = "one") -> int:
        """An answer that is kept without any question asked upstream; its serial."""
        kept, said = self._fresh(answer)
        await self.cache.keep(self.query(text, tenant), kept)
        return said.serial

    async def feedback(self, asked: Asked, *, right: bool) -> None:
        """A person's word on a hit."""
        assert asked.hit is not None
        await self.cache.feedback(asked.hit.entry.id, right=right, ticket=ticket(asked.query, asked.hit))

    async def entries(self) -> set[int]:
        """Serials of the answers that are kept."""
        return {self.serial_of(entry) for entry in await self.cache.entries(1_000_000)}

    @staticmethod
    def serial_of(entry: Entry) -> int:
        return msgspec.json.decode(entry.answer, type=Said).serial

    async def written(self, labels: float) -> None:
        """Wait until the store has a state that knows of so many labels, or for half a minute: nobody asks for it."""
        form = ScopeForm(learning(self._policy))
        name = name_of((self.query("any").scope, self._encoder.name))
        for _ in range(_PATIENCE):
            (stored,) = await self.store.states([name])
            scope = form.decode(stored.blob) if stored is not None else None
            if labels <= 0.0 or (scope is not None and getattr(scope.state, "labels", labels) >= labels):
                return
            await asyncio.sleep(0.01)

    def carry_on(self, before: "World") -> None:
        """Go on where another world stopped: the time, the coins, and no serial twice."""
        self.seconds, self.coin, self._serial = before.seconds, before.coin, before._serial

    async def _miss(self, query: Query, truth: str, found: Miss) -> Asked:
        kept, said = self._fresh(truth)
        await self.cache.keep(query, kept, vector=found.vector)
        if found.sight is not None:
            await self.cache.compare(query, kept, found)
        # Indexes load, and what was learned is written, between requests.
        await asyncio.sleep(0)
        return Asked(text=said.text, serial=said.serial, query=query)

    def _fresh(self, text: str) -> tuple[Kept, Said]:
        self._serial += 1
        said = Said([{"message": {"role": "assistant", "content": text}}], self._serial)
        return Kept(answer=msgspec.json.encode(said), cost_nano=1), said
