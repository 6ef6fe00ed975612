"""Who a key belongs to, how long that is remembered, and that nobody grants more than they hold."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from gateway import keyform
from gateway.auth import ADMIN, GRACE, ROLES, TTL, Keyring, NewKey, grantable, may, presented, require, within
from gateway.call import Principal
from gateway.db.session import Database
from gateway.errors import InvalidRequest, NotAllowed, NotFound, Overloaded, RateLimited, Unauthorized
from gateway.strangers import EACH
from gateway.tasks import Tasks
from tests import empty_database
from tests.clock import FrozenClock
from tests.proofs import examples
from tests.unit.control.house import ADMIN_KEY
from tests.waiting import until


def bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"localhost"), (b"authorization", b"Bearer " + key.encode())]


def wanted(**changes: object) -> NewKey:
    values: dict[str, object] = {"name": "app one", "team": "acme", "project": "web"}
    return NewKey(**{**values, **changes})  # pyright: ignore[reportArgumentType] - a test's shorthand


@asynccontextmanager
async def statements(database: Database) -> AsyncGenerator[list[str], None]:
    """Every statement the database is asked inside the block."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    engines = {database._writer.sync_engine, database._reader.sync_engine}
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    yield seen
    for engine in engines:
        event.remove(engine, "before_cursor_execute", note)


class BrokenDatabase(Database):
    """A database that can be pulled away and put back."""

    broken = False

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[object, None]:  # pyright: ignore[reportIncompatibleMethodOverride] - a test's stand-in
        if self.broken:
            raise OperationalError("SELECT", None, Exception("gone"))
        async with super().read() as connection:
            yield connection


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
async def test_a_key_is_accepted_in_each_of_the_three_headers(keyring: Keyring, name: str) -> None:
    """Clients of OpenAI, Anthropic and Azure each send their own header."""
    key = (await keyring.create(ADMIN, wanted(models=frozenset({"chat"})))).key
    value = f"bEaReR {key}" if name == "authorization" else key
    found = await keyring.identify([(name.encode(), value.encode())])
    assert (found.team, found.project, found.role, found.models) == ("acme", "web", "app", frozenset({"chat"}))


def test_no_key_says_how_to_send_one() -> None:
    """The first mistake of every newcomer needs the mend in its answer."""
    with pytest.raises(Unauthorized, match="Authorization: Bearer") as caught:
        presented([(b"authorization", b"Basic abc"), (b"x-api-key", b"  ")])
    assert caught.value.code == "invalid_api_key"
    assert caught.value.http_status == 401


async def test_unknown_and_malformed_keys_are_refused_without_being_repeated(keyring: Keyring) -> None:
    """A key in an error message ends up in logs."""
    key = (await keyring.create(ADMIN, wanted())).key
    wrong = key[:20] + ("a" if key[20] != "a" else "b") + key[21:]
    for text in (wrong, "sk-proj-abc", "x" * 10_000, "ключ"):
        with pytest.raises(Unauthorized) as caught:
            await keyring.identify(bearer(text))
        assert text not in caught.value.message


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60), deadline=None)
@given(text=st.binary(max_size=300))
async def test_malformed_keys_cost_no_statement(keyring: Keyring, database: Database, text: bytes) -> None:
    """The error path of a key check is where a peer was injected into: malformed text never reaches SQL."""
    async with statements(database) as seen:
        with pytest.raises(Unauthorized):
            await keyring.identify([(b"authorization", b"Bearer " + text), (b"x-api-key", text)])
    assert seen == []


async def test_a_known_key_is_not_asked_for_again_until_it_is_stale(
    keyring: Keyring, database: Database, clock: FrozenClock
) -> None:
    """The hot path is a dictionary look-up; a revocation elsewhere is seen within TTL seconds."""
    key = (await keyring.create(ADMIN, wanted())).key
    await keyring.identify(bearer(key))
    async with statements(database) as seen:
        clock.advance(TTL - 1)
        await keyring.identify(bearer(key))
        assert seen == []
        clock.advance(2)
        await keyring.identify(bearer(key))
        assert len([text for text in seen if "api_key" in text]) == 1


async def test_unknown_keys_are_remembered_too(keyring: Keyring, database: Database, clock: FrozenClock) -> None:
    """A client that repeats a wrong key must not turn into load on the database."""
    stranger = Keyring(database, b"q" * 32, now=clock.now, monotonic=clock.monotonic)
    key = (await keyring.create(ADMIN, wanted())).key
    with pytest.raises(Unauthorized):
        await stranger.identify(bearer(key))
    async with statements(database) as seen:
        with pytest.raises(Unauthorized):
            await stranger.identify(bearer(key))
    assert seen == []


class SlowDatabase(Database):
    """A database whose answers come when they are let."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.let = asyncio.Event()
        self.asked = 0

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[object, None]:  # pyright: ignore[reportIncompatibleMethodOverride] - a test's stand-in
        self.asked += 1
        await self.let.wait()
        async with super().read() as connection:
            yield connection


async def test_made_up_keys_wait_for_each_other_and_for_nobody_else(tmp_path: Path, clock: FrozenClock) -> None:
    """Each costs a read of the database: whoever sends thousands of them must not make others wait behind it."""
    database = SlowDatabase(f"sqlite:///{tmp_path / 'nearhit.db'}")
    empty_database.put(tmp_path / "nearhit.db")
    await database.start()
    database.let.set()
    keyring = Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic)
    known = (await keyring.create(ADMIN, wanted())).key
    await keyring.identify(bearer(known))
    clock.advance(TTL + 1)  # it is asked for again, too
    database.let.clear()
    tasks = Tasks()
    made_up = [keyform.mint(secrets.token_bytes).key for _ in range(EACH + 8)]
    flood = [tasks.spawn(keyring.identify(bearer(key), "10.0.0.1"), "flood") for key in made_up]
    await until(lambda: sum(task.done() for task in flood) == 8)
    assert database.asked == 3, "of those that wait one is looked up at a time"
    owner = tasks.spawn(keyring.identify(bearer(known), "10.0.0.1"), "owner")
    other = tasks.spawn(keyring.identify(bearer(keyform.mint(secrets.token_bytes).key), "10.0.0.2"), "other")
    await until(lambda: database.asked == 4)  # the known key has a lane of its own
    assert not other.done(), "another address has its place in the queue"
    database.let.set()
    assert (await owner).team == "acme"
    told = await asyncio.gather(*flood, other, return_exceptions=True)
    assert [type(one) for one in told] == [Unauthorized] * EACH + [RateLimited] * 8 + [Unauthorized]
    late = await asyncio.gather(keyring.identify(bearer(made_up[-1]), "10.0.0.1"), return_exceptions=True)
    assert isinstance(late[0], Unauthorized), "its places are free again"
    await database.close()


async def test_many_requests_with_one_key_take_one_place(tmp_path: Path, clock: FrozenClock) -> None:
    """A client that starts with all its connections at a worker that has just begun must not be turned away."""
    database = SlowDatabase(f"sqlite:///{tmp_path / 'nearhit.db'}")
    empty_database.put(tmp_path / "nearhit.db")
    await database.start()
    database.let.set()
    known = (await Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic).create(ADMIN, wanted())).key
    fresh = Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic)
    database.asked = 0
    found = await asyncio.gather(*(fresh.identify(bearer(known), "10.0.0.1") for _ in range(3 * EACH)))
    assert {principal.team for principal in found} == {"acme"}
    assert database.asked == 1
    made_up = keyform.mint(secrets.token_bytes).key
    await asyncio.gather(*(fresh.identify(bearer(made_up), "10.0.0.1") for _ in range(99)), return_exceptions=True)
    assert database.asked == 2
    await database.close()


async def test_a_stolen_database_without_the_pepper_opens_nothing(
    keyring: Keyring, database: Database, clock: FrozenClock
) -> None:
    """Only the keyed hash is stored; under another pepper the same key is unknown."""
    key = (await keyring.create(ADMIN, wanted())).key
    with pytest.raises(Unauthorized):
        await Keyring(database, b"other" * 8, now=clock.now, monotonic=clock.monotonic).identify(bearer(key))


async def test_revocation_is_immediate_here(keyring: Keyring) -> None:
    """A leaked key must stop at the moment it is revoked, not when a memory runs out."""
    made = await keyring.create(ADMIN, wanted())
    await keyring.identify(bearer(made.key))
    await keyring.revoke(ADMIN, made.row.id)
    with pytest.raises(Unauthorized, match="revoked"):
        await keyring.identify(bearer(made.key))
    again = await keyring.revoke(ADMIN, made.row.id)
    assert again.revoked is not None


async def test_a_revocation_elsewhere_is_seen_within_the_freshness_time(
    keyring: Keyring, database: Database, clock: FrozenClock
) -> None:
    """Two processes share only the database."""
    other = Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic)
    made = await keyring.create(ADMIN, wanted())
    await other.identify(bearer(made.key))
    await keyring.revoke(ADMIN, made.row.id)
    await other.identify(bearer(made.key))
    clock.advance(TTL)
    with pytest.raises(Unauthorized):
        await other.identify(bearer(made.key))


async def test_a_key_stops_at_its_expiry_even_when_remembered(keyring: Keyring, clock: FrozenClock) -> None:
    """The memory's lifetime must never outlive the key."""
    made = await keyring.create(ADMIN, wanted(expires=clock.now() + 5))
    await keyring.identify(bearer(made.key))
    clock.advance(5)
    with pytest.raises(Unauthorized, match="expired"):
        await keyring.identify(bearer(made.key))


async def test_rotation_keeps_the_id_and_kills_the_old_secret(keyring: Keyring) -> None:
    """Budgets and usage are per id, so rotating must not start a new history."""
    made = await keyring.create(ADMIN, wanted())
    await keyring.identify(bearer(made.key))
    fresh = await keyring.rotate(ADMIN, made.row.id)
    assert fresh.row.id == made.row.id
    assert (await keyring.identify(bearer(fresh.key))).key_id == made.row.id
    with pytest.raises(Unauthorized):
        await keyring.identify(bearer(made.key))
    await keyring.revoke(ADMIN, made.row.id)
    with pytest.raises(InvalidRequest, match="revoked"):
        await keyring.rotate(ADMIN, made.row.id)


async def test_keys_that_share_a_beginning_never_share_a_memory(keyring: Keyring) -> None:
    """A peer keyed its memory by the first letters and handed out other people's identities."""
    one = await keyring.create(ADMIN, wanted(team="one"))
    two = await keyring.rotate(ADMIN, one.row.id)
    assert one.key[:14] == two.key[:14]
    assert (await keyring.identify(bearer(two.key))).team == "one"
    with pytest.raises(Unauthorized):
        await keyring.identify(bearer(two.key[:30] + one.key[30:]))


async def test_the_admin_key_needs_no_database(keyring: Keyring, database: Database) -> None:
    """The operator can look at a gateway whose database is gone."""
    async with statements(database) as seen:
        assert (await keyring.identify(bearer(ADMIN_KEY))).role == "admin"
        with pytest.raises(Unauthorized):
            await keyring.identify(bearer(ADMIN_KEY + "x"))
    assert seen == []


async def test_known_keys_outlive_a_database_outage_for_a_while(tmp_path: object, clock: FrozenClock) -> None:
    """Five minutes without the database must not stop running applications, and an hour must not run on memory."""
    database = BrokenDatabase(f"sqlite:///{tmp_path}/n.db")
    await database.start()
    keyring = Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic)
    key = (await keyring.create(ADMIN, wanted())).key
    other = (await keyring.create(ADMIN, wanted())).key
    await keyring.identify(bearer(key))
    database.broken = True
    clock.advance(TTL + 1)
    assert (await keyring.identify(bearer(key))).team == "acme"
    with pytest.raises(Overloaded):
        await keyring.identify(bearer(other))
    clock.advance(GRACE)
    with pytest.raises(Overloaded) as caught:
        await keyring.identify(bearer(key))
    assert ("retry-after", "2") in caught.value.headers
    await database.close()


async def test_the_memory_is_bounded(keyring: Keyring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can make keys must not be able to grow the process."""
    monkeypatch.setattr("gateway.auth._KNOWN_BOUND", 3)
    for _ in range(6):
        await keyring.identify(bearer((await keyring.create(ADMIN, wanted())).key))
    assert len(keyring._known) == 3
    assert len(keyring._digests) == 3


ROLE = st.sampled_from(ROLES)
TEAM = st.sampled_from(["", "acme", "zeta"])
MODELS = st.none() | st.frozensets(st.sampled_from(["chat", "embed", "smart"]))


@given(ROLE, TEAM, MODELS, ROLE, TEAM, MODELS)
def test_a_made_key_never_grants_more_than_its_maker_has(
    role: str, team: str, models: frozenset[str] | None, new_role: str, new_team: str, new_models: frozenset[str] | None
) -> None:
    """Self-escalation through key creation is how a peer lost its admin."""
    maker = Principal(key_id="m", team=team, project="", role=role, models=models)  # pyright: ignore[reportArgumentType]
    new = NewKey(name="n", team=new_team, project="p", role=new_role, models=new_models)  # pyright: ignore[reportArgumentType]
    made = Principal(key_id="n", team=new_team, project="p", role=new_role, models=new_models)  # pyright: ignore[reportArgumentType]
    if grantable(maker, new) is None:
        assert all(may(maker, step) for step in ROLES if may(made, step))
        assert all(within(maker, one) for one in ("", "acme", "zeta") if within(made, one))
        allowed = {name for name in ("chat", "embed", "smart") if made.models is None or name in made.models}
        assert all(maker.models is None or name in maker.models for name in allowed)


async def test_another_teams_key_looks_like_none(keyring: Keyring) -> None:
    """A team's administrator must not learn which keys other teams have."""
    made = await keyring.create(ADMIN, wanted(team="zeta"))
    acme = Principal(key_id="a", team="acme", project="", role="admin")
    with pytest.raises(NotFound):
        await keyring.revoke(acme, made.row.id)
    with pytest.raises(NotFound):
        await keyring.rotate(acme, made.row.id)
    assert await keyring.list(acme) == []
    with pytest.raises(NotAllowed):
        await keyring.create(acme, wanted(team="zeta"))


async def test_a_key_that_ends_makes_none_that_lasts(keyring: Keyring, clock: FrozenClock) -> None:
    """Else a contractor's key for a week could leave a key for ever behind."""
    week = clock.now() + 7 * 86_400
    maker = await keyring.create(ADMIN, wanted(role="admin", expires=week))
    actor = await keyring.identify(bearer(maker.key))
    for expires in (None, week + 1):
        with pytest.raises(NotAllowed, match="longer life"):
            await keyring.create(actor, wanted(expires=expires))
    await keyring.create(actor, wanted(expires=week))


async def test_rotating_is_no_way_around_what_making_refuses(keyring: Keyring) -> None:
    """Whoever rotates a key is shown its text, so they must hold all that it opens."""
    wide = await keyring.create(ADMIN, wanted())
    narrow = await keyring.create(ADMIN, wanted(role="admin", models=frozenset({"chat"})))
    actor = await keyring.identify(bearer(narrow.key))
    with pytest.raises(NotAllowed, match="models beyond your own"):
        await keyring.rotate(actor, wide.row.id)


async def test_nobody_revokes_above_their_role(keyring: Keyring) -> None:
    """Else an operator could lock the administrators out."""
    made = await keyring.create(ADMIN, wanted(team="acme", role="admin"))
    with pytest.raises(NotAllowed):
        await keyring.revoke(Principal(key_id="o", team="acme", project="", role="operator"), made.row.id)


def test_roles_are_ordered_and_applications_stand_outside() -> None:
    """An application's key opens nothing in the control plane."""
    app = Principal(key_id="k", team="t", project="p")
    assert [may(app, role) for role in ROLES] == [True, False, False, False, False]
    with pytest.raises(NotAllowed) as caught:
        require(app, "viewer")
    assert caught.value.code == "insufficient_role"
