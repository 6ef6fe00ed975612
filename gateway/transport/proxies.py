"""Which proxy an upstream is asked through, by the variables that every client library reads.

Knows: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY (in small letters first) and what may stand in them; that loopback
is never asked through one. Does not know: sockets, who is asked. It is read once; what it says of an origin is asked
when an address is met for the first time.
"""

import base64
import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from msgspec import Struct

_USUAL_PORT = 80


class Proxy(Struct, frozen=True):
    """`authorization`: what it is told of who asks; never shown."""

    host: str
    port: int
    authorization: str = ""

    def __repr__(self) -> str:
        return f"Proxy({self.host}:{self.port})"


class Proxies(Struct, frozen=True):
    """By the upstream's scheme, as `{"https": "http://user:password@host:3128"}`; `no`: the list of NO_PROXY."""

    given: Mapping[str, str] = {}
    no: str = ""

    def __repr__(self) -> str:
        return f"Proxies({', '.join(sorted(self.given))})"

    def before(self, scheme: str, host: str, port: int) -> Proxy | None:
        """What stands before an origin; None: it is asked directly. Raises ValueError for what is no http proxy."""
        if not self.given or _is_loopback(host) or _is_excepted(self.no, host, port):
            return None
        name = scheme if self.given.get(scheme) else "all"
        told = self.given.get(name)
        return _read(f"{name.upper()}_PROXY", told) if told else None


DIRECTLY = Proxies()


def of_environment() -> Proxies:
    """As the environment has them now. What cannot be used is found out by `before`, for those who would need it."""
    from urllib.request import getproxies_environment  # slow to import, and wanted once

    found = {name: value.strip() for name, value in getproxies_environment().items()}
    given = {name: value for name in ("http", "https", "all") if (value := found.get(name))}
    return Proxies(given, found.get("no", ""))


def _read(variable: str, told: str) -> Proxy:
    """Whatever is wrong with it, its user and password are not repeated."""
    scheme, slashes, _ = told.partition("://")
    if slashes and scheme.lower() != "http":
        shown = scheme if scheme.isalnum() else "something else"
        raise ValueError(
            f"{variable} names a proxy of {shown}://; upstreams are asked through http:// proxies only. "
            "Name such a one, or list the upstream's host in NO_PROXY"
        )
    try:
        parts = urlsplit(told if slashes else f"http://{told}")
        host, port = parts.hostname, parts.port or _USUAL_PORT
    except ValueError:
        parts, host, port = urlsplit(""), None, 0
    if not host or not host.isascii() or not host.isprintable():
        raise ValueError(f"{variable} is not the address of a proxy, such as http://proxy.example:3128")
    if parts.username is None:
        return Proxy(host, port)
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(host, port, f"Basic {base64.b64encode(pair.encode()).decode()}")


def _is_loopback(host: str) -> bool:
    host = host.lower().rstrip(".")
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_excepted(no: str, host: str, port: int) -> bool:
    """`*`, a host with all below it (with a dot in front, too), an address, a network; each may have a port."""
    host, address = host.lower().rstrip("."), _address(host)
    for item in no.lower().replace(" ", ",").split(","):
        entry, numbered = item, ""
        if not item or item == "*":
            if item:
                return True
            continue
        if item.count(":") == 1 or item.startswith("["):  # an IPv6 address has more of them
            entry, _, numbered = item.rpartition(":") if not item.endswith("]") else (item, "", "")
        if numbered and numbered != str(port):
            continue
        if address is not None:
            if _holds(entry, address):
                return True
        elif host == (name := entry.removeprefix("*").lstrip(".")) or (name and host.endswith(f".{name}")):
            return True
    return False


def _holds(entry: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return False
