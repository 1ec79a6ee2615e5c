"""A receiver of webhooks: a real HTTP server that behaves as a test says, and keeps the requests."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()


@dataclass
class Request:
    """A received request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def key(self) -> str:
        return self.headers["webhook-id"]

    def is_signed_with(self, secret: str) -> bool:
        """Return whether the request is signed as the Standard Webhooks specification says."""
        key = base64.b64decode(secret.removeprefix("whsec_"))
        content = f"{self.key}.{self.headers['webhook-timestamp']}.".encode() + self.body
        expected = "v1," + base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        return expected in self.headers["webhook-signature"].split(" ")


@dataclass
class Receiver:
    """Sends the response that ``behave`` returns for the number of the request; None means no response. Use it with ``async with``."""

    behave: Callable[[int], web.Response | None] = field(default=lambda _: web.Response())
    port: int = 0
    requests: list[Request] = field(default_factory=list)

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=1 << 20)
        application.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=in-the-address"

    @property
    def keys(self) -> list[str]:
        return [request.key for request in self.requests]

    async def until(self, wanted: Callable[[], bool], seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not wanted():
                await asyncio.sleep(0.02)

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): text for name, text in request.headers.items()}
        self.requests.append(Request(request.path, headers, await request.read()))
        response = self.behave(len(self.requests))
        if response is None:
            await asyncio.sleep(3600)
            raise AssertionError
        return response
