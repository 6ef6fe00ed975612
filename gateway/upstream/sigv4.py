"""AWS Signature Version 4 for one request.

Knows: the canonical request, the derived key, session tokens. Does not know: where credentials come from, retries,
chunked signing (bodies are signed whole).
Source: AWS General Reference, "Signature Version 4 signing process"; checked against its test suite and botocore.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

from msgspec import Struct

_ALGORITHM = "AWS4-HMAC-SHA256"


class Signer(Struct, frozen=True):
    """Long-lived or temporary credentials for one region and service. Its representation shows none of them."""

    key_id: str
    secret: str
    token: str
    region: str
    service: str

    def __repr__(self) -> str:
        return f"Signer({self.service}, {self.region})"

    def sign(self, method: str, url: str, headers: Mapping[str, str], content: bytes, at: float) -> dict[str, str]:
        """The headers to add. `url` is as it goes out, encoded once; `at` is seconds since the epoch.

        The host (a port other than the usual one with it), the date and all of `headers` are signed.
        """
        parts = urlsplit(url)
        digest = hashlib.sha256(content).hexdigest()
        stamp = datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")
        added = {"X-Amz-Date": stamp, **({"X-Amz-Security-Token": self.token} if self.token else {})}
        if self.service == "s3":
            added["X-Amz-Content-Sha256"] = digest
        signed = {name.lower(): " ".join(value.split()) for name, value in {**headers, **added}.items()}
        signed["host"] = parts.netloc
        names = ";".join(sorted(signed))
        lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
        # Every service but S3 wants the path, which is encoded already, encoded once more.
        path = (parts.path or "/") if self.service == "s3" else quote(parts.path or "/", safe="/-_.~")
        request = "\n".join((method, path, _query(parts.query), lines, names, digest))
        scope = f"{stamp[:8]}/{self.region}/{self.service}/aws4_request"
        text = "\n".join((_ALGORITHM, stamp, scope, hashlib.sha256(request.encode()).hexdigest()))
        signature = hmac.new(self._key(stamp[:8]), text.encode(), hashlib.sha256).hexdigest()
        credential = f"{_ALGORITHM} Credential={self.key_id}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**added, "Authorization": credential}

    def _key(self, day: str) -> bytes:
        key = f"AWS4{self.secret}".encode()
        for part in (day, self.region, self.service, "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key


def _query(query: str) -> str:
    """Sorted by name, then by value; what stands in an address is encoded already."""
    pairs = sorted(item.partition("=")[::2] for item in query.split("&") if item)
    return "&".join(f"{name}={value}" for name, value in pairs)
