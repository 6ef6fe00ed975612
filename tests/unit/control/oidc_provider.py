"""A small OpenID Connect provider on loopback: approves whoever asks, and can be told to cheat.

Knows: discovery, the authorization code with PKCE, client authentication by secret, RS256. Does not know: people.
"""

import base64
import secrets
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

import msgspec
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from gateway.oidc import challenge_of

CLIENT, SECRET = "nearhit", "s3cret/with+signs"


class Provider:
    """`claims` go into the next ID tokens; `forge` may change the finished claims, `signer` is who signs instead."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {"sub": "u-1", "email": "ada@example.com", "groups": ["ops"]}
        self.key = RSAKey.generate_key(2048, {"kid": "k1", "use": "sig", "alg": "RS256"})
        self.published = [self.key]
        self.signer: RSAKey | None = None
        self.forge: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.issuer = ""
        self.now = time.time
        self.asked: list[str] = []

    def described(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/jwks",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }

    def authorize(self, query: dict[str, str]) -> str:
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        return query["redirect_uri"] + "?" + urlencode({"code": code, "state": query["state"], "iss": self.issuer})

    def token(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        """None: refused, as a provider refuses a used code, a wrong verifier or a wrong client."""
        asked = self.codes.pop(form.get("code", ""), None)
        basic = base64.b64encode(f"{quote(CLIENT, safe='')}:{quote(SECRET, safe='')}".encode()).decode()
        plain = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if asked is None or authorization not in (f"Basic {basic}", f"Basic {plain}"):
            return None
        if challenge_of(form["code_verifier"]) != asked["code_challenge"]:
            return None
        if form["redirect_uri"] != asked["redirect_uri"]:
            return None
        now = int(self.now())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": asked["nonce"],
            **self.claims,
        }
        claims |= self.forge
        signer = self.signer or self.key
        header = {"alg": "RS256", "kid": signer.kid}
        id_token = jwt.encode(header, {k: v for k, v in claims.items() if v is not None}, signer)
        return {"access_token": "a", "token_type": "Bearer", "expires_in": 300, "id_token": id_token}


@contextmanager
def provider() -> Generator[Provider, None, None]:
    found = Provider()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(found))
    found.issuer = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _handler(found: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            found.asked.append(parts.path)
            if parts.path == "/authorize":
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                self.send_response(302)
                self.send_header("location", found.authorize(query))
                self.send_header("content-length", "0")
                self.end_headers()
            elif parts.path == "/jwks":
                self._json(200, KeySet(list(found.published)).as_dict(private=False))
            else:
                self._json(200, found.described())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            answer = found.token(form, self.headers.get("authorization", ""))
            self._json(200 if answer else 400, answer or {"error": "invalid_grant"})

        def _json(self, status: int, value: object) -> None:
            body = msgspec.json.encode(value)
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
