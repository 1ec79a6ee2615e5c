"""Replaces the broker of aiokafka's producer, and checks the sequences of an idempotent producer like Kafka."""

from __future__ import annotations

import asyncio
import struct
from types import SimpleNamespace
from typing import Any, Final

import pytest
from aiokafka.errors import MessageSizeTooLargeError, OutOfOrderSequenceNumber, RequestTimedOutError
from aiokafka.structs import BrokerMetadata, PartitionMetadata

from stream.kafka.client.client_patches import BrokerClient

_PRODUCER: Final = struct.Struct(">qhii")
_PRODUCER_AT: Final = 43
"""The position in a record batch at which the producer's id, epoch, first sequence and number of records begin."""


class Broker:
    """A broker with one partition per topic. It refuses batches over ``most_bytes``; while ``up`` is false, requests time out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.up = True
        self.most_bytes = 2000
        self.producers = 0
        self.taken: list[tuple[str, int]] = []
        """The topic and the number of records of each batch that was accepted."""
        self._next: dict[tuple[str, int], int] = {}

        def known(client: Any, topic: str) -> set[int]:
            client.cluster._brokers = {0: BrokerMetadata(0, "nowhere", 1, None)}
            partition = PartitionMetadata(topic, 0, 0, [0], [0], None)
            client.cluster._partitions[topic] = {0: partition}
            return {0}

        async def nothing(*_: Any) -> None:
            return

        async def on_metadata(client: Any, topic: str) -> set[int]:
            return known(client, topic)

        async def send(_client: Any, _node: int, request: Any, **_: Any) -> Any:
            await asyncio.sleep(0.001)
            if not self.up:
                raise RequestTimedOutError
            return self._answer(request)

        monkeypatch.setattr(BrokerClient, "bootstrap", nothing)
        monkeypatch.setattr(BrokerClient, "_maybe_wait_metadata", nothing)
        monkeypatch.setattr(BrokerClient, "_wait_on_metadata", on_metadata)
        monkeypatch.setattr(BrokerClient, "force_metadata_update", lambda _: asyncio.ensure_future(nothing()))
        monkeypatch.setattr(BrokerClient, "get_random_node", lambda _: 0)
        monkeypatch.setattr(BrokerClient, "send", send)

    def _answer(self, request: Any) -> Any:
        if "InitProducerId" in type(request).__name__:
            self.producers += 1
            return SimpleNamespace(error_code=0, producer_id=self.producers, producer_epoch=0)
        topics: list[Any] = [
            (topic, [(number, self._append(topic, bytes(batch)), 0, -1, 0, [], None) for number, batch in batches])
            for topic, batches in request._topics
        ]
        return SimpleNamespace(API_VERSION=8, topics=topics)

    def _append(self, topic: str, batch: bytes) -> int:
        producer, _, sequence, count = _PRODUCER.unpack_from(batch, _PRODUCER_AT)
        if len(batch) > self.most_bytes:
            return int(MessageSizeTooLargeError.errno)
        if sequence != self._next.get((topic, producer), 0):
            return int(OutOfOrderSequenceNumber.errno)
        self._next[topic, producer] = sequence + count
        self.taken.append((topic, count))
        return 0
