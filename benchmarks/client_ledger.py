"""Measures a client's reads of a ledger with many grants: ``python -m benchmarks.client_ledger``.

The grants are copies of real ones under other names, written straight to the topic of a private broker after the
budget service has ended. The worker runs, so that statements and questions get their answers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from aiokafka import AIOKafkaProducer, TopicPartition

from benchmarks.installation import FOLDER, private_broker
from benchmarks.programs import service
from benchmarks.report import Figure, show_figures, write_json
from sotto import AsyncClient
from stream.engine.restore import create_reader, read_to_end
from stream.kafka.topic_creation import create_topics
from stream.processing.topic_names import Topics
from stream.settings import Settings
from stream.sql.result_tables import PreparedStatement
from stream.sql.select_statements import parse_statement
from stream.tables.demo_tables import ADULT_PATH, adult_source

STREAMS: Final = 5
"""Open streams of the source that is asked."""
OPEN_COPIES: Final = 1_000
"""Copies of an open stream at the source that is asked."""
COPIED_SOURCES: Final = 1_000
CALLS: Final = 300
CHANGES_A_SECOND: Final = 100
STATEMENT: Final = "SELECT COUNT(*) FROM adult WHERE age >= 65"

Records = dict[bytes, bytes]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client_ledger", description=__doc__)
    parser.add_argument("--grants", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with private_broker() as base:
        figures = asyncio.run(measured(base, options.grants))
    title = f"a client beside {options.grants:,} grants"
    show_figures(title, figures)
    if options.json:
        write_json(options.json, {title: figures})


async def measured(base: Settings, grants: int) -> list[Figure]:
    """Fill the ledger and time the calls of one client."""
    roots = str(ADULT_PATH.parent)
    settings = base.model_copy(update={"prefix": "bench-client-ledger", "table_roots": roots})
    key, logs = secrets.token_hex(32), FOLDER / "logs"
    await create_topics(settings)
    with service("worker", settings, key, logs / "worker-client-ledger.log"):
        with service("budget", settings, key, logs / "budget-client-ledger.log"):
            originals = await _open_streams(settings)
        ledger = Topics(settings.prefix, settings.partitions).ledger
        await _write(settings, ledger, chain(_open_copies(originals), _copies(originals, range(grants))))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        async with AsyncClient(settings) as client:
            began, used = time.perf_counter(), time.process_time()
            await client.budget("adult")
            first, used = time.perf_counter() - began, time.process_time() - used
            memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            calls = _calls(client, grants)
            figures = [("first read", first, "s"), ("its processor time", used, "s")]
            figures.append(("memory after it, at most", memory, "MB more"))
            for name, call in calls.items():
                figures += await _timed(name, call)
            changed = random.sample(range(grants), min(grants, 1_000))
            async with _changes(settings, ledger, [*_copies(originals, changed)]):
                for name in ("budget", "grant"):
                    figures += await _timed(f"{name}, {CHANGES_A_SECOND} changes a second", calls[name])
            return figures


def _calls(client: AsyncClient, grants: int) -> dict[str, Callable[[], Awaitable[Any]]]:
    def name() -> tuple[str, str]:
        number = random.randrange(grants)
        return f"source-{number % COPIED_SOURCES}", f"copy-{number}"

    async def prepare() -> None:
        statement = parse_statement(STATEMENT)
        records = (await client._read_ledger()).records_of(statement.table)  # noqa: SLF001
        PreparedStatement.prepare(statement, *records, "prepared")

    return {
        "budget": lambda: client.budget("adult"),
        "grant": lambda: client.grant(*name()),
        "list_streams, a page of 100 of a source": lambda: client.list_streams(
            name()[0], limit=100, after=name()[1]
        ),
        "list_streams, a page of 100 of all": lambda: client.list_streams(limit=100, after=name()[1]),
        "sql, before its question": prepare,
        "ask, for comparison": lambda: client.ask("counts-0", where="age >= 65"),
        "sql, with its answer": lambda: client.sql(STATEMENT),
    }


async def _timed(name: str, call: Callable[[], Awaitable[Any]]) -> list[Figure]:
    times: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await call()
        times.append(1000 * (time.perf_counter() - began))
        await asyncio.sleep(0.005)
    return [
        (f"{name}, median", median(times), "ms"),
        (f"{name}, 99th percentile", quantiles(times, n=100)[98], "ms"),
    ]


async def _open_streams(settings: Settings) -> Records:
    """Open streams of a table and close one; return the records of its source, an open and a closed grant."""
    async with AsyncClient(settings) as client:
        await client.register(adult_source(epsilon=1000.0).model_copy(update={"source": "adult"}))
        mechanism = {"kind": "laplace", "answers": 10_000}
        for number in range(STREAMS + 1):
            await client.open(
                {"stream": f"counts-{number}", "source": "adult", "epsilon": 100.0, "mechanism": mechanism}
            )
        await client.ask("counts-0", where="age >= 65", timeout=120)
        await client.close("adult", f"counts-{STREAMS}")
        while (await client.grant("adult", f"counts-{STREAMS}")).state != "closed":  # noqa: ASYNC110  (of a service)
            await asyncio.sleep(0.1)
    found: Records = {}
    async with create_reader(settings) as consumer:
        place = TopicPartition(Topics(settings.prefix, settings.partitions).ledger, 0)
        async for records in read_to_end(consumer, place, settings.batch_events):
            found.update({record.key: record.value for record in records if record.value is not None})
    return found


def _copies(originals: Records, numbers: Sequence[int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield copies of the source and of the grants: one grant in 100 is open, the others are closed."""
    source = originals[b"source|adult"]
    for number in range(COPIED_SOURCES):
        owner = b"source-%d" % number
        yield b"source|" + owner, source.replace(b'"source":"adult"', b'"source":"%b"' % owner)
    for number in numbers:
        original = b"counts-%d" % (0 if number % 100 == 0 else STREAMS)
        name, owner = b"copy-%d" % number, b"source-%d" % (number % COPIED_SOURCES)
        value = originals[b"grant|adult|" + original]
        value = value.replace(b'"stream":"%b"' % original, b'"stream":"%b"' % name)
        yield b"grant|%b|%b" % (owner, name), value.replace(b'"source":"adult"', b'"source":"%b"' % owner)


def _open_copies(originals: Records) -> Iterator[tuple[bytes, bytes]]:
    original = originals[b"grant|adult|counts-0"]
    for number in range(OPEN_COPIES):
        name = b"counts-copy-%d" % number
        yield b"grant|adult|" + name, original.replace(b'"stream":"counts-0"', b'"stream":"%b"' % name)


async def _write(settings: Settings, topic: str, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap, max_batch_size=512 * 1024) as producer:
        batch = producer.create_batch()
        for key, value in pairs:
            if batch.append(timestamp=None, key=key, value=value) is None:
                await producer.send_batch(batch, topic, partition=0)
                batch = producer.create_batch()
                batch.append(timestamp=None, key=key, value=value)
        await producer.send_batch(batch, topic, partition=0)


@asynccontextmanager
async def _changes(settings: Settings, topic: str, pairs: Sequence[tuple[bytes, bytes]]) -> AsyncIterator[None]:
    """Rewrite grants in transactions while the context lasts, as the budget service does after charges."""

    async def rewrite(producer: AIOKafkaProducer) -> None:
        while True:
            async with producer.transaction():
                key, value = random.choice(pairs)
                await producer.send(topic, value, key, partition=0)
            await asyncio.sleep(1 / CHANGES_A_SECOND)

    producer = AIOKafkaProducer(bootstrap_servers=settings.bootstrap, transactional_id="bench-changes")
    async with producer:
        task = asyncio.create_task(rewrite(producer))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


if __name__ == "__main__":
    main()
