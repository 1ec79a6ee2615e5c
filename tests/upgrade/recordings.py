"""Records of earlier versions, byte for byte."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from aiokafka import TopicPartition

from schemas import StreamSpec
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Record
from stream.processing.topic_names import Topics
from stream.tables.store import TableStore
from stream.worker.fair_shares import Limits
from tests.chaos.replay import Installation, Logs
from tests.simulation.broker import Broker
from tests.simulation.logs import Entry
from tests.upgrade.record import FOLDER


@dataclass(frozen=True)
class Recording:
    """An installation of an earlier version: all records that it had committed when it was stopped."""

    topics: Topics
    key: NoiseKey
    rows: dict[str, list[Any]]
    limits: Limits
    asked: list[str]
    names: dict[str, str]
    logs: Logs
    ends: dict[TopicPartition, int]
    committed: list[tuple[str, TopicPartition, int]]

    def tables(self) -> TableStore:
        """The tables of the installation."""
        store = TableStore.keyed_by(self.key)
        store.put("people", self.rows)
        return store

    def installation(self) -> Installation:
        """Return the installation that a replay needs."""
        return Installation(self.topics, self.key, self.tables(), limits=self.limits)

    def records(self, name: str) -> Iterator[Record]:
        """Return all records of a topic, by its name without the prefix."""
        for (topic, _), records in sorted(self.logs.items()):
            if topic == self.names[name]:
                yield from records  # type: ignore[misc]  # they were made as records

    def latest(self, name: str) -> dict[str, Any]:
        """Return the records that compaction leaves in a topic, read as plain JSON without Sotto's code."""
        return {(one.key or b"").decode(): json.loads(one.value or b"null") for one in self.records(name)}

    def specs(self) -> list[StreamSpec]:
        """Return the streams that were opened."""
        return [StreamSpec.model_validate(one["spec"]) for one in self.latest("control").values()]

    def committed_of(self, topic: str) -> int:
        """Return the offset that a group had committed for a topic with one partition."""
        (found,) = [offset for _, place, offset in self.committed if place.topic == topic]
        return found

    def fill(self, broker: Broker) -> None:
        """Fill a simulated broker with Kafka's state: each record at its offset, and the groups' committed offsets."""
        for log in broker.logs.values():
            log.entries, log.end = [], 0
        for (topic, number), records in self.logs.items():
            log = broker.logs[TopicPartition(topic, number)]
            log.entries = [Entry(one.offset, one, None) for one in records]  # type: ignore[arg-type]
        for place, end in self.ends.items():
            broker.logs[place].end = end
        for group, place, offset in self.committed:
            for known in (broker.group(group).offsets, broker.group(group).reached):
                known[place] = offset


@cache
def recordings() -> dict[str, Recording]:
    """Return all kept installations, by version and number."""
    return {
        f"{path.name.removesuffix('.json.gz')}-{number}": _recording(document, one)
        for path in sorted(FOLDER.glob("*.json.gz"))
        for document in [json.loads(gzip.decompress(path.read_bytes()))]
        for number, one in enumerate(document["installations"])
    }


def _recording(document: dict[str, Any], one: dict[str, Any]) -> Recording:
    logs: dict[tuple[str, int], list[Record]] = {}
    for topic, partition, offset, timestamp, key, value in one["records"]:
        record = Record(
            topic, partition, offset, timestamp, key.encode(), None if value is None else value.encode(), ()
        )
        logs.setdefault((topic, partition), []).append(record)
    return Recording(
        topics=Topics(document["prefix"], document["partitions"]),
        key=NoiseKey(bytes.fromhex(document["key"])),
        rows=document["rows"],
        limits=Limits.from_seconds(*document["work"]),
        asked=one["asked"],
        names=one["topics"],
        logs=logs,
        ends={TopicPartition(topic, number): end for topic, number, end in one["ends"]},
        committed=[
            (group, TopicPartition(topic, number), offset) for group, topic, number, offset in one["committed"]
        ],
    )
