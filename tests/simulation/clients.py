"""Kafka's clients on the broker in memory, with aiokafka's names for the calls that the engine makes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Self

from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError, KafkaTimeoutError, UnknownMemberIdError

from stream.kafka.client.adapter import Clients, Offsets
from stream.processing.protocol import Message, Record
from tests.simulation.broker import Broker, FencedInstanceError, Group, Member
from tests.simulation.faults import Process
from tests.simulation.logs import Transaction

RETRY = 0.02
"""Seconds between two tries of a client."""
MAX_POLL_INTERVAL_MS = 300_000
"""aiokafka's own default."""


def clients_of(process: Process, broker: Broker, chance: random.Random) -> Clients:
    """Return the clients with which a process connects."""
    return Clients(
        consumer=lambda **options: SimulatedConsumer(process, broker, chance, options),
        producer=lambda **options: SimulatedProducer(process, broker, chance, options),
        observer=lambda **_: SimulatedObserver(process, broker),
    )


class SimulatedObserver:
    """Returns the members of a group."""

    def __init__(self, process: Process, broker: Broker) -> None:
        self._process = process
        self._broker = broker

    async def members(self, group: str) -> frozenset[str]:
        return await self._process.call(lambda: self._broker.listed(group))

    async def close(self) -> None:
        """Cut the connection."""


class SimulatedConsumer:
    """A consumer, in a group or outside."""

    def __init__(self, process: Process, broker: Broker, chance: random.Random, options: dict[str, Any]) -> None:
        self._process = process
        self._broker = broker
        self._chance = chance
        self._committed = options["isolation_level"] == "read_committed"
        self._group: Group | None = None
        if options["group_id"] is not None:
            self._group = broker.group(options["group_id"], options["session_timeout_ms"] / 1000)
            self._heartbeat = options["heartbeat_interval_ms"] / 1000
            self._max_poll_interval = options.get("max_poll_interval_ms", MAX_POLL_INTERVAL_MS) / 1000
        self._assigned: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._member: Member | None = None
        self._instance: str = options.get("group_instance_id") or ""
        self.displaced = False
        self.session_refused = False
        self._coordination: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._settled.set()
        self._fetches = 0
        self._last_fetch_ended = broker.loop.time()

    @property
    def member_id(self) -> str:
        return self._member.name if self._member is not None else ""

    @property
    def _idle_seconds(self) -> float:
        return 0.0 if self._fetches else self._broker.loop.time() - self._last_fetch_ended

    async def start(self) -> None:
        await self._process.call(lambda: None)

    async def stop(self) -> None:
        if self._coordination is not None:
            self._coordination.cancel()
            await asyncio.gather(self._coordination, return_exceptions=True)
        if self._group is not None and self._member is not None and self._process.alive:
            if self._process.connected:
                self._broker.leave(self._group, self._member)
            self._member = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def subscribe(self, topics: Iterable[str], *, listener: ConsumerRebalanceListener) -> None:
        self._coordination = asyncio.create_task(self._coordinate(tuple(topics), listener))

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._assigned = {partition: self._first_position(partition) for partition in partitions}
        self._paused = set()

    def pause(self, *partitions: TopicPartition) -> None:
        self._paused.update(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        self._paused.difference_update(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._require(partition)
        # A fetch from the old position may be under way, and its records may still come.
        if self._group is None or self._assigned[partition] >= offset or self._chance.random() < 0.7:
            self._assigned[partition] = offset

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        beginnings = await self.beginning_offsets(partitions)
        self._assigned.update(beginnings)

    def highwater(self, partition: TopicPartition) -> int | None:
        self._require(partition)
        return self._broker.logs[partition].end

    async def position(self, partition: TopicPartition) -> int:
        self._require(partition)
        return self._assigned[partition]

    async def committed(self, partition: TopicPartition) -> int | None:
        group = self._group
        if group is None:
            raise IllegalStateError("no group")
        return await self._process.call(lambda: group.offsets.get(partition))

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        wanted = list(partitions)
        return await self._process.call(lambda: {one: self._broker.logs[one].start for one in wanted})

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> Offsets:
        wanted = list(partitions)
        logs = self._broker.logs
        return await self._process.call(
            lambda: {one: logs[one].stable if self._committed else logs[one].end for one in wanted}
        )

    async def topic_id(self, partition: TopicPartition) -> str:
        return await self._process.call(lambda: self._broker.topic_id(partition.topic))

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Return new records; failed fetches are retried without notice.

        It behaves like aiokafka: a call during a rebalance waits for the rebalance's end, regardless of the timeout. New records of
        any assigned partition wake all calls that wait. A cancelled call counts as a fetch that has never ended.
        """
        self._fetches += 1
        found = await self._poll(partitions, timeout_ms, max_records)
        self._fetches -= 1
        self._last_fetch_ended = self._broker.loop.time()
        return found

    async def _poll(
        self, partitions: Iterable[TopicPartition], timeout_ms: int, max_records: int | None
    ) -> dict[TopicPartition, list[Record]]:
        deadline = self._broker.loop.time() + timeout_ms / 1000
        limit = min(max_records or 500, self._chance.choice((1, 2, 5, 500)))
        while True:
            await self._settled.wait()
            await self._process.step()
            found = self._fetch(partitions, limit) if self._process.connected else {}
            left = deadline - self._broker.loop.time()
            if found or left <= 0:
                return found
            await self._broker.arrival(left, self._assigned)
            if self._broker.loop.time() >= deadline:
                return {}

    def _fetch(self, partitions: Iterable[TopicPartition], limit: int) -> dict[TopicPartition, list[Record]]:
        found = {}
        for partition in partitions:
            if partition not in self._assigned or partition in self._paused or limit == 0:
                continue
            log = self._broker.logs[partition]
            position = self._assigned[partition]
            if not log.start <= position <= log.end:
                position = log.start
            records, self._assigned[partition] = log.read(position, limit, committed=self._committed)
            if records:
                found[partition] = records
                limit -= len(records)
        return found

    def _first_position(self, partition: TopicPartition) -> int:
        start = self._broker.logs[partition].start
        return start if self._group is None else self._group.offsets.get(partition, start)

    def _require(self, partition: TopicPartition) -> None:
        if partition not in self._assigned:
            raise IllegalStateError(f"no current assignment of {partition}")

    async def _coordinate(self, topics: tuple[str, ...], listener: ConsumerRebalanceListener) -> None:
        """Join the group, keep the assignment until its generation ends, give it back, and join again.

        It behaves like aiokafka's coordinator: a member that has fetched nothing for ``max_poll_interval_ms`` leaves the
        group without notice, and joins again only after a fetch.
        """
        broker, group = self._broker, self._group
        if group is None:
            raise IllegalStateError("no group")
        name, had_assignment = self._process.name, False
        while True:
            self._settled.clear()
            await listener.on_partitions_revoked(set(self._assigned))
            try:
                while had_assignment and self._idle_seconds >= self._max_poll_interval:
                    await self._process.step()
                    await asyncio.sleep(1.0)
                member = self._member = await self._process.call(
                    partial(broker.join, group, name, topics, self._instance)
                )
                while not await self._process.call(partial(broker.settled, group, member)):
                    await asyncio.sleep(5 * RETRY)
                self.assign(member.assigned)
                self._settled.set()
                had_assignment = True
                await listener.on_partitions_assigned(set(self._assigned))
                while await self._process.call(partial(broker.heartbeat, group, member)):
                    if self._idle_seconds >= self._max_poll_interval:
                        await self._process.call(partial(broker.leave, group, member))
                        self._member = None
                        break
                    await asyncio.sleep(self._heartbeat)
            except UnknownMemberIdError:
                self._member = None
            except FencedInstanceError:
                self._member, self.displaced = None, True
                return
            except KafkaError:
                await asyncio.sleep(RETRY)


class SimulatedBatch:
    """A batch of a few records, so that most transactions have several batches."""

    def __init__(self, capacity: int) -> None:
        self.messages: list[Message] = []
        self.timestamp = 0
        self._capacity = capacity

    def append(
        self, *, timestamp: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]]
    ) -> Any:
        self.timestamp = timestamp
        if len(self.messages) == self._capacity:
            return None
        self.messages.append((key or b"", value, tuple(headers)))
        return self


class SimulatedProducer:
    """A transactional producer."""

    def __init__(self, process: Process, broker: Broker, chance: random.Random, options: dict[str, Any]) -> None:
        self._process = process
        self._broker = broker
        self._chance = chance
        self._id: str = options["transactional_id"]
        self._timeout = options["transaction_timeout_ms"] / 1000
        self._epoch = -1
        self._transaction: Transaction | None = None
        self.in_transaction = False
        """Whether a transaction has begun in the client, even if the broker knows nothing of it yet."""

    async def start(self) -> None:
        while True:
            epoch = await self._process.call(lambda: self._broker.initialize(self._id))
            if epoch is not None:
                self._epoch = epoch
                return
            await asyncio.sleep(RETRY)

    async def stop(self) -> None:
        """Close the producer; an open transaction stays open."""

    def create_batch(self) -> SimulatedBatch:
        return SimulatedBatch(self._chance.choice((1, 3, 1000, 1000)))

    async def write(self, batches: Mapping[TopicPartition, Iterable[Any]]) -> None:
        """Write to all partitions at the same time, but to each partition one batch after another."""
        self.in_transaction = True
        results = await asyncio.gather(
            *(self._write_to(place, some) for place, some in batches.items()), return_exceptions=True
        )
        for result in results:
            if result is not None:
                raise result

    async def add_offsets(self, offsets: Offsets, group: str) -> None:
        self.in_transaction = True
        await self._with_transaction(lambda transaction: transaction.offsets.setdefault(group, {}).update(offsets))

    async def commit(self) -> None:
        if self.in_transaction:
            await self._process.call(lambda: self._broker.commit(self._id, self._epoch))
        self._transaction = None
        self.in_transaction = False

    async def _write_to(self, place: TopicPartition, batches: Iterable[SimulatedBatch]) -> None:
        for batch in batches:
            await self.deliver(place, batch)

    async def deliver(self, place: TopicPartition, batch: SimulatedBatch) -> None:
        """Write one batch."""
        messages, timestamp = batch.messages, batch.timestamp
        await self._with_transaction(
            lambda transaction: self._broker.produce(transaction, place, messages, timestamp)
        )

    async def _with_transaction(self, act: Any) -> None:
        """Act in the transaction, once the previous one has ended in all partitions."""
        deadline = self._broker.loop.time() + 10.0

        def attempt() -> bool:
            transaction = self._broker.transaction(self._id, self._epoch, self._timeout)
            if transaction is None:
                return False
            act(transaction)
            return True

        pause = RETRY
        while not await self._process.call(attempt):
            if self._broker.loop.time() > deadline:
                raise KafkaTimeoutError
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)
