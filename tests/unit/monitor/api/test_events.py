"""Live views are sent at once and after each change, and never to closed connections or without end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestServer

from stream.monitor.api import live_events_stream
from stream.monitor.api.models import Readiness
from stream.monitor.api.tokens import TokenFile
from stream.settings import Settings
from tests.unit.monitor.installation import (
    HIGH,
    LOW,
    NAMES,
    OPERATOR,
    VIEWER,
    Installation,
    WebClient,
    bearer,
    get,
    spec,
)

WAIT = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_events_stream, "MIN_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(live_events_stream, "KEEPALIVE_SECONDS", 0.05)


async def read(response: ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield events as name and data; a comment is an event without a name."""
    while chunk := await response.content.readuntil(b"\n\n"):
        fields = dict(line.partition(": ")[::2] for line in chunk.decode().splitlines())
        yield fields.get("event", ""), json.loads(fields["data"]) if "data" in fields else {}


async def views_of(response: ClientResponse) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield events without those about the monitor itself."""
    async for name, data in read(response):
        if name != "readiness":
            yield name, data


async def named(sent: AsyncIterator[tuple[str, dict[str, Any]]]) -> tuple[str, dict[str, Any]]:
    """Return the next event that is no comment."""
    while True:
        name, data = await anext(sent)
        if name:
            return name, data


async def listen(client: WebClient, token: str = VIEWER, **parameters: str) -> ClientResponse:
    response = await client.get("/api/events", params=parameters, headers=bearer(token))
    assert response.status == 200, await response.text()
    assert response.content_type == "text/event-stream"
    return response


async def test_live_views_are_sent_at_once_as_their_routes_answer() -> None:
    installation = Installation()
    installation.open(spec("ward"))
    async with asyncio.timeout(WAIT), installation.web() as client:
        names = "overview,sources,budget,streams,stream,rejected,workers"
        response = await listen(client, views=names, source="feed", stream="ward")
        sent = views_of(response)
        found = dict([await named(sent) for _ in names.split(",")])
        assert set(found) == set(names.split(","))
        for name, path in (
            ("overview", "/api/overview"),
            ("sources", "/api/sources"),
            ("budget", "/api/budgets/feed"),
            ("streams", "/api/streams?source=feed"),
            ("stream", "/api/streams/ward"),
            ("rejected", "/api/rejected"),
            ("workers", "/api/workers"),
        ):
            assert found[name] == await get(client, path)
        response.close()


async def test_live_view_is_sent_again_only_after_change() -> None:
    installation = Installation()
    installation.open(spec("ward"), spec("other"))
    async with asyncio.timeout(WAIT), installation.web() as client:
        response = await listen(client, views="streams", search="ward")
        sent = views_of(response)
        name, page = await anext(sent)
        assert (name, page["items"][0]["answered"]) == ("streams", 0)
        assert await anext(sent) == ("", {})
        installation.ask("other", LOW)
        assert await anext(sent) == ("", {})
        installation.ask("ward", LOW, HIGH)
        name, page = await named(sent)
        assert (name, page["items"][0]["answered"], page["items"][0]["tops"]) == ("streams", 2, 1)
        response.close()


async def test_live_view_of_unknown_name_appears_once_it_exists() -> None:
    installation = Installation()
    installation.open()
    async with asyncio.timeout(WAIT), installation.web() as client:
        response = await listen(client, views="stream", stream="later")
        sent = views_of(response)
        name, problem = await anext(sent)
        assert (name, problem["code"]) == ("problem", "not-found")
        installation.driver.open(spec("later"))
        installation.flow()
        name, detail = await named(sent)
        assert (name, detail["row"]["stream"]) == ("stream", "later")
        response.close()


async def test_live_connections_are_limited_per_token() -> None:
    installation = Installation(Settings(monitor_event_streams=1))
    installation.open(spec("ward"))
    async with asyncio.timeout(WAIT), installation.web() as client:
        first = await listen(client, views="overview")
        async with client.get("/api/events?views=overview", headers=bearer(VIEWER)) as refused:
            assert refused.status == 429
        operators = await listen(client, OPERATOR, views="overview")
        operators.close()
        first.close()
        while True:
            async with client.get("/api/events?views=overview", headers=bearer(VIEWER)) as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.02)


async def test_live_views_wait_until_monitor_is_ready() -> None:
    installation = Installation()
    reading = Readiness(ready=False, behind=7, reason="the monitor has not yet read its topics to their ends")
    installation.readiness = reading
    async with asyncio.timeout(WAIT), installation.web() as client:
        response = await listen(client, views="streams")
        sent = read(response)
        assert await anext(sent) == ("readiness", reading.model_dump(mode="json"))
        assert [await anext(sent) for _ in range(3)] == [("", {})] * 3
        installation.open(spec("ward"))
        installation.readiness = Readiness(ready=True, behind=0)
        name, data = await named(sent)
        assert (name, data["ready"]) == ("readiness", True)
        name, page = await named(sent)
        assert (name, [one["stream"] for one in page["items"]]) == ("streams", ["ward"])
        # The figures that were read remain shown if Kafka is silent later.
        installation.readiness = Readiness(ready=False, behind=0, reason="Kafka does not answer")
        name, data = await named(sent)
        assert (name, data["ready"]) == ("readiness", False)
        installation.ask("ward", LOW)
        assert (await named(sent))[0] == "streams"
        response.close()


async def test_live_head_request_has_no_body_and_ends() -> None:
    installation = Installation()
    installation.open(spec("ward"))
    async with asyncio.timeout(WAIT), installation.web() as client:
        server = client.server
        assert isinstance(server, TestServer)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        request = "HEAD /api/events?views=overview HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        writer.write(f"{request}Authorization: Bearer {VIEWER}\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"text/event-stream" in head
    assert body == b""


@pytest.mark.parametrize("how", ["revoked", "expired", "unreadable"])
async def test_live_connections_end_with_their_token(how: str) -> None:
    installation = Installation()
    installation.open(spec("ward"))
    async with asyncio.timeout(WAIT), installation.web() as client:
        ending, staying = [await listen(client, token, views="overview") for token in (VIEWER, OPERATOR)]
        assert (await named(read(ending)))[0] == "readiness"
        if how == "unreadable":
            installation.names = None
        else:
            at = int(installation.now)
            installation.names = TokenFile(
                tokens=tuple(
                    token.model_copy(update={how.replace("expired", "expires"): at})
                    if token.name == "vera"
                    else token
                    for token in NAMES.tokens
                )
            )
        while await ending.content.readany():
            pass
        if how == "unreadable":
            while await staying.content.readany():
                pass
        else:
            assert (await named(read(staying)))[0] == "readiness"
        async with client.get("/api/overview", headers=bearer(VIEWER)) as response:
            assert response.status == (503 if how == "unreadable" else 401)
            assert ("WWW-Authenticate" in response.headers) == (how != "unreadable")


async def test_live_connections_end_with_server() -> None:
    installation = Installation()
    installation.open(spec("ward"))
    async with asyncio.timeout(WAIT):
        async with installation.web() as client:
            response = await listen(client, views="overview")
            await anext(read(response))
            server = client.server
            assert server is not None
            await server.close()
            while not response.content.at_eof():
                await response.content.readany()
            response.close()
