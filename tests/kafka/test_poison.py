"""An event that breaks the processor itself is refused; the events around it are answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.util import calc_crc32c

from stream.client import Client
from stream.kafka.services import worker
from stream.noise import NoiseKey
from stream.processors.admission import Admission, Batch
from stream.processors.base import RecordLike
from stream.processors.topics import partition_of
from stream.settings import Settings
from tests.chaos.checker import check, committed
from tests.conftest import StartService
from tests.kafka.test_contract import FEED, spec

pytestmark = pytest.mark.kafka


async def test_poison_is_refused_alone(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admit = Admission.admit

    def fragile(self: Admission, records: Sequence[RecordLike]) -> Batch:
        if any(b"poison" in (record.value or b"") for record in records):
            raise ZeroDivisionError("private 31337")
        return admit(self, records)

    start("budget")
    await client.register(FEED)
    await client.open(spec("ward"))
    engine = worker(settings, client.topics, key)
    monkeypatch.setattr(Admission, "admit", fragile)
    running = asyncio.create_task(engine.run())
    asked = ["before", "poison", "after"]
    try:
        async with asyncio.timeout(60):
            answers = await asyncio.gather(
                *(
                    client.ask({"id": name, "stream": "ward", "value": 31337.0 if name == "poison" else 1.0})
                    for name in asked
                )
            )
    finally:
        engine.stop()
        await running
        monkeypatch.undo()
    assert [answer.outcome for answer in answers] == ["below", "rejected", "below"]
    assert (answers[1].reason or "").startswith("internal")
    letters = [
        record
        for partition in range(client.topics.partitions)
        for record in await committed(settings, client.topics.rejected, partition)
    ]
    assert [b"poison" in (letter.value or b"") for letter in letters] == [True]
    printed = capsys.readouterr()
    assert "31337" not in printed.out + printed.err
    found = await check(settings, client.topics, key, asked)
    assert all("replay" in violation for violation in found.violations)


def with_a_name_that_is_not_utf8(batch: Any) -> None:
    """Change the header name NAME in a finished batch; the checksum is made right again, so that the broker takes it."""
    built = bytearray(batch._build())
    place = built.index(b"NAME")
    built[place : place + 4] = b"\xff\xfe\xfd\xfc"
    checksum, checked = slice(17, 21), 21
    built[checksum] = calc_crc32c(bytes(built[checked:])).to_bytes(4, "big")
    batch._buffer = bytes(built)


async def test_events_whose_headers_cannot_be_read_are_refused_and_the_partition_goes_on(
    settings: Settings, client: Client, start: StartService
) -> None:
    """One such header makes the rest of its own producer's batch unreadable; nobody else's."""
    start("budget")
    start("worker")
    await client.register(FEED)
    await client.open(spec("ward"))
    await asyncio.wait_for(client.ask({"id": "warm", "stream": "ward", "value": 1.0}), 60)
    partition = partition_of(b"ward", client.topics.partitions)
    before = await committed(settings, client.topics.answers, partition)
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap) as producer:
        batch = producer.create_batch()
        for number in range(5):
            value = json.dumps({"id": f"{number}", "stream": "ward", "value": 1.0}).encode()
            headers = [("NAME", b"x")] if number == 2 else []
            batch.append(timestamp=None, key=b"ward", value=value, headers=headers)
        batch.close()
        with_a_name_that_is_not_utf8(batch)
        await (await producer.send_batch(batch, client.topics.queries, partition=partition))
    last = await asyncio.wait_for(client.ask({"id": "last", "stream": "ward", "value": 1.0}), 60)
    assert last.outcome == "below"
    answered = (await committed(settings, client.topics.answers, partition))[len(before) :]
    assert [json.loads(record.value or b"")["id"] for record in answered] == ["0", "1", "last"]
    letters = [dict(record.headers) for record in await committed(settings, client.topics.rejected, partition)]
    assert [reasons["__connect.errors.offset"] for reasons in letters] == [b"3", b"4", b"5"]
    assert all(b"UTF-8" in reasons["__connect.errors.exception.message"] for reasons in letters)
