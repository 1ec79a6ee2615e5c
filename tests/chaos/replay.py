"""The log answered all over again, and states compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

from schemas import MAX_RECORD_BYTES, Answer, Control, GrantRecord, LedgerRecord, StreamOpened
from schemas.wire import Codec
from stream.data import TableStore
from stream.noise import NoiseKey
from stream.processors.base import Message, Outputs, Record, RecordLike
from stream.processors.queries import QueryProcessor
from stream.processors.queries.shares import UNLIMITED, Limits
from stream.processors.topics import Topics
from stream.processors.unread import Unread
from tests.chaos.load import probe

answers_codec: Codec[Answer] = Codec(Answer, limit=MAX_RECORD_BYTES)
control_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)
read_control = lru_cache(maxsize=4096)(control_codec.decode)
ledger_codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)
read_ledger = lru_cache(maxsize=4096)(ledger_codec.decode)

Logs = Mapping[tuple[str, int], Sequence[RecordLike]]
"""The committed records of each partition."""


def as_read(logs: Logs, topics: Topics) -> Logs:
    """What a service takes in of these logs: batches that cannot be read are refused as queries, and passed over elsewhere."""
    return {
        place: [one for one in records if place[0] == topics.queries or not isinstance(one.value, Unread)]
        for place, records in logs.items()
    }


@dataclass(frozen=True)
class Installation:
    """What a replay needs beside the logs: the workers' key, tables and limits; ``poison`` tells what breaks them."""

    topics: Topics
    key: NoiseKey
    tables: TableStore
    poison: Callable[[bytes], bool] = lambda _: False
    limits: Limits = UNLIMITED

    def processor(self, partition: int) -> QueryProcessor:
        """A worker's processor that knows nothing yet."""
        return QueryProcessor(self.topics, partition, self.key, self.tables, self.limits)

    def restored(self, logs: Logs, partition: int) -> QueryProcessor:
        """A processor restored from the control events and the changelog."""
        processor = self.processor(partition)
        processor.restore(logs.get((self.topics.control, partition), ()))
        processor.restore(logs.get((self.topics.state, partition), ()))
        processor.restored()
        return processor


def check_replay(installation: Installation, logs: Logs, partition: int) -> list[str]:
    """Answer a partition's whole log again with the same key: the same bytes must come out, and the same state.

    Exhaustion comes out of the replay itself. When a request to halt or close took effect is not in the log of queries:
    from the first answer that says so on, the stream must have answered nothing else.
    """
    topics = installation.topics
    ended = _ended(logs, topics)
    replayed, outputs = _replay(installation, logs, partition)
    again = [value or b"" for _, value, _ in outputs.messages.get((topics.answers, partition), [])]
    seen = [record.value or b"" for record in logs.get((topics.answers, partition), ())]
    violations = []
    if len(again) != len(seen):
        violations.append(f"partition {partition}: replay gave {len(again)} answers for {len(seen)}")
    different = 0
    stopped: set[str] = set()
    for one, other in zip(seen, again, strict=False):
        answer = answers_codec.decode(one)
        if answer.outcome == "halted" and answer.stream in ended and not _is_exhausted(answer.reason):
            stopped.add(answer.stream)
        different += one != other and answer.stream not in stopped
    if different:
        violations.append(f"partition {partition}: replay gave {different} answers that differ, of {len(seen)}")
    streams = [stream for stream in replayed.streams.names if stream not in ended]
    rebuilt = installation.restored(logs, partition)
    rebuilt.process([])
    violations += [
        f"{stream} can still answer, and the ledger has it ended"
        for stream, figures in rebuilt.streams.figures().items()
        if stream in ended and figures[0] == "open"
    ]
    return violations + differences(f"partition {partition}: changelog and replay", rebuilt, replayed, streams)


def differences(what: str, one: QueryProcessor, other: QueryProcessor, streams: Iterable[str]) -> list[str]:
    """How the states of two processors differ in some streams: by their figures, and by what they would write next.

    Both are useless afterwards.
    """
    streams = list(streams)
    figures, others = one.streams.figures(), other.streams.figures()
    violations = [f"{what} disagree about {name}" for name in streams if figures.get(name) != others.get(name)]
    after = 1 + max(
        [0, *(int(processor.streams.columns.last_offset.max(initial=0)) for processor in (one, other))]
    )
    probes: list[Record] = []
    for name in streams:
        if (slot := one.streams.slots.get(name)) is not None:
            kind, on_table = one.streams.kinds[slot], one.streams.terms_at(slot).source.kind == "table"
            value = probe(name, kind, on_table=on_table)
            probes.append(Record("queries", 0, after + len(probes), 0, name.encode(), value))
    for processor in (one, other):
        processor.process([])  # Requests to halt or close that were not acted upon yet.
    if _ordered(one.process(probes)) != _ordered(other.process(probes)):
        violations.append(f"{what} would answer differently")
    return violations


def _ordered(outputs: Outputs) -> dict[tuple[str, int], list[Message]]:
    """Messages to compacted topics come in the order in which streams became known, which compaction changes."""
    return {(topic, number): sorted(messages, key=itemgetter(0)) for topic, number, messages in outputs}


def _ended(logs: Logs, topics: Topics) -> set[str]:
    """The streams that were halted or closed on request: those that ran dry by themselves do so in a replay too."""
    grants = {
        record.key: read_ledger(record.value)
        for (topic, _), records in logs.items()
        if topic == topics.ledger
        for record in records
        if record.value is not None and (record.key or b"").startswith(b"grant|")
    }
    return {
        one.spec.stream
        for one in grants.values()
        if isinstance(one, GrantRecord) and one.ending is not None and not _is_exhausted(one.reason)
    }


def _is_exhausted(reason: str | None) -> bool:
    return (reason or "").startswith("exhausted")


def _replay(installation: Installation, logs: Logs, partition: int) -> tuple[QueryProcessor, Outputs]:
    topics = installation.topics
    processor = installation.processor(partition)
    processor.restore(_opened(logs.get((topics.control, partition), ())))
    processor.restored()
    outputs = Outputs()
    queries = logs.get((topics.queries, partition), ())
    batches = [queries[first : first + 777] for first in range(0, len(queries), 777)]
    for batch in batches:
        if any(installation.poison(record.value or b"") for record in batch):
            steps = [
                processor.refuse(one) if installation.poison(one.value or b"") else processor.process([one])
                for one in batch
            ]
        else:
            steps = [processor.process(batch)]
        for step in steps:
            for topic, number, messages in step:
                outputs.extend(topic, number, messages)
    return processor, outputs


def _opened(control: Sequence[RecordLike]) -> list[Record]:
    """Control events as they were at each stream's opening, which compaction may have removed since."""
    return [
        Record(record.topic, record.partition, record.offset, 0, record.key, _as_opened(record.value or b""))
        for record in control
    ]


@lru_cache(maxsize=4096)
def _as_opened(value: bytes) -> bytes:
    definition = read_control(value)
    fields = {name: getattr(definition, name) for name in StreamOpened.model_fields if name != "kind"}
    return control_codec.encode(StreamOpened(**fields))
