"""The transactional producer retries a request with the same sequence number, or raises its error."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition, errors
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import EndTxnRequest, InitProducerIdRequest
from aiokafka.record.default_records import DefaultRecordBatch

from stream.kafka.client import transactional_producer, wire_requests
from stream.kafka.client.transactional_producer import TransactionalProducer
from tests.patience import SECONDS

ANSWERS, STATE = TopicPartition("answers", 0), TopicPartition("state", 0)
ENDING = errors.ConcurrentTransactions.errno


class Kafka:
    """Replaces aiokafka's client with a cluster of two brokers, which sends the given replies and keeps the requests."""

    def __init__(self, *, second: bool = True) -> None:
        self.second = second
        self.asked: list[tuple[int, int, Any]] = []
        self.responses: dict[str, deque[Any]] = {}
        """The next replies to each kind of request: error codes, or errors to raise; when none is left, requests succeed."""
        self.leaders = {ANSWERS: 1, STATE: 1}
        self.coordinators: deque[int] = deque()
        self.moved: deque[dict[TopicPartition, int]] = deque()
        self.identity = (5, 0)
        self.cluster = SimpleNamespace(leader_for_partition=self.leaders.get)

    def connect(self, **_: Any) -> Kafka:
        return self

    async def bootstrap(self) -> None: ...
    async def close(self) -> None: ...
    async def _wait_on_metadata(self, topic: str) -> None: ...

    async def force_metadata_update(self) -> None:
        if self.moved:
            self.leaders.update(self.moved.popleft())

    async def coordinator_lookup(self, kind: int, key: str) -> int:
        del kind, key
        return self.coordinators.popleft() if self.coordinators else 1

    async def send(self, node: int, request: Any, *, group: int = 0) -> Any:
        self.asked.append((node, group, request))
        name = kind_of(request)
        said = self.responses.get(name)
        code = said.popleft() if said else 0
        if isinstance(code, Exception):
            raise code
        if name == "end":
            self.identity = (self.identity[0], self.identity[1] + 1)
        if not self.second and name == "produce":
            return SimpleNamespace(topics=[(p.topic, [(p.partition, code, 0)]) for p in batches_in(request)])
        if not self.second or name == "init":
            fields = {
                "error_code": code,
                "producer_id": 5,
                "producer_epoch": 0,
                "errors": [("answers", [(0, code)])],
            }
            return features(1) if name == "features" else SimpleNamespace(**fields)
        return {
            "features": features(2),
            "end": wire_requests.EndResponse(code, *self.identity),
            "offsets": [(ANSWERS, code)],
            "produce": [(place, code) for place in batches_in(request)] if name == "produce" else None,
        }[name]

    def requests(self, kind: str) -> list[tuple[int, Any]]:
        return [(node, request) for node, _, request in self.asked if kind_of(request) == kind]


def features(version: int) -> wire_requests.Features:
    """Return the features of a cluster whose brokers know both protocols."""
    versions = {api: (0, most) for api, most in wire_requests.SECOND_PROTOCOL_REQUESTS}
    return wire_requests.Features(versions, {wire_requests.TRANSACTION_VERSION: version})


def kind_of(request: Any) -> str:
    if isinstance(request, wire_requests.Request):
        return {
            wire_requests.PRODUCE: "produce",
            wire_requests.END: "end",
            wire_requests.API_VERSIONS: "features",
        }.get(request._api, "offsets")
    kinds = {InitProducerIdRequest: "init", ProduceRequest: "produce", EndTxnRequest: "end"}
    return kinds.get(type(request), "join")


def batches_in(request: Any) -> dict[TopicPartition, bytes]:
    """Return the batches of a request."""
    if isinstance(request, ProduceRequest):
        return {TopicPartition(t, p): bytes(data) for t, parts in request._topics for p, data in parts}
    cursor = wire_requests.FieldReader(request.encode())
    cursor.text()
    cursor.data(6)
    found = {}
    for _ in range(cursor.count()):
        topic = cursor.text()
        for _ in range(cursor.count()):
            number = cursor.int32()
            found[TopicPartition(topic, number)] = bytes(cursor.data(cursor.count()))
            cursor.skip_tags()
        cursor.skip_tags()
    return found


Connect = Callable[[Kafka], TransactionalProducer]


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Connect:
    monkeypatch.setattr(transactional_producer, "RETRY_PAUSE_SECONDS", 0.001)

    def connect(kafka: Kafka) -> TransactionalProducer:
        monkeypatch.setattr(transactional_producer, "BrokerClient", kafka.connect)
        return TransactionalProducer(transactional_id="w-0", transaction_timeout_ms=60_000, max_batch_size=1000)

    return connect


def batch(producer: TransactionalProducer, *values: bytes) -> Any:
    filled = producer.create_batch()
    for value in values:
        filled.append(timestamp=1, key=b"k", value=value, headers=[])
    return filled


def numbered(written: bytes) -> tuple[int, int, int]:
    read = DefaultRecordBatch(bytearray(written))
    return read.producer_id, read.producer_epoch, read.base_sequence


both = pytest.mark.parametrize("second", [False, True], ids=["first", "second"])


@both
async def test_transaction_needs_only_requests_of_its_protocol(connected: Connect, *, second: bool) -> None:
    kafka = Kafka(second=second)
    producer = connected(kafka)
    await producer.start()
    kafka.asked.clear()
    await producer.write({ANSWERS: [batch(producer, b"a")], STATE: [batch(producer, b"s")]})
    await producer.commit()
    assert [kind_of(request) for _, _, request in kafka.asked] == (
        ["produce", "end"] if second else ["join", "produce", "end"]
    )
    kafka.asked.clear()
    await producer.commit()
    assert not kafka.asked, "an empty transaction was asked for"


@both
async def test_producer_sends_batches_of_partition_in_order_with_sequences(
    connected: Connect, *, second: bool
) -> None:
    kafka = Kafka(second=second)
    producer = connected(kafka)
    await producer.start()
    for _ in range(2):
        await producer.write(
            {ANSWERS: [batch(producer, b"1", b"2"), batch(producer, b"3")], STATE: [batch(producer, b"s")]}
        )
        await producer.commit()
    written = [batches_in(request) for _, request in kafka.requests("produce")]
    assert [set(each) for each in written] == [{ANSWERS, STATE}, {ANSWERS}] * 2
    numbers = [numbered(each[ANSWERS]) for each in written]
    if second:  # each transaction has a separate epoch, and its sequence numbers begin again
        assert numbers == [(5, 0, 0), (5, 0, 2), (5, 1, 0), (5, 1, 2)]
    else:
        assert numbers == [(5, 0, 0), (5, 0, 2), (5, 0, 3), (5, 0, 5)]


async def test_producer_sequence_wraps_around_like_kafkas(connected: Connect) -> None:
    kafka = Kafka(second=False)
    producer = connected(kafka)
    await producer.start()
    producer._sequences[ANSWERS] = 2**31 - 2
    await producer.write({ANSWERS: [batch(producer, b"1", b"2", b"3"), batch(producer, b"4")]})
    numbers = [numbered(batches_in(request)[ANSWERS])[2] for _, request in kafka.requests("produce")]
    assert numbers == [2**31 - 2, 1]


async def test_producer_takes_new_id_from_coordinator(connected: Connect) -> None:
    kafka = Kafka()
    producer = connected(kafka)
    await producer.start()
    await producer.write({ANSWERS: [batch(producer, b"1")]})
    kafka.identity = (6, -1)  # after 32,767 epochs
    await producer.commit()
    await producer.write({ANSWERS: [batch(producer, b"2")]})
    assert [numbered(batches_in(request)[ANSWERS]) for _, request in kafka.requests("produce")] == [
        (5, 0, 0),
        (6, 0, 0),
    ]


@both
@pytest.mark.parametrize(
    "said",
    [
        errors.NotLeaderForPartitionError.errno,
        errors.NotEnoughReplicasError.errno,
        errors.RequestTimedOutError.errno,
        errors.KafkaStorageError.errno,
        ENDING,
        errors.KafkaConnectionError(),
        errors.NodeNotReadyError(),
        errors.RequestTimedOutError(),
    ],
    ids=str,
)
async def test_producer_resends_uncertain_batch_unchanged(connected: Connect, said: Any, *, second: bool) -> None:
    kafka = Kafka(second=second)
    producer = connected(kafka)
    await producer.start()
    kafka.responses["produce"] = deque([said])
    kafka.moved.append({ANSWERS: 2})
    await producer.write({ANSWERS: [batch(producer, b"a")]})
    (first, one), (then, other) = kafka.requests("produce")
    assert batches_in(one) == batches_in(other)
    assert (first, then) == (1, 1 if said == ENDING else 2), "the leader was not looked up anew, or without need"


@both
async def test_producer_accepts_duplicate_sequence_as_success(connected: Connect, *, second: bool) -> None:
    kafka = Kafka(second=second)
    producer = connected(kafka)
    await producer.start()
    kafka.responses["produce"] = deque([errors.RequestTimedOutError(), errors.DuplicateSequenceNumber.errno])
    await producer.write({ANSWERS: [batch(producer, b"a")]})
    assert len(kafka.requests("produce")) == 2


async def test_producer_resends_only_missing_batches_and_waits_for_leader(connected: Connect) -> None:
    kafka = Kafka()
    producer = connected(kafka)
    await producer.start()
    kafka.leaders[STATE] = -1
    kafka.moved.extend([{}, {STATE: 2}])
    await producer.write({ANSWERS: [batch(producer, b"a")], STATE: [batch(producer, b"s")]})
    assert [(node, set(batches_in(request))) for node, request in kafka.requests("produce")] == [
        (1, {ANSWERS}),
        (2, {STATE}),
    ]


@both
@pytest.mark.parametrize("kind", ["init", "end"])
@pytest.mark.parametrize(
    ("said", "moves"),
    [
        (ENDING, False),
        (errors.CoordinatorLoadInProgressError.errno, False),
        (errors.NotCoordinatorError.errno, True),
        (errors.CoordinatorNotAvailableError.errno, True),
        (errors.KafkaConnectionError(), True),
    ],
    ids=str,
)
async def test_producer_retries_coordinator_and_finds_its_new_place(
    connected: Connect, kind: str, said: Any, *, moves: bool, second: bool
) -> None:
    kafka = Kafka(second=second)
    producer = connected(kafka)
    if kind == "end":
        await producer.start()
    kafka.responses[kind] = deque([said])
    kafka.coordinators.extend([1, 2] if kind == "init" else [2])
    if kind == "init":
        await producer.start()
    else:
        await producer.write({ANSWERS: [batch(producer, b"a")]})
        await producer.commit()
    assert [node for node, _ in kafka.requests(kind)] == [1, 2 if moves else 1]


@pytest.mark.parametrize("code", [errors.InvalidProducerEpoch.errno, 90])
@pytest.mark.parametrize(
    ("second", "kind"),
    [(False, "join"), (False, "produce"), (False, "end"), (True, "produce"), (True, "offsets"), (True, "end")],
)
async def test_producer_raises_fenced_error(connected: Connect, code: int, kind: str, *, second: bool) -> None:
    kafka = Kafka(second=second)
    producer = connected(kafka)
    await producer.start()
    kafka.responses[kind] = deque([code])
    with pytest.raises(errors.ProducerFenced):
        await transaction(producer, [b"a"])


async def transaction(producer: TransactionalProducer, values: Iterable[bytes]) -> None:
    await producer.write({ANSWERS: [batch(producer, *values)]})
    await producer.add_offsets({TopicPartition("queries", 0): 7}, "workers")
    await producer.commit()


@pytest.mark.parametrize(
    ("error", "kind", "subject"),
    [
        (errors.TopicAuthorizationFailedError, "produce", "answers"),
        (errors.GroupAuthorizationFailedError, "offsets", "answers"),
        (errors.TransactionalIdAuthorizationFailed, "end", "w-0"),
    ],
)
async def test_producer_error_names_forbidden_resource(
    connected: Connect, error: Any, kind: str, subject: str
) -> None:
    kafka = Kafka()
    producer = connected(kafka)
    await producer.start()
    kafka.responses[kind] = deque([error.errno])
    with pytest.raises(error, match=subject):
        await transaction(producer, [b"a"])


@pytest.mark.parametrize("kind", ["produce", "end"])
async def test_producer_raises_permanent_error_at_once(connected: Connect, kind: str) -> None:
    kafka = Kafka()
    producer = connected(kafka)
    await producer.start()
    kafka.responses[kind] = deque([errors.InvalidTxnState.errno] * 2)
    with pytest.raises(errors.InvalidTxnState):
        await transaction(producer, [b"a"])
    assert len(kafka.responses[kind]) == 1, "it was asked again"


@pytest.mark.parametrize("kind", ["produce", "end", "init"])
async def test_producer_stops_retries_at_transaction_timeout(
    connected: Connect, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    kafka = Kafka()
    producer = connected(kafka)
    producer._timeout_ms = 20
    monkeypatch.setattr(kafka, "responses", {kind: deque([errors.KafkaConnectionError()] * 10_000)})

    async def all_of_it() -> None:
        await producer.start()
        await transaction(producer, [b"a"])

    with pytest.raises((errors.KafkaTimeoutError, errors.RequestTimedOutError)):
        await asyncio.wait_for(all_of_it(), 60)


async def test_producer_uses_first_protocol_without_feature(
    connected: Connect,
) -> None:
    kafka = Kafka(second=False)
    producer = connected(kafka)
    await producer.start()
    assert len(kafka.requests("features")) == 1

    kafka.second = True
    kafka.responses["features"] = deque([errors.UnsupportedVersionError()])
    await producer.start()
    assert isinstance(producer._protocol, transactional_producer.FirstProtocol)


def test_producer_uses_first_protocol_without_its_requests() -> None:
    """The feature alone does not suffice: each request must have the version of the protocol."""
    known = features(2)
    assert wire_requests.supports_second_protocol(known)
    for api, most in wire_requests.SECOND_PROTOCOL_REQUESTS:
        older = {**known.versions, api: (0, most - 1)}
        assert not wire_requests.supports_second_protocol(known._replace(versions=older))


@both
async def test_producer_does_not_wait_for_silent_metadata(
    connected: Connect, monkeypatch: pytest.MonkeyPatch, *, second: bool
) -> None:
    class Silent(Kafka):
        async def force_metadata_update(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(transactional_producer, "METADATA_TIMEOUT_SECONDS", 0.01)
    kafka = Silent(second=second)
    kafka.responses["produce"] = deque([errors.NotLeaderForPartitionError.errno, errors.KafkaConnectionError()])
    producer = connected(kafka)
    await producer.start()
    async with asyncio.timeout(SECONDS):
        await producer.write({ANSWERS: [batch(producer, b"a")]})
        await producer.commit()
    assert len(kafka.requests("produce")) == 3
