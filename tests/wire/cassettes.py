"""Recordings of HTTP as VCR keeps them, one exchange at a time.

Knows: VCR's files (YAML or JSON, gzip or not) and the form that pydantic-ai gives them. Does not know: any language.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

_ENDINGS = (".yaml", ".yml", ".json", ".yaml.gz", ".yml.gz", ".json.gz")
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Recorded(Struct, frozen=True):
    """A request's address and body, and the answer it had. Header names in lower case, one value each."""

    file: Path
    url: str
    asked: bytes
    status: int
    headers: dict[str, str]
    raw: bytes


class Unreadable(Struct, frozen=True):
    """A file that holds no recording, or an answer whose bytes are not there."""

    file: Path
    why: str


def recordings(folder: Path) -> Iterator[Recorded | Unreadable]:
    """Every exchange under `folder`, in the order of names."""
    for file in sorted(path for path in folder.rglob("*") if path.name.endswith(_ENDINGS)):
        try:
            interactions = _loaded(file)["interactions"]
        except (yaml.YAMLError, ValueError, KeyError, TypeError, OSError) as error:
            yield Unreadable(file, f"no recording: {str(error)[:100]}")
            continue
        for one in interactions:
            if "request" not in one:  # frames of a WebSocket, which the same files keep
                continue
            try:
                yield _recorded(file, one)
            except (ValueError, KeyError, TypeError, OSError, zlib.error) as error:
                yield Unreadable(file, f"no exchange: {str(error)[:100]}")


def _loaded(file: Path) -> Any:
    raw = file.read_bytes()
    if file.name.endswith(".gz"):
        raw = gzip.decompress(raw)
    return msgspec.json.decode(raw) if ".json" in file.name else yaml.load(raw, _Loader)


def _recorded(file: Path, one: Any) -> Recorded:
    request, response = one["request"], one["response"]
    headers = _headers(response.get("headers") or {})
    raw = _body(response)
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return Recorded(file, request.get("uri") or request["url"], _body(request), _status(response), headers, raw)


def _status(response: Any) -> int:
    status = response.get("status", response.get("status_code"))
    return int(status["code"] if isinstance(status, dict) else status)


def _body(message: Any) -> bytes:
    """As it was; where only the parsed JSON was kept, as JSON again."""
    if "parsed_body" in message:
        return msgspec.json.encode(message["parsed_body"])
    body = message.get("body", message.get("content"))
    if isinstance(body, Mapping):
        body = body.get("string", body.get("encoding"))
    if body is None:
        return b""
    return body if isinstance(body, bytes) else str(body).encode()


def _headers(kept: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in kept.items():
        first: Any = value[0] if isinstance(value, list) and value else value
        found[name.lower()] = first.decode("latin-1") if isinstance(first, bytes) else str(first)
    return found
