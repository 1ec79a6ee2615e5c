"""Measures a ledger of many grants over many sources: the time of an opening, openings per second, and the time of a restore.

Without ``--broker`` everything happens in memory, through the processor as the budget service runs it, in processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import secrets
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Final, Self

from aiokafka import AIOKafkaProducer, TopicPartition

from benchmarks.installation import FOLDER, private_broker
from benchmarks.lifetime import unnamed_file_bytes
from benchmarks.programs import processor_seconds, service
from benchmarks.report import Figure, show_figures, write_json
from schemas import (
    MAX_DEFINITION_BYTES,
    AboveThreshold,
    LedgerRecord,
    OpenStream,
    RegisterSource,
    Request,
    RetiredNames,
    StreamSpec,
    ValuesSource,
)
from schemas.wire import Codec
from stream.budget.budget_processor import BudgetProcessor
from stream.budget.receipts import receipt_key
from stream.caches import reduce_gc_frequency
from stream.engine.restore import create_reader
from stream.kafka.topic_creation import create_topics
from stream.privacy.ledger.retirement import NameDigests
from stream.privacy.noise.keys import NoiseKey
from stream.processing.digest_table import DigestTable
from stream.processing.protocol import Outputs, Record
from stream.processing.topic_names import Topics
from stream.settings import Settings
from stream.tables.store import TableStore

KEY: Final = NoiseKey(bytes(range(32)))
TOPICS: Final = Topics(partitions=1)
ALONE: Final = 300
"""Streams that are opened one at a time, each in a separate step, in the full ledger."""
TOGETHER: Final = 4_000
"""Streams that are opened together, as many in a step as it accepts."""

_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
_records: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_DEFINITION_BYTES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger", description=__doc__)
    parser.add_argument("--grants", type=int, default=100_000)
    parser.add_argument("--sources", type=int, default=10_000)
    parser.add_argument("--retired", type=int, default=0, help="measure only what so many retired streams leave")
    parser.add_argument("--broker", action="store_true", help="also on a private broker, with the service itself")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    reduce_gc_frequency()
    if options.retired:
        show_figures(f"{options.retired:,} retired streams", retired(options.retired))
        return
    figures = measured(options.grants, options.sources)
    title = f"{options.grants:,} grants over {options.sources:,} sources"
    show_figures(title, figures)
    found = {title: figures}
    if options.broker:
        with private_broker() as base:
            found["on a broker"] = asyncio.run(_on_a_broker(base, options.grants, options.sources))
            show_figures(f"{title}, on a broker", found["on a broker"])
    if options.json:
        write_json(options.json, found)


async def _on_a_broker(base: Settings, grants: int, sources: int) -> list[Figure]:
    """Measure a budget service and a broker in seconds of the clock, which include the machine's other work."""
    settings = base.model_copy(update={"prefix": "bench-ledger"})
    key = secrets.token_hex(32)
    await create_topics(settings)
    with service("budget", settings, key, FOLDER / "logs" / "budget-ledger.log") as running:
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(AIOKafkaProducer(bootstrap_servers=settings.bootstrap))
            desk = await stack.enter_async_context(_Desk(settings, producer))
            await desk.ask(list(registrations(sources)))
            before = processor_seconds(running.pid)
            together = await desk.ask(list(openings(grants, sources)))
            used = processor_seconds(running.pid) - before
            alone = [1000 * await desk.ask([one]) for one in openings(ALONE, sources, grants)]
    began = time.perf_counter()
    with service("budget", settings, key, FOLDER / "logs" / "budget-ledger-again.log"):
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(AIOKafkaProducer(bootstrap_servers=settings.bootstrap))
            desk = await stack.enter_async_context(_Desk(settings, producer))
            await desk.ask(list(openings(1, sources, grants + ALONE)))
            again = time.perf_counter() - began
    return [
        ("opened, asked for all at once", grants / together, "streams/s"),
        ("the service's processor time for each", 1e6 * used / grants, "µs"),
        ("open, median", median(alone), "ms"),
        ("open, 99th percentile", quantiles(alone, n=100)[98], "ms"),
        ("first stream opened after the service's start", again, "s"),
    ]


class _Desk:
    """Sends requests, and waits for their receipts."""

    def __init__(self, settings: Settings, producer: AIOKafkaProducer) -> None:
        self._topics = Topics(settings.prefix, settings.partitions)
        self._producer = producer
        self._consumer = create_reader(settings)

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        ledger = TopicPartition(self._topics.ledger, 0)
        self._consumer.assign([ledger])
        await self._consumer.seek_to_end(ledger)
        await self._consumer.position(ledger)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._consumer.stop()

    async def ask(self, requests: Sequence[Request]) -> float:
        """Send requests, wait for all receipts, and return the seconds."""
        values = [(receipt_key(one.request), _requests.encode(one)) for one in requests]
        missing = {key for key, _ in values}
        began = time.perf_counter()
        for _, value in values:
            await self._producer.send(self._topics.requests, value, key=b"bench", partition=0)
        await self._producer.flush()
        while missing:
            for records in (await self._consumer.getmany(timeout_ms=200, max_records=5_000)).values():
                missing -= {record.key for record in records}
        return time.perf_counter() - began


class Service:
    """A budget service in memory, with its ledger as compaction leaves it."""

    def __init__(self) -> None:
        self.ledger: dict[bytes, bytes] = {}
        self.written = 0
        self._offset = 0
        self.processor = self._new()

    @staticmethod
    def _new() -> BudgetProcessor:
        def new_incarnation(record: object) -> bytes:
            return getattr(record, "offset", 0).to_bytes(16, "big")

        return BudgetProcessor(
            TOPICS, 0, key_id=KEY.key_id, tables=TableStore.keyed_by(KEY), new_incarnation=new_incarnation
        )

    def send(self, requests: Sequence[Request]) -> float:
        """Handle requests like the engine, and return the processor time."""
        records = []
        for request in requests:
            value = _requests.encode(request)
            records.append(Record(TOPICS.requests, 0, self._offset, self._offset, b"", value))
            self._offset += 1
        spent = 0.0
        while records:
            began = time.process_time()
            batch = self.processor.prepare(records)
            outputs = self.processor.process(batch)
            spent += time.process_time() - began
            self._keep(outputs)
            records = records[len(batch.records) :]
        return spent

    def restore(self) -> float:
        """Restore from the ledger, and return the processor time."""
        records = [Record(TOPICS.ledger, 0, at, 0, *pair) for at, pair in enumerate(self.ledger.items())]
        del self.processor
        gc.collect()
        began = time.process_time()
        self.processor = self._new()
        self.processor.restore(records)
        self.processor.end_restore()
        return time.process_time() - began

    def memory(self) -> tuple[int, int]:
        """Restore from the ledger; return the memory afterwards and the largest memory, including its records."""
        del self.processor
        gc.collect()
        tracemalloc.start()
        try:
            self.processor = self._new()
            for key, value in self.ledger.items():
                copies = bytes(bytearray(key)), bytes(bytearray(value))
                self.processor.restore([Record(TOPICS.ledger, 0, 0, 0, *copies)])
            self.processor.end_restore()
            gc.collect()
            return tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    def _keep(self, outputs: Outputs) -> None:
        for topic, _, messages in outputs:
            self.written += sum(len(key or b"") + len(value or b"") for key, value, _ in messages)
            for key, value, _ in messages if topic == TOPICS.ledger else ():
                if value is None:
                    del self.ledger[key or b""]
                else:
                    self.ledger[key or b""] = value


def openings(count: int, sources: int, start: int = 0) -> Iterator[OpenStream]:
    """Openings of so many streams, spread over the sources."""
    for number in range(start, start + count):
        spec = StreamSpec(
            stream=f"stream-{number}",
            source=f"source-{number % sources}",
            mechanism=AboveThreshold(kind="above_threshold", threshold=float(number % 1000)),
            epsilon=0.01,
        )
        yield OpenStream(request=f"open-{number}", stream=spec)


def registrations(sources: int) -> Iterator[RegisterSource]:
    """Registrations of so many sources."""
    for number in range(sources):
        source = ValuesSource(
            kind="values", source=f"source-{number}", neighbors="add-remove", epsilon=100.0, sensitivity=1.0
        )
        yield RegisterSource(request=f"register-{number}", source=source)


def filled(grants: int, sources: int) -> Service:
    """A ledger with so many grants over so many sources."""
    service = Service()
    service.send(list(registrations(sources)))
    service.send(list(openings(grants, sources)))
    return service


def retired(streams: int) -> list[Figure]:
    """Return what the ledger keeps of so many retired streams: bytes of records and files, and the time of a restore."""
    names, records = NameDigests(DigestTable()), dict[int, bytes]()
    for number in range(streams):
        names.add("stream", f"stream-{number}")
        if number % 500 == 0 or number == streams - 1:
            records |= {one.number: _records.encode(one) for one in names.drain_records()}
    size, files = sum(map(len, records.values())), unnamed_file_bytes()
    began = time.process_time()
    again = NameDigests(DigestTable())
    for one in map(_records.decode, records.values()):
        if isinstance(one, RetiredNames):
            again.restore(one)
    restoring = time.process_time() - began
    return [
        ("ledger of each", size / streams, "bytes"),
        ("file of each", files / streams, "bytes"),
        ("restore of all", restoring, "s"),
    ]


def measured(grants: int, sources: int) -> list[Figure]:
    """The figures of a ledger of that size."""
    service = filled(grants, sources)
    size = sum(len(key) + len(value) for key, value in service.ledger.items())
    memory, most = (size / grants for size in service.memory())
    restoring = service.restore()
    alone = [1000 * service.send([one]) for one in openings(ALONE, sources, grants)]
    before = service.written
    together = service.send(list(openings(TOGETHER, sources, grants + ALONE)))
    return [
        ("restore", restoring, "s"),
        ("memory of each after it", memory, "bytes"),
        ("at most, while its records are read", most, "bytes"),
        ("ledger", size / 1e6, "MB"),
        ("open, median", median(alone), "ms"),
        ("open, 99th percentile", quantiles(alone, n=100)[98], "ms"),
        ("opened", TOGETHER / together, "streams/s"),
        ("written for each", (service.written - before) / TOGETHER, "bytes"),
    ]


if __name__ == "__main__":
    main()
