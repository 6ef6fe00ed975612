"""`/v1/files`: upload, list, read, download, delete; with and without `/v1`.

Knows: OpenAI's shapes. Does not know: where files are kept, what batches do with them.
"""

from typing import Any

from litestar import delete, get, post
from litestar.params import FromPath
from litestar.response import Stream

from gateway.auth import Keyring
from gateway.errors import InvalidRequest
from gateway.files import PURPOSES, File, Files
from gateway.routes.asker import AnyRequest, after_of, asker, changer, limit_of, order_of, page, text_of, whole
from gateway.routes.desks import desk
from gateway.upload import Form, Reader

_SOONEST, _LATEST = 3_600, 30 * 86_400  # seconds until a file may expire
_MOST_LISTED = 10_000
_HIDDEN = {"x-content-type-options": "nosniff", "cache-control": "no-store"}
Json = dict[str, object]


class Desk:
    """`patience`: seconds a form may take, beside what its size needs."""

    def __init__(self, files: Files, keyring: Keyring, *, patience: float) -> None:
        self._files = files
        self._keyring = keyring
        self._patience = patience

    async def upload(self, request: AnyRequest) -> Json:
        headers: Any = request.scope["headers"]
        owner = await changer(self._keyring, request.scope)
        writing = await self._files.begin(owner)
        try:
            reader = Reader(headers, writing.piece, limit=self._files.max_file, setting="kept.max_file")
            form = await reader.read(request.receive, self._patience)
            made = await writing.finish(*_checked(form))
        except BaseException:
            await writing.abandon()
            raise
        return made.shown()

    async def list(self, request: AnyRequest) -> Json:
        owner = await asker(self._keyring, request.scope)
        limit, purpose = limit_of(request, _MOST_LISTED, _MOST_LISTED), text_of(request, "purpose")
        found = await self._files.list(
            owner, after=after_of(request), limit=limit, newest_first=order_of(request), purpose=purpose
        )
        return page(found, limit, [file.shown() for file in found])

    async def get(self, request: AnyRequest, file_id: str) -> File:
        return await self._files.get(await asker(self._keyring, request.scope), file_id)

    async def content(self, request: AnyRequest, file_id: str) -> Stream:
        file = await self.get(request, file_id)
        headers = {**_HIDDEN, "content-length": str(file.size), "content-disposition": "attachment"}
        return Stream(self._files.content(file_id), media_type="application/octet-stream", headers=headers)

    async def delete(self, request: AnyRequest, file_id: str) -> Json:
        await self._files.delete(await changer(self._keyring, request.scope), file_id)
        return {"id": file_id, "object": "file", "deleted": True}


def _checked(form: Form) -> tuple[str, str, float | None]:
    """Name, purpose and when it expires. Raises InvalidRequest."""
    if not form.files:
        raise InvalidRequest("Missing required parameter: 'file'.", param="file", code="missing_required_parameter")
    if not form.size:
        raise InvalidRequest("The file is empty.", param="file", code="empty_file")
    purpose = form.field("purpose")
    if purpose is None:
        raise InvalidRequest(
            "Missing required parameter: 'purpose'.", param="purpose", code="missing_required_parameter"
        )
    if purpose not in PURPOSES:
        raise InvalidRequest(f"'purpose' must be one of {', '.join(PURPOSES)}.", param="purpose", code="invalid_value")
    name = (
        "".join(char if char.isprintable() and char not in "\\/" else "_" for char in form.files[0].filename) or "file"
    )
    return name, purpose, _lifetime(form)


def _lifetime(form: Form) -> float | None:
    anchor, told = form.field("expires_after[anchor]"), form.field("expires_after[seconds]")
    if anchor is None and told is None:
        return None
    if anchor != "created_at":
        raise InvalidRequest("'expires_after.anchor' must be created_at.", param="expires_after.anchor")
    if (seconds := whole(told or "")) is None or not _SOONEST <= seconds <= _LATEST:
        raise InvalidRequest(
            f"'expires_after.seconds' must be a whole number from {_SOONEST:,} to {_LATEST:,}.",
            param="expires_after.seconds",
        )
    return float(seconds)


def route_handlers() -> list[Any]:
    both: Any = {"tags": ["Data plane"]}

    @post(["/v1/files", "/files"], status_code=200, request_max_body_size=None, summary="Upload a file", **both)
    async def upload_file(request: AnyRequest) -> Json:
        return await desk(Desk, request).upload(request)

    @get(["/v1/files", "/files"], summary="Files", **both)
    async def list_files(request: AnyRequest) -> Json:
        return await desk(Desk, request).list(request)

    @get(["/v1/files/{file_id:str}", "/files/{file_id:str}"], summary="A file", **both)
    async def get_file(request: AnyRequest, file_id: FromPath[str]) -> Json:
        return (await desk(Desk, request).get(request, file_id)).shown()

    @get(["/v1/files/{file_id:str}/content", "/files/{file_id:str}/content"], summary="A file's content", **both)
    async def get_file_content(request: AnyRequest, file_id: FromPath[str]) -> Stream:
        return await desk(Desk, request).content(request, file_id)

    @delete(["/v1/files/{file_id:str}", "/files/{file_id:str}"], status_code=200, summary="Delete a file", **both)
    async def delete_file(request: AnyRequest, file_id: FromPath[str]) -> Json:
        return await desk(Desk, request).delete(request, file_id)

    return [upload_file, list_files, get_file, get_file_content, delete_file]
