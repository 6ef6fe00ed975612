"""A control plane on a real SQLite file, with requests that happened: what the routes and pages are tested on."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from litestar.types import ASGIApp
from sqlalchemy import insert

from gateway.auth import ADMIN, Keyring, NewKey
from gateway.call import Role
from gateway.control_plane import ControlPlane
from gateway.db.models import Entry, Explain, PriceVersion
from gateway.db.session import Database
from gateway.db.sums import COLUMNS
from gateway.firstrun import AdminKey
from gateway.ledger import Ledger
from gateway.ledger.request_rows import RequestRows, plain
from gateway.prices import PriceBook
from gateway.services import Services
from gateway.settings import Settings
from gateway.tasks import Tasks
from tests.clock import FrozenClock

ADMIN_KEY = "operator-chosen-admin-key"


class House:
    """Services, the app over them, and shorthands for asking it."""

    def __init__(self, services: Services, app: ControlPlane, clock: FrozenClock) -> None:
        self.services = services
        self.app = app
        self.clock = clock

    @asynccontextmanager
    async def client(
        self, key: str | None = ADMIN_KEY, app: ASGIApp | None = None
    ) -> AsyncGenerator[httpx.AsyncClient, None]:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        transport = httpx.ASGITransport(app=app or self.app)  # pyright: ignore[reportArgumentType] - two spellings of ASGI
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", headers=headers) as client:
            yield client

    async def key(self, role: Role = "app", team: str = "acme") -> str:
        wanted = NewKey(name=f"{role} key", team=team, project="web" if team else "", role=role)
        return (await self.services.keyring.create(ADMIN, wanted)).key


@asynccontextmanager
async def house(tmp_path: Path, clock: FrozenClock, **changes: Any) -> AsyncGenerator[House, None]:
    """Everything but the data plane, on a database in `tmp_path`."""
    settings = Settings(home=tmp_path / "home", admin_key=ADMIN_KEY)  # pyright: ignore[reportArgumentType] - pydantic reads text
    settings.home.mkdir(parents=True)
    async with AsyncExitStack() as stack:
        database = Database(f"sqlite:///{tmp_path / 'nearhit.db'}")
        stack.push_async_callback(database.close)
        await database.start()
        tasks = Tasks()
        stack.push_async_callback(tasks.finish, 1.0)
        ledger = Ledger(
            database, tmp_path / "journal", settings=settings, now=clock.now, monotonic=clock.monotonic, tasks=tasks
        )
        await ledger.start(background=False)
        stack.push_async_callback(ledger.close)
        keyring = Keyring(database, b"p" * 32, now=clock.now, monotonic=clock.monotonic, admin_key=AdminKey(settings))
        prices = PriceBook(database, settings=settings, now=clock.now)
        await prices.load()
        parts: dict[str, Any] = {"prices": prices, **changes}
        services = Services(
            settings=settings,
            database=database,
            keyring=keyring,
            ledger=ledger,
            now=clock.now,
            models=lambda: ["chat", "embed", "smart"],
            **parts,
        )
        yield House(services, ControlPlane(services, largest=10_000_000), clock)


def request_row(clock: FrozenClock, number: int, **changes: Any) -> dict[str, Any]:
    """One answered request, `number` minutes ago."""
    at = clock.now() - number * 60
    values: dict[str, Any] = {
        "id": f"0190c0de-{999_999 - number:012x}"[:36],
        "at": at,
        "key_id": "aaaaaaaa",
        "team": "acme",
        "project": "web",
        "user": None,
        "model": "chat",
        "provider": "local",
        "model_used": "demo",
        "operation": "chat",
        "stream": False,
        "source": "upstream",
        "cache": "miss",
        "status": 200,
        "error": None,
        "prompt": 120,
        "cached": 20,
        "cache_write": 0,
        "completion": 80,
        "reasoning": 0,
        "cost_nano": 213_000,
        "saved_nano": 0,
        "cost_status": "exact",
        "similarity": None,
        "confidence": None,
        "ttft_ms": 210.0,
        "tpot_ms": 9.5,
        "total_ms": 812.0,
        "overhead_ms": 0.6,
        "attempts": 1,
        "finish": "stop",
        "complete": True,
        "client_gone": False,
        "tags": {"feature": "faq"},
    }
    return {**values, **changes}


def hit_row(clock: FrozenClock, number: int, **changes: Any) -> dict[str, Any]:
    """One request answered from the cache by meaning."""
    hit = {
        "source": "semantic",
        "cache": "hit-semantic",
        "cost_nano": 0,
        "saved_nano": 213_000,
        "similarity": 0.943,
        "confidence": 0.995,
        "ttft_ms": 6.1,
        "total_ms": 6.4,
        "attempts": 0,
    }
    return request_row(clock, number, **{**hit, **changes})


async def happened(database: Database, rows: list[dict[str, Any]]) -> None:
    """Rows as the recorder writes them: with their sums."""
    written = [
        plain({"discount_nano": 0, "routed_nano": 0, "embed_nano": 0, **row}[name] for name in COLUMNS) for row in rows
    ]
    writer = RequestRows(database.dialect)
    for i in range(0, len(written), 500):
        await database.transact(writer.add, written[i : i + 500])


async def explained(database: Database, request_id: str, at: float, data: dict[str, object]) -> None:
    async with database.begin() as connection:
        await connection.execute(insert(Explain), [{"request_id": request_id, "at": at, "data": data}])


async def charged(database: Database, request_id: str, at: float, amount: int, **changes: Any) -> None:
    """A ledger line of the request's first attempt and the price version it names."""
    price: dict[str, Any] = {column.name: 0 for column in PriceVersion.__table__.columns}
    price |= {
        "id": changes.get("price", "p1"),
        "provider": "local",
        "model": "demo",
        "input_pico": 150_000,
        "output_pico": 600_000,
    }
    price |= {"status": "exact", "first_used": at, "tiers": [], "terms": None}
    entry: dict[str, Any] = {
        "id": f"{request_id}.1",
        "request_id": request_id,
        "admitted": at,
        "at": at,
        "boot": "b",
        "windows": "[]",
        "team": "acme",
        "project": "web",
        "key_id": "aaaaaaaa",
        "user": None,
        "provider": "local",
        "model": "demo",
        "provider_id": "chatcmpl-1",
        "price": "p1",
        "prompt": 120,
        "cached": 20,
        "cache_write": 0,
        "completion": 80,
        "reasoning": 0,
        "amount_nano": amount,
        "reserved_nano": 900_000,
        "source": "engine",
        "ended": "complete",
        "note": None,
        "digest": "d",
    }
    async with database.begin() as connection:
        await connection.execute(insert(PriceVersion), [price])
        await connection.execute(insert(Entry), [{**entry, **changes}])
