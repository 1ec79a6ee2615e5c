"""On real Kafka, every mechanism answers from a table in DuckDB with the same bytes as from memory."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas import Query, TableSource
from sotto import AsyncClient
from stream.privacy.ledger.retirement import NameDigests
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import partition_of
from stream.services.runner import build_budget_engine, build_worker_engine
from stream.settings import Settings
from stream.tables.code_database import CodeDatabase
from stream.tables.columns_table import PrivateTable
from stream.tables.counted_table import CountedTable
from stream.tables.rows import Rows
from stream.tables.store import TableStore, table_key
from stream.tables.stored_table import StoredTable
from tests.chaos.checker import committed
from tests.chaos.replay import Installation, check_replay
from tests.unit.mechanisms import AGES, KINDS, SEXES, SOURCES, TOWNS

pytestmark = pytest.mark.kafka

PEOPLE = pl.DataFrame(
    {"age": AGES, "sex": SEXES, "town": TOWNS, "who": [f"p{row // 3}" for row in range(len(AGES))]}
)
OF_PEOPLE = [
    {"people": True, "min_rows": 2, "where": "age < 30"},
    {"person_sum": "age", "bound": 50, "where": "sex = 'F'"},
    {"people": True, "group_by": ["sex"]},
]


class MemoryTables(TableStore):
    """Loads tables into memory, although the services count them in DuckDB."""

    def __init__(self, key: NoiseKey) -> None:
        super().__init__()
        self._key = key
        self._kept: dict[str, PrivateTable] = {}

    def get(self, source: TableSource, expected_fingerprint: str | None = None, version: int = 1) -> CountedTable:
        """Return the table in memory, whatever its fingerprint."""
        del expected_fingerprint, version
        if source.source not in self._kept:
            rows = Rows.load(source)
            self._kept[source.source] = PrivateTable.from_rows(rows, source, table_key(self._key))
        return self._kept[source.source]


async def test_duckdb_answers_every_mechanism_with_the_bytes_of_memory(
    settings: Settings, client: AsyncClient, key: NoiseKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replaying the committed log against tables in memory gives the committed answers."""
    path = tmp_path / "people.parquet"
    PEOPLE.write_parquet(path)
    batches: list[int] = []
    together = StoredTable.count_together

    def record_batch(table: StoredTable, predicates: Any, sums: Any) -> None:
        batches.append(len(list(predicates)))
        together(table, predicates, sums)

    monkeypatch.setattr(StoredTable, "count_together", record_batch)
    kinds = [kind for kind in KINDS if kind.source == "people"]
    one_row = {**SOURCES["people"], "path": str(path), "engine": "duckdb"}
    several = {**one_row, "source": "visits", "person": "who", "contribution": 2}
    services = [
        build_budget_engine(settings, client.topics, key),
        build_worker_engine(settings, client.topics, key),
    ]
    running = [asyncio.create_task(service.run()) for service in services]
    try:
        questions: list[dict[str, Any]] = []
        for source in (one_row, several):
            await client.register(source)
            for number, kind in enumerate(kinds):
                stream = f"{source['source']}-{number}"
                await client.open(kind.spec(stream=stream, source=source["source"]), acknowledge=True)
                questions += [{"stream": stream, **question} for question in kind.questions]
        laplace = {"kind": "laplace", "answers": 10, "dimensions": 2}
        await client.open(
            {"stream": "people", "source": "visits", "epsilon": 2.0, "mechanism": laplace}, acknowledge=True
        )
        questions += [{"stream": "people", **question} for question in OF_PEOPLE]
        queries = [Query.model_validate({"id": str(place), **one}) for place, one in enumerate(questions)]
        answers = list(await client.ask_many(queries))
    finally:
        for service in services:
            service.stop()
        await asyncio.gather(*running)
    assert sum(answer.outcome in {"above", "below", "answer"} for answer in answers) >= 0.8 * len(answers)
    assert max(batches) > 5
    topics = client.topics
    places = [
        (topic, partition)
        for topic in (topics.queries, topics.control, topics.answers, topics.state)
        for partition in range(topics.partitions)
    ]
    logs = {place: await committed(settings, *place) for place in places}
    assert sum(len(logs[topics.answers, partition]) for partition in range(topics.partitions)) == len(answers)
    memory = Installation(topics, key, MemoryTables(key))
    for partition in range(topics.partitions):
        violations = check_replay(memory, logs, partition, NameDigests())
        # Its last check asks the streams of the chaos suite further questions.
        assert [one for one in violations if "would answer differently" not in one] == []


def streams_of_other_partitions(stream: str, partitions: int) -> tuple[str, str]:
    """Return two names whose partitions differ from each other and from the stream's partition."""
    found = {partition_of(stream.encode(), partitions): stream}
    for number in count():
        name = f"{stream}-{number}"
        found.setdefault(partition_of(name.encode(), partitions), name)
        if len(found) == 3:
            _, one, other = found.values()
            return one, other
    raise AssertionError


async def test_slow_or_failing_statement_holds_up_its_own_streams(
    settings: Settings, client: AsyncClient, key: NoiseKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed statement is retried while other sources answer, and a service stops without waiting for a timeout."""
    path = tmp_path / "people.parquet"
    PEOPLE.write_parquet(path)
    services = [
        build_budget_engine(settings, client.topics, key),
        build_worker_engine(settings, client.topics, key),
    ]
    running = [asyncio.create_task(service.run()) for service in services]
    result, endless, failures = CodeDatabase._make_relation, asyncio.Event(), iter([True])
    slow: set[CodeDatabase] = set()
    waiting, other = streams_of_other_partitions("s", client.topics.partitions)
    loop = asyncio.get_running_loop()

    def failing(database: CodeDatabase, text: str) -> Any:
        if "< 31" not in text:  # the other source's table may be loaded meanwhile
            return result(database, text)
        slow.add(database)
        if next(failures, False):
            raise ValueError("Conversion Error: 'Alice'")
        return result(database, text)

    def never_ending(database: CodeDatabase, text: str) -> Any:
        if database not in slow:
            return result(database, text)
        loop.call_soon_threadsafe(endless.set)
        return database._connection.sql("SELECT count(*) AS n FROM range(1000000000) a, range(1000000000) b")

    try:
        for source, streams in {"people": ("s", waiting), "quick": (other,)}.items():
            await client.register({**SOURCES["people"], "source": source, "path": str(path), "engine": "duckdb"})
            for stream in streams:
                laplace = {"kind": "laplace", "answers": 10}
                await client.open({"stream": stream, "source": source, "epsilon": 2.0, "mechanism": laplace})
        assert (await client.ask({"stream": "s", "where": "age < 30"}, outcomes=True)).outcome == "answer"
        monkeypatch.setattr(CodeDatabase, "_make_relation", failing)
        assert (await client.ask({"stream": "s", "where": "age < 31"}, outcomes=True)).outcome == "answer"
        assert next(failures, None) is None
        monkeypatch.setattr(CodeDatabase, "_make_relation", never_ending)
        asking = [
            asyncio.create_task(client.ask({"stream": stream, "where": "age < 32"}, outcomes=True))
            for stream in ("s", waiting)
        ]
        await endless.wait()
        assert (await client.ask({"stream": other, "where": "age < 32"}, outcomes=True)).outcome == "answer"
        assert not any(one.done() for one in asking)
    finally:
        for service in services:
            service.stop()
        async with asyncio.timeout(settings.engine_seconds / 2):
            await asyncio.gather(*running)
    for one in asking:
        one.cancel()
    answers = [
        one.value
        for number in range(client.topics.partitions)
        for one in await committed(settings, client.topics.answers, number)
    ]
    assert len(answers) == 3
    assert not any(b"Alice" in (value or b"") for value in answers)
