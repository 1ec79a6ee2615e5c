"""Reads every topic of an installation and checks what must hold whatever happened."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from aiokafka import ConsumerRecord, TopicPartition

from schemas import Answer, Control, GrantRecord, LedgerRecord, SourceRecord
from schemas.wire import Codec
from stream.data import TableStore
from stream.kafka.restore import read_to_end, reader
from stream.noise import NoiseKey
from stream.processors.base import Outputs
from stream.processors.queries import QueryProcessor
from stream.processors.topics import LEDGER_PARTITIONS, Topics
from stream.settings import Settings

_answers: Codec[Answer] = Codec(Answer, limit=1 << 20)
_control: Codec[Control] = Codec(Control, limit=1 << 24)
_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=1 << 24)


@dataclass(frozen=True)
class Findings:
    """Everything committed, and every violation found."""

    answers: list[Answer]
    sources: dict[str, SourceRecord]
    grants: dict[str, GrantRecord]
    violations: list[str]


async def committed(settings: Settings, topic: str, partition: int) -> list[ConsumerRecord]:
    """All committed records of a partition."""
    consumer = reader(settings)
    await consumer.start()
    try:
        batches = [batch async for batch in read_to_end(consumer, TopicPartition(topic, partition), 5000)]
    finally:
        await consumer.stop()
    return [record for batch in batches for record in batch]


async def check(settings: Settings, topics: Topics, key: NoiseKey, asked: Sequence[str]) -> Findings:
    """Check answers against the ids asked, the ledger against budgets, and a full replay against the answers."""
    violations: list[str] = []
    answers: list[Answer] = []
    for partition in range(topics.partitions):
        records = await committed(settings, topics.answers, partition)
        answers += [_answers.decode(record.value) for record in records]
        violations += await _replay(settings, topics, key, partition, [record.value for record in records])
    violations += check_answers(answers, asked)
    ledger: dict[bytes, LedgerRecord] = {}
    for partition in range(LEDGER_PARTITIONS):
        for record in await committed(settings, topics.ledger, partition):
            if record.value is not None:
                ledger[record.key] = _ledger.decode(record.value)
    sources = {one.source.source: one for one in ledger.values() if isinstance(one, SourceRecord)}
    grants = {one.spec.stream: one for one in ledger.values() if isinstance(one, GrantRecord)}
    violations += check_ledger(answers, sources, grants)
    return Findings(answers, sources, grants, violations)


def check_answers(answers: Sequence[Answer], asked: Sequence[str]) -> list[str]:
    """Each id is answered once, indices have no gap, and nothing is answered after a halt."""
    violations = []
    times = Counter(answer.id for answer in answers)
    violations += [
        f"{query} was asked and answered {times[query]} times" for query in set(asked) if times[query] != 1
    ]
    violations += [f"{query} was answered and never asked" for query in set(times) - set(asked)]
    indices: dict[str, list[int]] = defaultdict(list)
    halted: set[str] = set()
    for answer in answers:
        if answer.outcome == "halted":
            halted.add(answer.stream)
        elif answer.index is not None:
            indices[answer.stream].append(answer.index)
            if answer.stream in halted:
                violations.append(f"{answer.stream} answered {answer.id} after it had halted")
    violations += [
        f"{stream} has answers numbered {seen[:3]}… not 0, 1, 2, …"
        for stream, seen in indices.items()
        if seen != list(range(len(seen)))
    ]
    return violations


def check_ledger(
    answers: Sequence[Answer],
    sources: dict[str, SourceRecord],
    grants: dict[str, GrantRecord],
) -> list[str]:
    """Spent ≤ granted ≤ budget, tops ≤ cutoff, and the ledger's tops are those that consumers saw."""
    violations = []
    tops = Counter(answer.stream for answer in answers if answer.outcome == "above")
    for name, grant in grants.items():
        if tops[name] > grant.calibration.cutoff:
            violations.append(f"{name} showed {tops[name]} tops, cutoff {grant.calibration.cutoff}")
        if tops[name] != grant.tops:
            violations.append(f"{name} showed {tops[name]} tops, the ledger has {grant.tops}")
        if grant.spent.epsilon > grant.cost.epsilon + 1e-12:
            violations.append(f"{name} spent {grant.spent.epsilon} of {grant.cost.epsilon}")
    for name, source in sources.items():
        held = source.granted.epsilon - source.refunded.epsilon
        if held > source.source.epsilon + 1e-12:
            violations.append(f"{name} granted {held} of {source.source.epsilon}")
        if source.spent.epsilon > held + 1e-12:
            violations.append(f"{name} spent {source.spent.epsilon} of {held} granted")
    return violations


async def _replay(
    settings: Settings,
    topics: Topics,
    key: NoiseKey,
    partition: int,
    seen: Sequence[bytes],
) -> list[str]:
    """Answer a partition's whole log again with the same key: the same bytes must come out."""
    processor = QueryProcessor(topics, partition, key, TableStore.keyed_by(key))
    # Exhaustion comes out of the replay itself; operators' halts are not replayed,.
    control = await committed(settings, topics.control, partition)
    processor.restore(record for record in control if _control.decode(record.value).kind == "opened")
    processor.restored()
    outputs = Outputs()
    queries = await committed(settings, topics.queries, partition)
    for first in range(0, len(queries), 777):
        for topic, number, messages in processor.process(queries[first : first + 777]):
            outputs.extend(topic, number, messages)
    again = [value for _, value, _ in outputs.messages.get((topics.answers, partition), [])]
    if again != list(seen):
        different = sum(one != other for one, other in zip(again, seen, strict=False))
        return [f"partition {partition}: replay gave {len(again)} answers for {len(seen)}, {different} differ"]
    live = QueryProcessor(topics, partition, key, TableStore.keyed_by(key))
    live.restore(await committed(settings, topics.control, partition))
    live.restore(await committed(settings, topics.state, partition))
    live.restored()
    if live.streams.figures() != processor.streams.figures():
        return [f"partition {partition}: the state rebuilt from the changelog is not that of a full replay"]
    return []
