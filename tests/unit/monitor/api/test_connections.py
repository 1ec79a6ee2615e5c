"""Raw connections with invalid requests, with requests that do not end, and without any request."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import MagicMock

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from schemas import MAX_DEFINITION_BYTES
from stream import diagnostics
from stream.monitor.api import http_requests, server
from tests.unit.monitor.installation import OPERATOR, VIEWER, Installation

WAIT = 30.0
TOKEN = OPERATOR.encode()
DECODE_ERRORS = {
    "carriage return in the value": b"Authorization: Bearer " + TOKEN + b"\rX\r\n",
    "null in the value": b"Authorization: Bearer " + TOKEN + b"\x00\r\n",
    "control character in the value": b"Authorization: Bearer " + TOKEN + b"\x01\r\n",
    "carriage return and line feed in a token file": b"Authorization: Bearer " + TOKEN + b"\r\n\r\r\n",
    "the token as a name": b"Authoriz\x07ation" + TOKEN + b": Bearer " + TOKEN + b"\r\n",
    "space before the colon": TOKEN + b" : Bearer\r\n",
    "folded": b"Authorization: Bearer\r\n " + TOKEN + b"\x01\r\n",
    "no colon": TOKEN + b"\r\n",
    "too long": b"Authorization: Bearer " + TOKEN * 500 + b"\r\n",
    "a length that is none": b"Content-Length: " + TOKEN + b"\r\n",
    "two lengths": b"X: " + TOKEN + b"\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
    "an unknown coding": b"Transfer-Encoding: " + TOKEN + b"\r\n",
}
LINES = {
    "a method that is none": b"G\x01T" + TOKEN + b" / HTTP/1.1\r\n",
    "a target that is none": b"GET /" + TOKEN + b"\x00 HTTP/1.1\r\n",
    "a version that is none": b"GET / " + TOKEN + b"\r\n",
    "no request at all": TOKEN + b"\r\n",
}


@pytest.fixture(autouse=True)
def _logs() -> None:
    """Configure the log as a service does."""
    diagnostics.configure_logs(as_json=True)


@asynccontextmanager
async def port_of(installation: Installation) -> AsyncIterator[int]:
    async with asyncio.timeout(WAIT), installation.web() as client:
        assert isinstance(client.server, TestServer)
        yield client.server.port or 0


async def send_and_read(port: int, sent: bytes) -> bytes:
    """Return all bytes of the response until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("name", [*DECODE_ERRORS, *LINES])
async def test_malformed_request_is_neither_logged_nor_returned(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    start = LINES.get(name, b"GET /api/overview HTTP/1.1\r\nHost: x\r\n")
    async with port_of(Installation()) as port:
        back = await send_and_read(port, start + DECODE_ERRORS.get(name, b"") + b"Connection: close\r\n\r\n")
    logged = "".join(capfd.readouterr())
    assert OPERATOR not in logged
    assert OPERATOR.encode() not in back
    if not back.startswith((b"HTTP/1.1 401", b"HTTP/1.0 401")):
        head, _, body = back.partition(b"\r\n\r\n")
        assert head.split(b" ")[1] == b"400"
        assert b"\r\nServer: sotto\r\n" in head + b"\r\n"
        assert json.loads(body)["code"] == "malformed"


async def test_thousands_of_malformed_requests_leave_few_log_lines(capfd: pytest.CaptureFixture[str]) -> None:
    sent = b"GET / HTTP/1.1\r\n" + DECODE_ERRORS["null in the value"] + b"\r\n"
    async with port_of(Installation()) as port:
        for _ in range(20):
            await asyncio.gather(*(send_and_read(port, sent) for _ in range(50)))
        assert b"200" in (await send_and_read(port, b"GET /healthz HTTP/1.0\r\n\r\n")).split(b"\r\n")[0]
    logged = "".join(capfd.readouterr())
    assert 1 <= logged.count("\n") <= diagnostics.MAX_REPEATS
    assert len(logged) < 10_000


async def test_unfinished_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(http_requests, "LINGER_SECONDS", 0.2)
    post = f"POST /api/halts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OPERATOR}\r\n".encode()
    async with port_of(Installation()) as port:
        for sent, wanted in (
            (b"", b""),
            (b"GET /healthz HT", b""),
            (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", b""),
            (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 200"),
            (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /", b"HTTP/1.1 200"),
            (post + b"Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{", b"HTTP/1.1 408"),
            (b"POST /api/halts HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{", b"HTTP/1.1 401"),
        ):
            assert (await send_and_read(port, sent)).startswith(wanted), sent


@pytest.mark.parametrize("coding", ["deflate", "gzip", "br", "zstd", "identity, gzip", "GZIP"])
@pytest.mark.parametrize(
    ("path", "token"), [("/api/plan", ""), ("/api/plan", VIEWER), ("/api/halts", OPERATOR), ("/healthz", "")]
)
async def test_compressed_body_is_refused_without_decompression(
    path: str, token: str, coding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_requests, "LINGER_SECONDS", 0.2)
    unfolding = MagicMock(wraps=zlib)
    aiohttp.set_zlib_backend(unfolding)
    packed = zlib.compress(bytes(1 << 20))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        f"Content-Encoding: {coding}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    try:
        async with port_of(Installation()) as port:
            back = await send_and_read(port, head.encode() + b"%x\r\n" % len(packed) + packed + b"\r\n")
    finally:
        aiohttp.set_zlib_backend(zlib)
    head, _, body = back.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 415")
    assert "connection: close" in head.lower()
    assert "Content-Encoding" in json.loads(body)["message"]
    assert unfolding.decompressobj.mock_calls == []


@pytest.mark.parametrize("path", ["/api/plan", "/api/halts", "/healthz", "/no/such/path"])
async def test_client_that_continues_sending_after_response_is_disconnected(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_requests, "LINGER_SECONDS", WAIT * 10)
    taken_in = MagicMock(wraps=web.RequestHandler.data_received)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n".encode()
    async with port_of(Installation()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        answer = await reader.readuntil(b"\r\n\r\n")
        monkeypatch.setattr(web.RequestHandler, "data_received", taken_in)
        with pytest.raises(ConnectionError):
            await _send_without_end(writer, bytes(1 << 16))
        writer.close()
        assert b"connection: close" in answer.lower()
        assert not taken_in.called


async def test_client_that_finishes_sending_gets_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "LINGER_SECONDS", WAIT * 10)
    sent = bytes(MAX_DEFINITION_BYTES + 1)
    head = f"POST /api/halts HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n\r\n"
    async with port_of(Installation()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        status = await reader.readline()
        writer.write(sent)
        await writer.drain()
        answer = json.loads((await reader.readuntil(b"}")).partition(b"\r\n\r\n")[2])
        writer.close()
    assert b" 401 " in status
    assert answer["code"] == "unauthorized"


@pytest.mark.parametrize("sent", [b"Content-Length: 99\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n4\r\n{"])
async def test_disconnect_during_body_is_no_failure(
    sent: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reads, lost = asyncio.Event(), asyncio.Event()
    read = web.Request.read

    async def noted_read(request: web.Request) -> bytes:
        reads.set()
        try:
            return await read(request)
        finally:
            lost.set()

    monkeypatch.setattr(web.Request, "read", noted_read)
    head = f"POST /api/halts HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {OPERATOR}\r\nContent-Type: application/json\r\n"
    installation = Installation()
    async with port_of(installation) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + sent)
        await reads.wait()
        writer.transport.abort()
        await lost.wait()
        assert b"200" in await send_and_read(port, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert "request failed" not in "".join(capfd.readouterr())
    assert installation.requested == []


async def test_waiting_connections_are_limited_and_oldest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "MAX_WAITING", 5)
    monkeypatch.setattr(http_requests.WaitingConnections.__init__, "__defaults__", (5,))
    installation = Installation()
    async with port_of(installation) as port:
        live, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            b"GET /api/events?views=overview HTTP/1.1\r\nHost: x\r\n"
            b"Authorization: Bearer " + VIEWER.encode() + b"\r\n\r\n"
        )
        assert b"200" in await live.readline()
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        ended = await asyncio.gather(*(_ends(reader) for reader, _ in idle[:15]))
        assert ended == [True] * 15
        assert not any(reader.at_eof() for reader, _ in idle[15:])
        # A connection with a running response does not count as waiting: it stays open, and others are accepted.
        assert await live.readuntil(b"event: overview")
        assert b"200" in await send_and_read(port, b"GET /healthz HTTP/1.0\r\n\r\n")
        for _, one in (*idle, (live, writer)):
            one.close()


async def _ends(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def test_client_that_does_not_read_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_requests, "WRITE_SECONDS", 0.2)
    installation = Installation()
    async with port_of(installation) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        one = f"GET /openapi.json HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {VIEWER}\r\n\r\n".encode()
        with pytest.raises(ConnectionError):
            await _ask_without_end(writer, one)


async def _send_without_end(writer: asyncio.StreamWriter, piece: bytes) -> None:
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)


async def _ask_without_end(writer: asyncio.StreamWriter, request: bytes) -> None:
    while True:
        writer.write(request)
        await writer.drain()
        await asyncio.sleep(0.01)
