"""`/v1/batches`: make, list, read, cancel; with and without `/v1`.

Knows: OpenAI's shapes and what a request for a batch may hold. Does not know: how batches are run.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import get, post
from litestar.params import FromPath

from gateway import wire
from gateway.auth import Keyring
from gateway.batches.office import Office
from gateway.batches.shapes import ENDPOINTS, WINDOW_SECONDS, Batch, Counts, Wanted
from gateway.body import decode_object, read_body
from gateway.call import Directives
from gateway.directives import directives
from gateway.errors import InvalidRequest
from gateway.files import Files
from gateway.ids import uuid7
from gateway.kept_settings import KeptSettings
from gateway.routes.asker import AnyRequest, after_of, asker, changer, limit_of, page
from gateway.routes.desks import desk
from gateway.settings import Server

_LISTED = 20
_KNOWN = frozenset(Wanted.__struct_fields__)
_deterministic = msgspec.json.Encoder(order="deterministic").encode
Json = dict[str, object]


class Desk:
    """`now`: wall-clock, `monotonic` never goes back."""

    def __init__(  # noqa: PLR0913 - one name per part it is made of
        self,
        office: Office,
        files: Files,
        keyring: Keyring,
        settings: KeptSettings,
        server: Server,
        *,
        now: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._office = office
        self._files = files
        self._keyring = keyring
        self._settings = settings
        self._server = server
        self._now = now
        self._monotonic = monotonic

    async def make(self, request: AnyRequest) -> Json:
        headers: Any = request.scope["headers"]
        owner = await asker(self._keyring, request.scope)
        asked = directives(headers)
        if asked.dry_run:
            why = "A batch cannot be rehearsed; send one of its requests with x-nearhit-dry-run."
            raise InvalidRequest(why, param="x-nearhit-dry-run", code="invalid_value")
        body = await self._body(request)
        try:
            wanted = msgspec.convert(body, Wanted)
        except msgspec.ValidationError as error:
            raise wire.explain(str(error)) from None
        if unknown := body.keys() - _KNOWN:
            name = min(unknown)[:64]
            raise InvalidRequest(f"Unknown parameter: '{name}'.", param=name, code="unknown_parameter")
        if wanted.endpoint not in ENDPOINTS:
            why = f"'endpoint' must be one of {', '.join(ENDPOINTS)}."
            raise InvalidRequest(why, param="endpoint", code="invalid_value")
        file = await self._files.get(owner, wanted.input_file_id, "input_file_id")
        if file.purpose != "batch":
            why = "The input of a batch must be uploaded with the purpose 'batch'."
            raise InvalidRequest(why, param="input_file_id", code="invalid_value")
        batch = self._batch(wanted, owner, asked)
        once = None
        if asked.idempotency_key is not None:
            once = hashlib.blake2b(f"{owner.key_id}\n{asked.idempotency_key}".encode(), digest_size=20).hexdigest()
        fingerprint = hashlib.blake2b(_deterministic(body), digest_size=20).hexdigest()
        made = await self._office.make(batch, once, fingerprint)
        return made.shown(Counts()) if made.id == batch.id else (await self._shown(request, made.id))

    def _batch(self, wanted: Wanted, owner: Any, asked: Directives) -> Batch:
        now = self._now()
        kept = msgspec.structs.replace(asked, idempotency_key=None, traceparent=None)
        lifetime = self._settings.output_ttl if wanted.output_expires_after is None else None
        return Batch(
            id=f"batch_{uuid7().replace('-', '')}",
            team=owner.team,
            project=owner.project,
            key_id=owner.key_id,
            endpoint=wanted.endpoint,
            input_file=wanted.input_file_id,
            output_file=None,
            error_file=None,
            window=wanted.completion_window,
            status="validating",
            metadata=wanted.metadata,
            errors=None,
            directives=msgspec.to_builtins(kept),
            lines=0,
            succeeded=0,
            unsuccessful=0,
            output_lifetime=float(wanted.output_expires_after.seconds)
            if wanted.output_expires_after
            else lifetime or 0,
            created=now,
            expires=now + WINDOW_SECONDS,
            in_progress=None,
            finalizing=None,
            completed=None,
            failed=None,
            expired=None,
            cancelling=None,
            cancelled=None,
        )

    async def _body(self, request: AnyRequest) -> Json:
        headers: Any = request.scope["headers"]
        limit, patience = self._server.max_body, self._server.body_timeout
        raw = await read_body(request.receive, headers, limit=limit, timeout=patience, monotonic=self._monotonic)
        return decode_object(raw)

    async def list(self, request: AnyRequest) -> Json:
        owner = await asker(self._keyring, request.scope)
        limit = limit_of(request, _LISTED)
        found = await self._office.list(owner, after_of(request), limit)
        return page([batch for batch, _ in found], limit, [batch.shown(counts) for batch, counts in found])

    async def get(self, request: AnyRequest, batch_id: str) -> Json:
        return await self._shown(request, batch_id)

    async def _shown(self, request: AnyRequest, batch_id: str) -> Json:
        batch, counts = await self._office.get(await asker(self._keyring, request.scope), batch_id)
        return batch.shown(counts)

    async def cancel(self, request: AnyRequest, batch_id: str) -> Json:
        owner = await changer(self._keyring, request.scope)
        batch, counts = await self._office.cancel(owner, batch_id)
        return batch.shown(counts)


def route_handlers() -> list[Any]:
    both: Any = {"tags": ["Data plane"], "status_code": 200}

    @post(["/v1/batches", "/batches"], summary="Make a batch", **both)
    async def make_batch(request: AnyRequest) -> Json:
        return await desk(Desk, request).make(request)

    @get(["/v1/batches", "/batches"], summary="Batches", **both)
    async def list_batches(request: AnyRequest) -> Json:
        return await desk(Desk, request).list(request)

    @get(["/v1/batches/{batch_id:str}", "/batches/{batch_id:str}"], summary="A batch", **both)
    async def get_batch(request: AnyRequest, batch_id: FromPath[str]) -> Json:
        return await desk(Desk, request).get(request, batch_id)

    @post(["/v1/batches/{batch_id:str}/cancel", "/batches/{batch_id:str}/cancel"], summary="Stop a batch", **both)
    async def cancel_batch(request: AnyRequest, batch_id: FromPath[str]) -> Json:
        return await desk(Desk, request).cancel(request, batch_id)

    return [make_batch, list_batches, get_batch, cancel_batch]
