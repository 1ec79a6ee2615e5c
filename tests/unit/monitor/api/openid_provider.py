"""Replaces an OpenID provider with a server on 127.0.0.1, which checks the monitor's requests."""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from aiohttp.test_utils import TestServer
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from yarl import URL

from stream.settings import Settings

CLIENT, SECRET = "sotto", "the secret of the client"
GROUPS = {"sub": "olga", "groups": ["staff", "sotto-operators"]}


def settings_of(folder: Path, issuer: str, **changed: Any) -> Settings:
    """Return settings for a provider, with the secret in a file of the folder."""
    secret = folder / "secret"
    if not secret.exists():
        secret.touch(0o600)
        secret.write_text(SECRET)
    fields = {
        "issuer": issuer,
        "client_id": CLIENT,
        "client_secret_file": str(secret),
        "address": "https://sotto.example.org",
        "roles": "viewer=staff, operator=sotto-operators",
        **changed,
    }
    return Settings.model_validate({f"monitor_oidc_{name}": value for name, value in fields.items()})


@dataclass
class OpenIdProvider:
    """Vouches for a person with these ``claims``; ``change`` alters the ID token's header and claims."""

    claims: dict[str, Any]
    clock: Callable[[], float]
    key: RSAKey | OctKey = field(default_factory=lambda: RSAKey.generate_key(2048, {"kid": "first"}))
    change: Callable[[dict[str, Any], dict[str, Any]], None] = lambda _header, _claims: None
    issuer: str = ""
    configured: dict[str, Any] = field(default_factory=dict)
    more_keys: list[Any] = field(default_factory=list)
    keys_read: int = 0
    _asked: dict[str, Any] = field(default_factory=dict)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve the provider and yield its issuer."""
        application = web.Application()
        application.router.add_get("/.well-known/openid-configuration", self._configuration)
        application.router.add_get("/keys", self._keys)
        application.router.add_get("/authorize", self._authorize)
        application.router.add_post("/token", self._token)
        async with TestServer(application) as server:
            self.issuer = f"http://127.0.0.1:{server.port}"
            yield self.issuer

    def authorize(self, location: str) -> dict[str, str]:
        """Return the parameters of the redirection for a request of the browser."""
        asked = URL(location)
        assert (asked.origin(), asked.path) == (URL(self.issuer).origin(), "/authorize")
        self._asked = dict(asked.query)
        assert self._asked["code_challenge_method"] == "S256"
        assert (self._asked["client_id"], self._asked["response_type"]) == (CLIENT, "code")
        return {"code": "the code", "state": self._asked["state"], "iss": self.issuer}

    async def _configuration(self, _: web.Request) -> web.Response:
        endpoints = {
            "authorization_endpoint": "authorize",
            "token_endpoint": "token",
            "jwks_uri": "keys",
        }
        places = {name: f"{self.issuer}/{place}" for name, place in endpoints.items()}
        return web.json_response({"issuer": self.issuer, **places, **self.configured})

    async def _authorize(self, request: web.Request) -> web.Response:
        """Send the browser back at once, as for a person who is signed in at the provider."""
        given = self.authorize(str(request.url))
        location = URL(request.query["redirect_uri"]).update_query(given)
        return web.Response(status=303, headers={"Location": str(location)})

    async def _keys(self, _: web.Request) -> web.Response:
        self.keys_read += 1
        return web.json_response(
            {"keys": [*self.more_keys, self.key.as_dict(private=isinstance(self.key, OctKey))]}
        )

    async def _token(self, request: web.Request) -> web.Response:
        form = await request.post()
        challenge = urlsafe_b64encode(sha256(str(form["code_verifier"]).encode()).digest()).rstrip(b"=").decode()
        login = b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        known = [unquote(one) for one in login.split(":")] == [CLIENT, SECRET]
        is_right = (
            form["code"] == "the code"
            and challenge == self._asked["code_challenge"]
            and form["redirect_uri"] == self._asked["redirect_uri"]
        )
        if not known or not is_right:
            return web.json_response({"error": "invalid_grant"}, status=400)
        header: dict[str, Any] = {"alg": "RS256", "kid": self.key.kid}
        now = int(self.clock())
        claims = {
            "iss": self.issuer,
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            "nonce": self._asked["nonce"],
            **self.claims,
        }
        self.change(header, claims)
        if header["alg"] == "none":
            parts = (urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in (header, claims))
            token = b".".join([*parts, b""]).decode()
        else:
            token = jwt.encode(header, claims, self.key, algorithms=[header["alg"]])
        return web.json_response({"id_token": token, "access_token": "unused", "token_type": "Bearer"})
