"""Processors without an engine, their input events, and their outputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from schemas import MAX_DEFINITION_BYTES, MAX_EVENT_BYTES, Answer, Charge, Checkpoint
from schemas.wire import Codec
from sotto import Driver
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Outputs, Record
from stream.processing.topic_names import Topics
from stream.tables.store import TableStore
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, stream

HIGH, LOW = 1e9, -1e9
"""Values so far from every threshold of these tests that no noise matters."""

answer_codec: Codec[Answer] = Codec(Answer, limit=MAX_EVENT_BYTES)
charge_codec: Codec[Charge] = Codec(Charge, limit=MAX_DEFINITION_BYTES)
checkpoint_codec: Codec[Checkpoint] = Codec(Checkpoint, limit=MAX_EVENT_BYTES)


def spec(
    name: str, source: str = "feed", *, threshold: float = 0.0, cutoff: int = 1, **more: Any
) -> dict[str, Any]:
    """Return the definition of a stream of above_threshold; `more` replaces or adds fields."""
    fields: dict[str, Any] = {"mechanism": {"threshold": threshold, "cutoff": cutoff}, **more}
    return stream(name, source, **fields)


def query(identifier: str, stream: str, value: float | None = None, **more: Any) -> bytes:
    fields = {"id": identifier, "stream": stream, **({} if value is None else {"value": value}), **more}
    return json.dumps(fields).encode()


def table_store() -> TableStore:
    """Return the driver's store of tables, with its key."""
    return TableStore.keyed_by(KEY)


def worker_of(
    driver: Driver,
    *,
    partition: int = 0,
    key: NoiseKey = KEY,
    tables: TableStore | None = None,
    only: Iterable[str] | None = None,
) -> QueryProcessor:
    """Return a new worker that has read the control events of the driver's installation, or of some of its streams."""
    worker = QueryProcessor(driver.topics, partition, key, tables or table_store())
    names = None if only is None else {name.encode() for name in only}
    control = [record for record in driver.records(driver.topics.control) if record.partition == partition]
    worker.apply_lookup_records([record for record in control if names is None or record.key in names])
    return worker


def restarted(driver: Driver, outputs: Sequence[Outputs]) -> QueryProcessor:
    """Return a new worker that has read the control events and its predecessors' changelog."""
    return restarted_from(driver.records(driver.topics.control), driver.topics, outputs)


def restarted_from(control: Iterable[Record], topics: Topics, outputs: Sequence[Outputs]) -> QueryProcessor:
    """Return a new worker that has read these control events and the changelog."""
    successor = QueryProcessor(topics, 0, KEY, table_store())
    successor.restore(control)
    successor.restore(changelog(topics, outputs))
    successor.end_restore()
    return successor


def changelog(topics: Topics, outputs: Sequence[Outputs]) -> list[Record]:
    """Return the compacted records that outputs write to the workers' changelog."""
    latest: dict[bytes, Record] = {}
    for number, (key, value, _) in enumerate(m for one in outputs for m in messages_to(one, topics.state)):
        latest[key] = Record(topics.state, 0, number, 0, key, value)
    return list(latest.values())


def records(
    values: Sequence[bytes | None], *, start: int = 0, partition: int = 0, topics: Topics | None = None
) -> list[Record]:
    """Return query events at consecutive offsets."""
    topic = (topics or Topics()).queries
    return [Record(topic, partition, start + number, 0, b"", value) for number, value in enumerate(values)]


def messages_to(outputs: Outputs, topic: str) -> list[tuple[bytes, bytes | None, Sequence[tuple[str, bytes]]]]:
    """Return the messages to all partitions of a topic; a null key becomes an empty one."""
    return [
        (key or b"", value, headers)
        for name, _, messages in outputs
        for key, value, headers in messages
        if name == topic
    ]


def answers_in(outputs: Outputs, topics: Topics) -> list[Answer]:
    return [answer_codec.decode(value) for _, value, _ in messages_to(outputs, topics.answers)]


def charges_in(outputs: Outputs, topics: Topics) -> list[Charge]:
    return [charge_codec.decode(value) for _, value, _ in messages_to(outputs, topics.charges)]


def checkpoints_in(outputs: Outputs, topics: Topics) -> dict[str, Checkpoint]:
    """Return the last checkpoint of each stream."""
    return {
        key.decode(): checkpoint_codec.decode(value)
        for key, value, _ in messages_to(outputs, topics.state)
        if not key.startswith(b"@")
    }
