"""Random tenants, prompts and operations against the most permissive policy: no answer ever crosses a tenant."""

import asyncio
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from cache.embedder import HashEncoder
from cache.scope import Identity, Level, scope_query
from cache.semantic import SemanticCache
from cache.store.memory import MemoryStore
from cache.types import CacheConfig, Hit, Kept, Query
from policies.reuse.threshold import Params, Policy
from tests.clock import FrozenClock
from tests.proofs import examples

LEVELS: tuple[Level, ...] = ("user", "key", "project", "team", "org")
SEEN_BY = {
    "org": ("org",),
    "team": ("org", "team"),
    "project": ("org", "team", "project"),
    "key": ("org", "team", "project", "key"),
    "user": ("org", "team", "project", "user"),
}
identities = st.builds(
    Identity,
    org=st.sampled_from(("o", "p")),
    team=st.sampled_from(("a", "ab")),
    project=st.sampled_from(("", "b", "bc")),
    key=st.sampled_from(("k", "l")),
    user=st.sampled_from(("k", "u")),
    scope=st.sampled_from(LEVELS),
)
bodies = st.builds(
    lambda system, text, temperature, model: {
        "model": model,
        "temperature": temperature,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}],
    },
    system=st.sampled_from(("be brief", "be kind")),
    text=st.sampled_from(("how do i bake bread", "how do i bake good bread", "where is my order", "")),
    temperature=st.sampled_from((0, 1)),
    model=st.sampled_from(("m", "n")),
)


class Step(NamedTuple):
    what: str
    identity: Identity
    body: dict[str, Any]
    number: int


steps = st.lists(
    st.builds(
        Step,
        what=st.sampled_from(("keep", "keep", "find", "find", "find", "evict", "purge", "wait", "restart")),
        identity=identities,
        body=bodies,
        number=st.integers(0, 30),
    ),
    min_size=1,
    max_size=60,
)


def label(identity: Identity, body: dict[str, Any]) -> bytes:
    """Who may see an answer to `body`, and what must be the same: written into the answer itself."""
    who = [identity.scope, *(getattr(identity, name) for name in SEEN_BY[identity.scope])]
    return repr((who, body["model"], body["temperature"], body["messages"][0])).encode()


class Run:
    """One random history."""

    def __init__(self) -> None:
        self.clock = FrozenClock()
        self.store = MemoryStore(max_entries=12)
        self.gone: set[int] = set()
        self.kept: list[int] = []
        self.hits = 0

    def open(self) -> SemanticCache:
        return SemanticCache(
            self.store,
            HashEncoder(dimension=16),
            Policy(Params(similarity=-1.0)),
            config=CacheConfig(ttl=100.0, front_entries=4, partitions=2, resident_vectors=8),
            now=self.clock.now,
            monotonic=self.clock.monotonic,
        )

    async def play(self, history: list[Step]) -> None:
        cache = self.open()
        await cache.start()
        for step in history:
            if step.what == "restart":
                cache = self.open()
                await cache.start()
            elif step.what == "wait":
                self.clock.advance(step.number)
            else:
                await self.act(cache, step)

    async def act(self, cache: SemanticCache, step: Step) -> None:
        query = scope_query(
            step.body,
            "chat",
            identity=step.identity,
            secret=b"s" * 32,
            model=step.body["model"],
            max_temperature=1.0,
            encoder="hash",
        )
        assert isinstance(query, Query)
        if step.what == "keep":
            entry_id = await cache.keep(query, Kept(answer=label(step.identity, step.body)))
            if entry_id is not None:
                self.kept.append(entry_id)
        elif step.what == "evict" and self.kept:
            self.gone.add(chosen := self.kept[step.number % len(self.kept)])
            await cache.evict(chosen)
        elif step.what == "purge":
            self.gone |= {entry.id for entry in await cache.entries(1_000) if entry.team == step.identity.team}
            await cache.purge(team=step.identity.team)
        elif step.what == "find":
            found = await cache.find(query)
            if isinstance(found, Hit):
                self.hits += 1
                assert found.entry.scope == query.scope
                assert found.entry.answer == label(step.identity, step.body)
                assert found.entry.id not in self.gone
                assert found.entry.expires > self.clock.now()


@settings(max_examples=examples(120), deadline=None)
@given(steps)
def test_no_answer_crosses_a_tenant(history: list[Step]) -> None:
    """Every hit was kept by and for the asker's own scope, is alive, and was never evicted or purged."""
    asyncio.run(Run().play(history))


def test_the_property_is_not_empty() -> None:
    """A wall that nobody can pass would satisfy the property too: some histories must hit."""
    asker = Identity(org="o", team="a", project="b", key="k", user="u")
    body: dict[str, Any] = {
        "model": "m",
        "temperature": 0,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "how do i bake bread"}],
    }
    other = {**body, "messages": [body["messages"][0], {"role": "user", "content": "where is my order"}]}
    run = Run()
    asyncio.run(run.play([Step("keep", asker, body, 0), Step("find", asker, body, 0), Step("find", asker, other, 0)]))
    assert run.hits == 2
