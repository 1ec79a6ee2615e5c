"""The audit trail as CSV: complete or filtered, and without delaying other requests."""

from __future__ import annotations

import asyncio
import csv
import io
from typing import Any

import pytest
from aiohttp import ClientResponse, web

from schemas import OpenStream, StreamSpec
from stream.monitor.api import budget_views, server
from stream.monitor.api.budget_views import COLUMNS, MAX_EXPORTS, MAX_EXPORTS_PER_USER
from stream.monitor.api.tokens import Token, TokenFile
from tests.unit.monitor.installation import NAMES, VIEWER, Installation, WebClient, bearer, spec
from tests.unit.monitor.trail_history import installation_with_history

WAIT = 20.0


def long_trail(entries: int) -> Installation:
    installation = Installation()
    installation.open()
    trail = installation.tables.trail
    [first, *_] = trail
    trail._latest.extend(first._replace(number=number) for number in range(entries))
    return installation


async def test_trail_export_has_the_filtered_entries_and_no_formula() -> None:
    """The CSV has all entries or those of one stream, and no cell that a spreadsheet would compute."""
    installation = installation_with_history()
    installation.driver.request(
        OpenStream(request="=cmd|' /C calc'!A0", stream=StreamSpec.model_validate(spec("late")))
    )
    installation.flow()
    async with installation.web() as client:
        for query, streams in (("", None), ("?stream=late", {"late"}), ("?stream=nobody", set())):
            async with client.get(f"/api/trail.csv{query}", headers=bearer(VIEWER)) as response:
                assert response.status == 200
                assert response.content_type == "text/csv"
                rows = list(csv.DictReader(io.StringIO(await response.text())))
            assert tuple(rows[0]) == COLUMNS if rows else not streams
            if streams is None:
                held = list(installation.tables.trail)[::-1]
                assert [row["record"].encode() for row in rows] == [one.raw for one in held]
                assert [int(row["number"]) for row in rows] == [one.number for one in held]
            else:
                assert {row["stream"] for row in rows} == streams
            assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
        for path, status in (("/api/trail.csv?limit=3", 400), ("/api/trail.csv?since=soon", 400)):
            async with client.get(path, headers=bearer(VIEWER)) as response:
                assert response.status == status
        async with client.get("/api/trail.csv") as response:
            assert response.status == 401


async def test_trail_export_lets_other_requests_run_between_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, seen, rows = 0, [], []

    async def taken(_: web.StreamResponse, text: bytes) -> None:
        seen.append(turns)
        rows.append(text.count(b"\n"))

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    installation = long_trail(1_000)
    async with asyncio.timeout(WAIT), installation.web() as client:
        monkeypatch.setattr(web.StreamResponse, "write", taken)
        other = asyncio.create_task(others())
        response = await client.get("/api/trail.csv", headers=bearer(VIEWER))
        await response.read()
        other.cancel()
    assert sum(rows) > 1_000
    assert max(rows) <= 51
    assert len(set(seen)) == len(seen)


async def test_trail_exports_are_limited_in_total_and_per_user(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = asyncio.Event()

    async def held_up(*_: Any) -> None:
        await go_on.wait()

    monkeypatch.setattr(budget_views, "write_text", held_up)
    installation = long_trail(1)
    tokens = [f"sotto_{number:012x}_{'9' * 43}" for number in range(MAX_EXPORTS // MAX_EXPORTS_PER_USER)]
    readers = [Token.from_text(one, f"reader-{one[6:18]}", "viewer", created=0) for one in tokens]
    installation.names = TokenFile(tokens=(*NAMES.tokens, *readers))

    async def ask(client: WebClient, token: str) -> ClientResponse:
        return await client.get("/api/trail.csv", headers=bearer(token))

    async with asyncio.timeout(WAIT), installation.web() as client:
        for token in tokens:
            assert [(await ask(client, token)).status for _ in range(MAX_EXPORTS_PER_USER)] == [
                200
            ] * MAX_EXPORTS_PER_USER
            if token == tokens[0]:
                refused = await ask(client, token)
                assert (refused.status, refused.headers["Retry-After"]) == (429, "10")
        assert (await ask(client, VIEWER)).status == 429
        go_on.set()
        while (await ask(client, VIEWER)).status != 200:
            await asyncio.sleep(0.01)


async def test_trail_export_answers_head_requests_without_a_body() -> None:
    """The connection can be used for the next request."""
    async with asyncio.timeout(WAIT), long_trail(10).web() as client:
        reader, writer = await asyncio.open_connection(client.host, client.port or 0)
        asked = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {VIEWER}\r\n"
        writer.write(f"HEAD /api/trail.csv {asked}\r\nGET /healthz {asked}Connection: close\r\n\r\n".encode())
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"text/csv" in head
    assert b"attachment" in head
    assert rest.startswith(b"HTTP/1.1 200 OK")


class Log:
    """A log that keeps the server's errors."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []

    def error(self, _: str, **fields: Any) -> None:
        self.errors.append(fields)


@pytest.mark.parametrize(
    ("error", "faults"), [(ConnectionResetError, []), (TimeoutError, []), (LookupError, ["LookupError"])]
)
async def test_broken_export_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], faults: list[str]
) -> None:
    """No later response follows on it, and a client that disconnects is not logged as a fault."""

    async def begin(response: web.StreamResponse, _: str) -> None:
        await response.write(b"number")
        raise error

    log = Log()
    monkeypatch.setattr(budget_views, "write_text", begin)
    monkeypatch.setattr(server, "log", log)
    read = b""
    async with asyncio.timeout(WAIT), long_trail(10).web() as client:
        reader, writer = await asyncio.open_connection(client.host, client.port or 0)
        asked = f"HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {VIEWER}\r\n"
        writer.write(f"GET /api/trail.csv {asked}\r\n".encode())
        try:
            while more := await reader.read(4096):
                read += more
        except ConnectionError:
            pass  # cut off
        writer.close()
    assert b"HTTP/1.1 500" not in read
    assert [one["error"] for one in log.errors] == faults
