"""A fence that is given up closes its connections within a bounded time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from stream.engine import writer
from stream.engine.writer import Writer
from stream.kafka.client.adapter import Clients
from stream.settings import Settings
from tests.patience import SECONDS


class Producer:
    """A producer whose predecessor's transaction never ends, and which hangs when it is ordered to stop."""

    def __init__(self, **_: Any) -> None:
        self.begun = asyncio.Event()
        self.cut = False

    async def start(self) -> None:
        self.begun.set()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.cut = True
        await asyncio.Event().wait()


async def test_writer_cancelled_fence_closes_connections_of_hanging_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "CLOSE_SECONDS", 0.01)
    producer = Producer()
    clients = Clients(cast(Any, None), cast(Any, lambda **_: producer), cast(Any, None))
    fencing = asyncio.create_task(Writer.fence(Settings(), "group-0", "group", clients))
    await producer.begun.wait()
    fencing.cancel()
    await asyncio.wait({fencing}, timeout=SECONDS)
    assert fencing.cancelled()
    assert producer.cut
