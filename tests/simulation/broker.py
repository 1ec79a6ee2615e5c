"""A Kafka in memory: transactions with epochs and markers, committed offsets, consumer groups."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from aiokafka import TopicPartition
from aiokafka.errors import InvalidTimestampError, KafkaError, ProducerFenced, UnknownMemberIdError
from blake3 import blake3

from stream.processing.dead_letters import OVERSIZED_BATCH, UnreadableBatch, UnreadableValue
from stream.processing.protocol import Headers, Message, Record
from tests.simulation.clock import EPOCH, VirtualLoop
from tests.simulation.logs import Log, Transaction

MARKER_DELAYS = (0.01, 0.01, 0.05, 1.0)
"""The seconds that the marker of an ended transaction may take to reach one of its partitions."""

AHEAD_MS = 3_600_000
"""Most milliseconds that a record may be ahead of the broker's clock; like Kafka, the broker refuses later ones."""


class FencedInstanceError(KafkaError):  # type: ignore[misc]  # aiokafka is not typed
    """Another member has joined under this one's name."""


@dataclass(slots=True)
class _Identity:
    """The coordinator's state of one transactional id."""

    epoch: int = 0
    current: Transaction | None = None


@dataclass(eq=False, slots=True)
class Member:
    """One consumer in a group; it belongs to the generation that it joined last."""

    name: str
    topics: tuple[str, ...]
    seen: float
    generation: int = -1
    joining: bool = False
    assigned: set[TopicPartition] = field(default_factory=set)
    instance: str = ""


@dataclass(eq=False, slots=True)
class Group:
    """A consumer group: its members' generation and the committed offsets; ``reached`` keeps offsets that have expired."""

    session: float
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    reached: dict[TopicPartition, int] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    generation: int = 0
    rebalancing: bool = False
    began: float = 0.0
    displaced: set[str] = field(default_factory=set)
    """Members whose place another process has taken under the same name."""


class Broker:
    """One cluster. Its methods take effect at once; its clients add latency, losses and failures."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, topics: Mapping[str, int]) -> None:
        """Take the partition count of each topic."""
        self.loop = loop
        self._chance = chance
        self.partitions = dict(topics)
        self.logs = {
            TopicPartition(topic, number): Log(topic, number)
            for topic, count in topics.items()
            for number in range(count)
        }
        self._lives = Counter[str]()
        self._identities: dict[str, _Identity] = {}
        self.groups: dict[str, Group] = {}
        self.aborted = 0
        self.expired = 0
        self.fenced = 0

    @property
    def timestamp(self) -> int:
        """Milliseconds since 1970."""
        return int((EPOCH + self.loop.time()) * 1000)

    def append(self, topic: str, partition: int, key: bytes, value: bytes | None, headers: Headers = ()) -> None:
        """Write one record outside any transaction."""
        log = self.logs[TopicPartition(topic, partition)]
        log.append([(key, value, headers)], self.timestamp)
        log.tell()

    def append_unreadable(self, topic: str, partition: int) -> int:
        """Write a record like the one that the client library returns for an unreadable batch; return its offset."""
        offset = self.logs[TopicPartition(topic, partition)].end
        batch = UnreadableBatch(offset, offset, "zstd", 12_000, "ab" * 32)
        self.append(topic, partition, b"", UnreadableValue(b"(a batch)", OVERSIZED_BATCH, batch))
        return offset

    def seed(self, records: Iterable[Record]) -> None:
        """Write records unchanged, before any process reads."""
        for record in records:
            message: Message = (record.key or b"", record.value, record.headers)
            self.logs[TopicPartition(record.topic, record.partition)].append([message], self.timestamp)

    def committed(self, topic: str, partition: int) -> list[Record]:
        """Return all committed records of a partition."""
        return self.logs[TopicPartition(topic, partition)].committed()

    def digest(self) -> str:
        """Return a digest of all logs, which shows whether two runs were equal."""
        seen = [
            (place, log.start, log.end, [entry.record for entry in log.entries])
            for place, log in self.logs.items()
        ]
        return blake3(repr(seen).encode()).hexdigest()

    def recreate(self, topic: str) -> None:
        """Delete a topic with its records and its committed offsets, and create it again."""
        self._lives[topic] += 1
        for number in range(self.partitions[topic]):
            place = TopicPartition(topic, number)
            self.logs[place] = Log(topic, number)
            for group in self.groups.values():
                group.offsets.pop(place, None)
                group.reached.pop(place, None)

    def topic_id(self, topic: str) -> str:
        """Return a topic's id, which changes when the topic is created again."""
        return f"{topic}/{self._lives[topic]}"

    async def arrival(self, seconds: float, places: Iterable[TopicPartition] | None = None) -> None:
        """Wait until a record becomes readable in these partitions (default: in any), for ``seconds`` at most."""
        logs = self.logs.values() if places is None else [self.logs[place] for place in places]
        news = self.loop.create_future()
        timer = self.loop.call_later(seconds, _over, news)
        for log in logs:
            log.awaited[news] = None
        try:
            await news
        finally:
            timer.cancel()
            for log in logs:
                log.awaited.pop(news, None)

    def initialize(self, transactional_id: str) -> int | None:
        """Fence the id's previous owner; return the new epoch, or None while its last transaction is still ending."""
        identity = self._identities.setdefault(transactional_id, _Identity())
        if identity.current is not None:
            if identity.current.state == "open":
                identity.epoch += 1
                self.aborted += 1
                self._end(identity, identity.current, committed=False)
            return None
        identity.epoch += 1
        return identity.epoch

    def transaction(self, transactional_id: str, epoch: int, timeout: float) -> Transaction | None:
        """Return the producer's open transaction, or begin one; None while the last transaction is still ending."""
        identity = self._admit(transactional_id, epoch)
        if identity.current is None:
            identity.current = Transaction(transactional_id)
            self.loop.call_later(timeout, self._expire, identity, identity.current)
        return identity.current if identity.current.state == "open" else None

    def produce(
        self, transaction: Transaction, place: TopicPartition, messages: Iterable[Message], timestamp: int
    ) -> None:
        """Write records in a transaction with the writer's timestamps, which all topics of this broker keep."""
        if timestamp > self.timestamp + AHEAD_MS:
            raise InvalidTimestampError
        log = self.logs[place]
        transaction.logs[log] = None
        log.append(messages, timestamp, transaction)

    def commit(self, transactional_id: str, epoch: int) -> None:
        """Commit a transaction. Readers of a partition see it once its marker has reached the partition."""
        identity = self._admit(transactional_id, epoch)
        if identity.current is not None and identity.current.state == "open":
            self._end(identity, identity.current, committed=True)

    def _admit(self, transactional_id: str, epoch: int) -> _Identity:
        identity = self._identities[transactional_id]
        if identity.epoch != epoch:
            self.fenced += 1
            raise ProducerFenced
        return identity

    def _expire(self, identity: _Identity, transaction: Transaction) -> None:
        if identity.current is transaction and transaction.state == "open":
            identity.epoch += 1
            self.expired += 1
            self._end(identity, transaction, committed=False)

    def _end(self, identity: _Identity, transaction: Transaction, *, committed: bool) -> None:
        transaction.state = "committed" if committed else "aborted"
        transaction.unmarked = len(transaction.logs) + 1

        def marked() -> None:
            transaction.unmarked -= 1
            if transaction.unmarked == 0:
                identity.current = None

        def mark(log: Log) -> None:
            log.mark(transaction, committed=committed)
            log.tell()
            marked()

        def mark_offsets() -> None:
            if committed:
                for name, offsets in transaction.offsets.items():
                    group = self.group(name)
                    group.offsets.update(offsets)
                    group.reached.update(offsets)
            marked()

        for log in transaction.logs:
            self.loop.call_later(self._marker_delay(), mark, log)
        self.loop.call_later(self._marker_delay(), mark_offsets)

    def _marker_delay(self) -> float:
        return self._chance.random() * self._chance.choice(MARKER_DELAYS)

    def group(self, name: str, session: float = 6.0) -> Group:
        """Return a group; create it if it is missing."""
        return self.groups.setdefault(name, Group(session))

    def join(self, group: Group, member: str, topics: tuple[str, ...], instance: str = "") -> Member:
        """Request a place in the next generation, or take the place of the member with the same name in this generation."""
        now = self.loop.time()
        joined = group.members.get(member)
        holders = [one for one in group.members.values() if one.instance == instance != ""]
        if joined is None and holders:
            if member in group.displaced:
                raise FencedInstanceError
            [holder] = holders
            del group.members[holder.name]
            group.displaced.add(holder.name)
            joined = group.members[member] = replace(holder, name=member, topics=topics, seen=now)
            if not group.rebalancing:
                return joined
        if joined is None:
            joined = group.members[member] = Member(member, topics, now, instance=instance)
        if not group.rebalancing:
            group.rebalancing, group.began = True, now
        joined.joining, joined.seen = True, now
        return joined

    def settled(self, group: Group, member: Member) -> bool:
        """Return whether the generation that a member requested has begun; it begins when all members have requested it or were removed."""
        now = self.loop.time()
        if group.rebalancing:
            member.seen = now
            self._expel(group)
            waiting = [one for one in group.members.values() if not one.joining]
            if waiting and now - group.began < group.session:
                return False
            for one in waiting:
                del group.members[one.name]
            self._assign(group)
        if group.members.get(member.name) is not member:
            raise UnknownMemberIdError
        return not member.joining

    def heartbeat(self, group: Group, member: Member) -> bool:
        """Return whether a member's generation is still the current one."""
        self._expel(group)
        if group.members.get(member.name) is not member:
            raise UnknownMemberIdError
        member.seen = self.loop.time()
        return not group.rebalancing and member.generation == group.generation

    def listed(self, name: str) -> frozenset[str]:
        """Return the members of a group, as its coordinator lists them."""
        group = self.group(name)
        self._expel(group)
        return frozenset(group.members)

    def leave(self, group: Group, member: Member) -> None:
        """Remove a member at once."""
        if group.members.pop(member.name, None) is not None:
            self._disturb(group)

    def _expel(self, group: Group) -> None:
        late = [one for one in group.members.values() if self.loop.time() - one.seen > group.session]
        for one in late:
            del group.members[one.name]
        if late:
            self._disturb(group)

    def _disturb(self, group: Group) -> None:
        if group.members and not group.rebalancing:
            group.rebalancing, group.began = True, self.loop.time()

    def _assign(self, group: Group) -> None:
        """Assign ranges: partitions with equal numbers of all topics go to the same member."""
        group.generation += 1
        group.rebalancing = False
        names = sorted(group.members)
        for member in group.members.values():
            member.generation, member.joining, member.assigned = group.generation, False, set()
        for topic in sorted({topic for member in group.members.values() for topic in member.topics}):
            count = self.partitions[topic]
            each, rest = divmod(count, len(names))
            number = 0
            for place, name in enumerate(names):
                for _ in range(each + (place < rest)):
                    group.members[name].assigned.add(TopicPartition(topic, number))
                    number += 1


def _over(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
