"""A secret that can only be said to the host it belongs to.

Knows: one credential, one origin. Does not know: what the credential opens.
"""

from urllib.parse import urlsplit

from pydantic import SecretStr


class WrongHost(ValueError):
    """Somebody asked for a credential on behalf of a host it was not given for."""


class Credential:
    """`none` (or nothing) is the credential of a server that wants none.

    `header`: the one it travels in, as a bearer's token in `Authorization`, as it is in any other.
    """

    def __init__(self, secret: SecretStr | None, base_url: str, header: str = "Authorization") -> None:
        text = secret.get_secret_value().strip() if secret is not None else ""
        self._secret = "" if text.lower() == "none" else text
        if not self._secret.isascii() or not self._secret.isprintable():
            raise ValueError("api_key has characters that no header can carry")
        self._origin = origin(base_url)
        self.header = header

    def __bool__(self) -> bool:
        return bool(self._secret)

    def __repr__(self) -> str:
        return f"Credential(for {self._origin[1]})"

    def headers_for(self, url: str) -> dict[str, str]:
        """The header that carries it to `url`. Raises WrongHost unless scheme, host and port are its own."""
        if origin(url) != self._origin:
            raise WrongHost(f"this credential belongs to {self._origin[1]} only")
        if not self._secret:
            return {}
        return {self.header: f"Bearer {self._secret}" if self.header == "Authorization" else self._secret}

    def redacted(self, text: str) -> str:
        """`text` without the secret, should an upstream repeat it."""
        return text.replace(self._secret, "[redacted]") if self._secret else text


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port. Raises ValueError for anything but a plain http or https address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("expected an address like https://host/v1, without a user name in it")
    return parts.scheme, parts.hostname.lower(), parts.port or (443 if parts.scheme == "https" else 80)


def is_loopback(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "::1") or host.startswith("127.")
