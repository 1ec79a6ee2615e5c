"""The workers' last status of streams, read from the end of the topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any

import pytest

from schemas import Amount, Position, StreamStatus
from sotto import AsyncClient
from stream.client import async_client
from stream.testing.driver import MemoryCalls
from tests.builders import installation, stream


def encode_status(stream: str, answered: int, refused: str | None = None) -> bytes:
    status = StreamStatus(
        stream=stream,
        incarnation="0" * 32,
        state="open",
        answered=answered,
        tops=0,
        spent=Amount(epsilon=0.0, delta=0.0),
        source="feed",
        tops_left=None,
        alpha=1.0,
        position=Position(topic="queries", partition=0, offset=answered),
        refused=refused,
    )
    return status.model_dump_json().encode()


def test_digests_stop_at_the_streams_last_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier records are not read. A restored partition clears earlier missing data, and a deletion clears everything."""
    driver = installation(partitions=1)
    status = driver.topics.status
    for key, value in (
        ("early", encode_status("early", 0)),
        ("one", encode_status("one", 1)),
        ("gone", encode_status("gone", 1)),
        ("lacking", encode_status("lacking", 2, "no table")),
        ("@worker|0", b"{}"),
        ("again", encode_status("again", 3, "no table")),
        ("gone", None),
        ("one", encode_status("one", 4)),
    ):
        driver._append((status, 0), key.encode(), value)
    read: list[bytes] = []

    async def read_latest_first(self: MemoryCalls, topic: str, partition: int) -> AsyncGenerator[Sequence[Any]]:
        for record in self.log((topic, partition))[::-1]:
            read.append(record.key or b"")
            yield [record]

    monkeypatch.setattr(MemoryCalls, "_read_latest_first", read_latest_first)
    found = driver.statuses(["one", "gone", "again", "lacking"])
    assert {name: (one.answered, one.refused) for name, (one, _) in found.items()} == {
        "one": (4, None),
        "again": (3, "no table"),
        "lacking": (2, None),
    }
    assert read == [b"one", b"gone", b"again", b"@worker|0", b"lacking"]


async def test_statement_waits_only_shortly_for_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer would delay it by the 40 s of a request, and only once in a minute."""
    reads: list[str] = []

    async def read(_: AsyncClient, streams: Iterable[str]) -> None:
        reads.extend(streams)
        await asyncio.Event().wait()

    monkeypatch.setattr(AsyncClient, "statuses", read)
    monkeypatch.setattr(async_client, "MAX_LEDGER_WAIT_SECONDS", 0.01)
    client, grants = AsyncClient(), installation(stream("s", "feed")).list_streams()
    assert [await client._refused_streams("feed", grants) for _ in range(2)] == [set(), set()]
    assert reads == ["s"]
