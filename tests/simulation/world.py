"""Services on the broker in memory, which are restarted like a supervisor's, and the checks of their work."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar

from aiokafka import TopicPartition

from schemas import MAX_DEFINITION_BYTES, Request, StreamSpec
from schemas.wire import Codec
from stream.budget.budget_processor import BudgetProcessor
from stream.budget.receipts import WAITING_KEY_PREFIX, receipt_key
from stream.engine.group_engine import Engine
from stream.engine.health import ServiceHealth
from stream.engine.session import EngineRole, SessionGuard
from stream.engine.writer import RecordClock
from stream.kafka.client.adapter import Clients
from stream.processing.dead_letters import says_exhausted
from stream.processing.protocol import Processor, Record
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of
from stream.services.witness_guards import AnchoringGuard, WitnessGuard
from stream.witnesses.anchor import Anchor, WitnessError, largest_end
from stream.worker.fair_shares import Limits
from stream.worker.table_loads import TableLoads
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY
from tests.chaos.checker import check_letters, examine
from tests.chaos.replay import Installation, Logs, answers_codec, as_read, differences
from tests.chaos.trails import check_anchors
from tests.held_threads import HeldFuture, HeldThreads
from tests.simulation.broker import Broker
from tests.simulation.cast import (
    CASTS,
    LIMITS,
    PARTITIONS,
    SETTINGS,
    FragileProcessor,
    cast,
    group_of,
    installed,
    tables,
)
from tests.simulation.clients import clients_of
from tests.simulation.clock import EPOCH, VirtualLoop, virtual_time
from tests.simulation.faults import Faults, Process

PATIENCE = 240.0
"""Virtual seconds after the last fault within which everything must be answered."""

WRONG_CLOCKS = 0.2
"""The share of processes whose clock is ahead."""

READING_SECONDS = 4.0
"""Most virtual seconds for which the budget service reads a table."""

ANCHORED: Final = (1, 8)
"""Worlds have a witness if their seed has one of these remainders modulo nine."""

NO_COST: Final[Mapping[str, int]] = MappingProxyType({})

Outcome = TypeVar("Outcome")

_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)


@dataclass(eq=False)
class Service:
    """A service that is restarted whenever it ends without an order to stop."""

    role: Literal["worker", "budget"]
    process: Process
    engine: Engine
    task: asyncio.Task[None]
    leaving: bool = False


class MemoryWitness:
    """A witness in memory that sometimes fails."""

    name = "memory"

    def __init__(self, chance: random.Random) -> None:
        self.anchors: list[Anchor] = []
        self.failure_rate = 0.1
        self._chance = chance

    def write(self, anchor: Anchor) -> None:
        self._fail_at_times()
        self.anchors.append(anchor)
        self._fail_at_times()

    def read_newest(self, installation: str) -> list[Anchor]:
        self._fail_at_times()
        return [one for one in self.anchors if one.installation == installation]

    def _fail_at_times(self) -> None:
        if self._chance.random() < self.failure_rate:
            raise WitnessError("memory: not reached")


class Beginning(NamedTuple):
    """The streams that a world has at its start, its topics' records, and its limits of outstanding work."""

    streams: list[StreamSpec]
    records: Sequence[Record]
    limits: Limits = LIMITS


class VirtualThreads(HeldThreads):
    """Threads that read tables: a reading ends after some virtual seconds, or when a step waits for it."""

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        super().__init__()
        self._loop = loop
        self._chance = chance

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> HeldFuture:
        future = super().submit(fn, *args, **kwargs)
        self._loop.call_later(self._chance.uniform(0.0, READING_SECONDS), future.run)
        return future


class World:
    """The broker, the services, the load and the faults of one schedule."""

    def __init__(
        self, loop: VirtualLoop, seed: int, begun: Beginning | None = None, beside: Mapping[str, int] = NO_COST
    ) -> None:
        """Set the beginning, which the seed decides by default, and the topics ``beside`` those of all worlds."""
        self.loop = loop
        self.chance = random.Random(seed)
        begun = begun or Beginning(cast(seed % CASTS), installed(seed % CASTS))
        topics = self.topics = Topics(SETTINGS.prefix, PARTITIONS)
        wide = (topics.queries, topics.control, topics.answers, topics.state, topics.rejected, topics.status)
        counts = dict.fromkeys(wide, PARTITIONS) | dict.fromkeys(
            (topics.requests, topics.charges, topics.ledger, topics.trail), 1
        )
        self.broker = Broker(loop, self.branch(), {**counts, **beside})
        self.broker.seed(begun.records)
        self.faults = Faults(self.branch(), strikes=self.chance.randint(0, 6), rate=0.02)
        self.injected: Counter[str] = self.faults.injected
        self.installation = Installation(topics, KEY, tables(), begun.limits)
        self.asked: list[str] = []
        self.failures: Counter[bytes] = Counter()
        """How many more times workers fail at an event, by the event's value."""
        self.services: list[Service] = []
        self._names = 0
        self.streams = begun.streams
        self.unreadable: Counter[tuple[str, int, int]] = Counter()
        """The dead letters that are expected for unreadable batches, by topic, partition and offset."""
        self.retire_after_ms = {3: 1_000, 6: 3_000}.get(seed % 7, 0)
        """Time after which ended streams are retired; 0 for never."""
        self.witness = MemoryWitness(random.Random(seed)) if seed % 9 in ANCHORED else None
        self._threads = VirtualThreads(loop, random.Random(seed))
        self.late_opening = False
        """Whether control may have an opening after the stream's ending; control is then not compacted any more (see docs/faults.md)."""

    def branch(self) -> random.Random:
        """Return a separate generator, so that the draws of one part do not change those of another."""
        return random.Random(self.chance.getrandbits(64))

    def start(self, role: Literal["worker", "budget"]) -> Service:
        """Start a service in a separate process."""
        self._names += 1
        process = Process(f"{role}-{self._names}", self.loop, self.branch(), self.faults)
        clients = clients_of(process, self.broker, self.branch())
        engine = self._engine(role, process.name, clients)
        service = Service(role, process, engine, self.loop.create_task(engine.run()))
        process.on_death = lambda: _end(service)
        service.task.add_done_callback(lambda _: self._ended(service))
        self.services.append(service)
        return service

    def _engine(self, role: Literal["worker", "budget"], member: str, clients: Clients) -> Engine:
        topics, minting = self.topics, self.branch()
        store = tables()
        loads = TableLoads(store, self._threads)

        def make(number: int) -> Processor:
            if role == "worker":
                processor = FragileProcessor(topics, number, KEY, store, self.installation.limits, loads)
                processor.failures = self.failures
                return processor
            return BudgetProcessor(
                topics,
                number,
                key_id=KEY.key_id,
                tables=store,
                new_incarnation=lambda _: minting.randbytes(16),
                retire_after_ms=self.retire_after_ms,
                threads=self._threads,
            )

        inputs = [topics.queries, topics.control] if role == "worker" else [topics.requests, topics.charges]
        count = PARTITIONS if role == "worker" else LEDGER_PARTITIONS
        health = ServiceHealth(role)
        guard = SessionGuard()
        if self.witness is not None:
            kind = WitnessGuard if role == "worker" else AnchoringGuard
            guard = kind(SETTINGS, topics, [self.witness], health.metrics, clients)
        described = EngineRole(role, group_of(role), topics.status, make, guard=guard, process=member)
        record_clock = RecordClock(self._wall_clock())
        return Engine(
            described,
            SETTINGS,
            inputs,
            clients,
            partitions=count,
            copies=role == "worker",
            health=health,
            record_clock=record_clock,
        )

    def _wall_clock(self) -> Callable[[], float]:
        """Return a new process's clock; some are far ahead, or ahead by less than Kafka's limit."""
        ahead = self.chance.choice((7200.0, 3000.0)) if self.chance.random() < WRONG_CLOCKS else 0.0
        if ahead:
            self.injected["clock ahead"] += 1
        return lambda: EPOCH + self.loop.time() + ahead

    def _ended(self, service: Service) -> None:
        """Restart a service that was not told to stop, after a while."""
        self.services.remove(service)
        if not service.task.cancelled() and service.task.exception() is not None:
            self.injected["service ended by itself"] += 1
        if not service.leaving:
            self.loop.call_later(self.chance.uniform(0.1, 3.0), self.start, service.role)

    def ask(self, identifier: str, stream: str, value: bytes) -> None:
        """Publish a query event."""
        key = stream.encode()
        self.broker.append(self.topics.queries, partition_of(key, PARTITIONS), key, value)
        self.asked.append(identifier)

    def request(self, request: Request) -> None:
        """Send a request to the budget service."""
        self.broker.append(self.topics.requests, 0, b"", _requests.encode(request))

    def repeat_control(self, record: Record) -> None:
        """Repeat a control event, as another program than the budget service may do."""
        log = self.broker.logs[TopicPartition(record.topic, record.partition)]
        # If compaction removed the earlier events because of it, nothing would show that it undoes an ending.
        self.late_opening |= any(
            entry.record is not None and entry.record.key == record.key and entry.offset > record.offset
            for entry in log.entries
        )
        self.broker.append(record.topic, record.partition, record.key or b"", record.value)

    def append_unreadable(self, topic: str, partition: int) -> None:
        """Write an unreadable batch."""
        offset = self.broker.append_unreadable(topic, partition)
        self.unreadable[topic, partition, offset] += topic != self.topics.control

    def has_receipt(self, name: str) -> bool:
        """Return whether a request's receipt is committed."""
        key = receipt_key(name)
        return any(record.key == key for record in self.broker.committed(self.topics.ledger, 0))

    @property
    def processes(self) -> list[Process]:
        """All running processes."""
        return [one.process for one in self.services]

    @property
    def changelogs(self) -> set[str]:
        """The topics that are compacted."""
        topics = self.topics
        return {topics.state, topics.ledger} | (set() if self.late_opening else {topics.control})

    def workers(self) -> list[Service]:
        """Return the workers that were not told to stop."""
        return [one for one in self.services if one.role == "worker" and not one.leaving]

    async def settle(self) -> list[str]:
        """Wait until everything is answered and charged, each partition has a live owner, and each absent member reports it."""
        deadline = self.loop.time() + PATIENCE
        while self.loop.time() < deadline:
            if self._is_settled():
                return []
            await asyncio.sleep(0.5)
        answered = sum(len(self.broker.committed(self.topics.answers, number)) for number in range(PARTITIONS))
        absent = f"; no members, and ready: {', '.join(silent)}" if (silent := self.silent()) else ""
        return [f"stuck: {answered} of {len(self.asked)} answered {PATIENCE:.0f} s after the last fault{absent}"]

    def silent(self) -> list[str]:
        """Return the services that are in no group and do not report it."""
        return [
            service.process.name
            for service in self.services
            if service.process.name not in self.broker.listed(group_of(service.role))
            and not service.engine.health.not_ready_reason
        ]

    def _is_settled(self) -> bool:
        broker, topics = self.broker, self.topics
        answered = sum(len(broker.committed(topics.answers, number)) for number in range(PARTITIONS))
        if answered < len(self.asked) or any(log.open for log in broker.logs.values()):
            return False
        reached = broker.group(group_of("budget")).reached
        for place in (TopicPartition(topics.charges, 0), TopicPartition(topics.requests, 0)):
            records = broker.committed(*place)
            if records and reached.get(place, 0) <= records[-1].offset:
                return False
        ledger = {one.key or b"": one.value for one in broker.committed(topics.ledger, 0)}
        waiting = {key for key in ledger if key.startswith(WAITING_KEY_PREFIX)}
        self.injected["request that waited for a table"] = len(waiting)
        if any(ledger[key] is not None for key in waiting):
            return False
        return all(self._follows(number) for number in range(PARTITIONS)) and not self.silent()

    def _follows(self, number: int) -> bool:
        """Return whether a partition's owner lives, has read all queries and control events, and has no commit under way.

        An owner that has just got a partition back may still have its earlier state; it is fenced once it answers.
        """
        life = self._life(number)
        if life is None or life.writer._producer.in_transaction:
            return False
        if life.processor._tables._held:  # it may answer from an earlier version of the table
            return False
        for topic in (self.topics.queries, self.topics.control):
            records = self.broker.committed(topic, number)
            if records and life.positions[TopicPartition(topic, number)] <= records[-1].offset:
                return False
        return True

    def owner(self, number: int) -> QueryProcessor | None:
        """Return the live state of a partition, in the worker that owns it."""
        life = self._life(number)
        return life.processor if life is not None and isinstance(life.processor, QueryProcessor) else None

    def _false_anchors(self) -> list[str]:
        """Return the anchors of heads that the trail lacks, and of offsets that no topic has."""
        if self.witness is None:
            return []
        anchors = self.witness.anchors
        return [
            *check_anchors(anchors, self.broker.committed(self.topics.trail, 0)),
            *(
                f"offset {end} of {name} anchored, which it does not have"
                for name, count in (("state", PARTITIONS), ("control", PARTITIONS), ("ledger", 1))
                for number in range(count)
                if (end := largest_end(anchors, name, number))
                > self.broker.logs[TopicPartition(getattr(self.topics, name), number)].end
            ),
        ]

    def _life(self, number: int) -> Any:
        place = TopicPartition(self.topics.queries, number)
        for member in self.broker.group(group_of("worker")).members.values():
            for service in self.workers():
                task = service.engine._partitions.get(number)
                # A partition that is kept for a possible return has no task, so its state may be old.
                if task is None or number not in service.engine._tasks:
                    continue
                if place in member.assigned and service.process.name == member.name:
                    return task.session
        return None

    def dry(self) -> set[str]:
        """Return the streams whose answers said that they are exhausted."""
        answers = [
            answers_codec.decode(one.value)
            for number in range(PARTITIONS)
            for one in self.broker.committed(self.topics.answers, number)
        ]
        return {answer.stream for answer in answers if says_exhausted(answer.reason)}

    def busy(self) -> int:
        """Return the number of questions that were refused as ``busy``."""
        answers = [
            one for number in range(PARTITIONS) for one in self.broker.committed(self.topics.answers, number)
        ]
        return sum(b'"reason":"busy' in (one.value or b"") for one in answers)

    def logs(self) -> Logs:
        """Return all committed records, by partition."""
        return {(place.topic, place.partition): log.committed() for place, log in self.broker.logs.items()}

    def examine(self, *, same_version: bool = True) -> list[str]:
        """Return all violations; without ``same_version``, an earlier version gave some of the answers."""
        logs = self.logs()
        removed = {
            (place.topic, place.partition): log.removed
            for place, log in self.broker.logs.items()
            if place.topic == self.topics.control
        }
        installation = replace(self.installation, same_version=same_version)
        findings = examine(installation, logs, self.asked, removed)
        violations = findings.violations
        for grant in findings.grants.values():
            self.injected["answers beyond the opening"] += max(0, grant.tops - grant.calibration.cutoff)
        ledger = logs.get((self.topics.ledger, 0), ())
        deleted = [one.key for one in ledger if one.value is None and (one.key or b"").startswith(b"grant|")]
        self.injected["retired stream"] += len(deleted)
        logs = as_read(logs, self.topics)
        violations += check_letters(logs, self.topics, self.unreadable)
        violations += self._false_anchors()
        for number in range(PARTITIONS):
            live = self.owner(number)
            if live is not None:
                restored = self.installation.restored(logs, number)
                violations += differences(
                    f"partition {number}: live and restored", live, restored, list(live.streams.slots)
                )
                kept = {record.key or b"": record.value for record in logs.get((self.topics.state, number), ())}
                stated = [key.decode() for key, value in kept.items() if value is not None]
                violations += [
                    f"{name} is retired, and its worker keeps it"
                    for name in (*live.streams.slots, *stated)
                    if live.streams.retired.has(name.rpartition("|")[2])
                ]
        return violations


def perform(
    scene: Callable[[World], Coroutine[Any, Any, Outcome]], seed: int = 0, limits: Limits = LIMITS
) -> Outcome:
    """Run a scene in a world without any faults except the scene's."""
    with virtual_time() as loop:
        world = World(loop, seed, Beginning(cast(seed % CASTS), installed(seed % CASTS), limits))
        world.faults.cease()
        return loop.run_until_complete(scene(world))


def _end(service: Service) -> None:
    for task in (service.task, *service.engine._tasks.values()):
        task.cancel()
