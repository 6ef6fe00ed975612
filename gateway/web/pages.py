"""Templates and the files pages load: rendered and read from the package, never from another machine.

Knows: Jinja, the vendored files and their digests. Does not know: what pages show, sessions, routes.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from gateway import __version__
from gateway.web import words

_HERE = Path(__file__).parent
_STATIC = _HERE / "static"
_KINDS = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}

# No inline script or style, nothing from elsewhere, no frames; forms only to ourselves.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # `no-referrer` would make browsers send `Origin: null` with our own forms
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Asset(NamedTuple):
    """A file as it is sent. `packed` is gzip; `tag` names its content."""

    body: bytes
    packed: bytes
    kind: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """Every file of the static folder by its path there. Licences and digests travel along but are not served."""
    found: dict[str, Asset] = {}
    for path in sorted(_STATIC.rglob("*")):
        if path.is_file() and path.suffix in _KINDS and path.name != "manifest.json":
            body = path.read_bytes()
            tag = hashlib.sha256(body).hexdigest()[:16]
            name = path.relative_to(_STATIC).as_posix()
            found[name] = Asset(body, gzip.compress(body, 6, mtime=0), _KINDS[path.suffix], tag)
    return found


def asset_url(name: str) -> str:
    """An address that changes with the content, so that browsers may keep it for ever."""
    return f"/ui/static/{name}?v={assets()[name].tag}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        money=words.money,
        amount=words.amount,
        ms=words.millis,
        percent=words.percent,
        count=words.count,
        similarity=words.similarity,
        moment=words.moment,
        minute=words.minute,
        day=words.day,
        whole=words.whole,
        when=words.when,
        mark=words.mark,
        mark_meaning=words.mark_meaning,
    )
    shared: dict[str, object] = {"asset": asset_url, "version": __version__}
    cast("dict[str, object]", environment.globals).update(shared)
    return environment


def render(template: str, **context: object) -> bytes:
    """A page or a part of one. A name the template needs and was not given is an error, not an empty place."""
    return _environment().get_template(template).render(**context).encode()
