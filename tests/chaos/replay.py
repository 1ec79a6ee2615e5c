"""Answers the whole log of queries again, and compares the answers and the states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from operator import itemgetter
from typing import Any

from schemas import (
    MAX_RECORD_BYTES,
    Answer,
    Control,
    EstimateCalibration,
    EventsSource,
    GrantRecord,
    LedgerRecord,
    Source,
    StreamOpened,
    TableSource,
)
from schemas.wire import Codec
from stream.privacy.composition.costs import PARTS_PER_CHARGE
from stream.privacy.composition.losses import losses
from stream.privacy.ledger.retirement import NameDigests
from stream.privacy.noise.keys import NoiseKey
from stream.processing.dead_letters import UnreadableValue, address_of
from stream.processing.protocol import RETIRED_PREFIX, Message, Outputs, Record, RecordLike
from stream.processing.topic_names import Topics
from stream.tables.store import TableStore
from stream.worker.fair_shares import NO_LIMITS, Limits
from stream.worker.worker_processor import QueryProcessor
from tests.chaos.load import probe, standing_probe
from tests.processing import process_records

answers_codec: Codec[Answer] = Codec(Answer, limit=MAX_RECORD_BYTES)
control_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)
read_control = lru_cache(maxsize=4096)(control_codec.decode)
ledger_codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)
read_ledger = lru_cache(maxsize=4096)(ledger_codec.decode)

Logs = Mapping[tuple[str, int], Sequence[RecordLike]]
"""The committed records of each partition."""


def as_read(logs: Logs, topics: Topics) -> Logs:
    """Return the records that services process: unreadable batches are refused if they are queries, and otherwise skipped."""
    return {
        place: [one for one in records if place[0] == topics.queries or not isinstance(one.value, UnreadableValue)]
        for place, records in logs.items()
    }


Fingerprint = Callable[[Source, int], str | None]
"""Returns the fingerprint of a version of a source's data; the load renews data without changing a row."""


@dataclass(frozen=True)
class Installation:
    """The workers' key, tables and limits, which a replay needs in addition to the logs.

    Without ``same_version``, an earlier version gave some of the answers, with other reasons and without intervals. From the same
    measurements it may give another number within the error bound.
    """

    topics: Topics
    key: NoiseKey
    tables: TableStore
    limits: Limits = NO_LIMITS
    same_version: bool = True

    def fingerprint(self, source: Source, version: int) -> str | None:
        """Return the fingerprint of a version of a source's data."""
        return self.tables.fingerprint(source, version) if isinstance(source, TableSource) else None

    def processor(self, partition: int) -> QueryProcessor:
        """Return a worker's processor without any state."""
        return QueryProcessor(self.topics, partition, self.key, self.tables, self.limits)

    def restored(self, logs: Logs, partition: int) -> QueryProcessor:
        """Return a processor that is restored from the control events and the changelog."""
        processor = self.processor(partition)
        processor.restore(logs.get((self.topics.control, partition), ()))
        processor.restore(logs.get((self.topics.state, partition), ()))
        processor.end_restore()
        return processor


def definitions_in(control: Iterable[RecordLike]) -> list[RecordLike]:
    """Return the control events that define streams, without deletions and digests of retired streams."""
    return [
        record
        for record in control
        if record.value is not None and not (record.key or b"").startswith(RETIRED_PREFIX)
    ]


def check_replay(
    installation: Installation,
    logs: Logs,
    partition: int,
    retired: NameDigests,
    removed: Sequence[RecordLike] = (),
) -> list[str]:
    """Answer a partition's whole log again with the same key; the answers' bytes and the state must be the same.

    The replay finds by itself when a stream is exhausted. The log of queries does not tell when a worker applied a request
    to halt or close: from the first answer that tells of it, all later answers must do so. It does not tell when a worker
    applied an extension either: the first answer with more charged answers left shows it, and the ledger has their number.
    Answers show the version of renewed data.

    The replay never retires a stream, so it also needs the control events that compaction has ``removed``. A retired stream's
    questions add no work, so if the partition limits work, either side may refuse another stream's question as ``busy``.
    """
    topics = installation.topics
    place = (topics.control, partition)
    whole = {**logs, place: definitions_in([*removed, *logs.get(place, ())])}
    names = {(record.key or b"").decode() for record in whole[place]}
    gone = {name for name in names if retired.has("stream", name)}
    ended = _ended(logs, topics) | gone
    taken, violations = news_taken(whole, topics, partition, installation.fingerprint)
    replayed, outputs = _replay(installation, whole, partition, taken)
    again = [value or b"" for _, value, _ in outputs.messages.get((topics.answers, partition), [])]
    seen = [record.value or b"" for record in logs.get((topics.answers, partition), ())]
    if len(again) != len(seen):
        violations.append(f"partition {partition}: replay gave {len(again)} answers for {len(seen)}")
    different = 0
    stopped: set[str] = set()
    unlike: set[str] = set()
    for one, other in zip(seen, again, strict=False):
        answer = answers_codec.decode(one)
        if answer.outcome == "halted" and answer.stream in ended and not _is_exhausted(answer.reason):
            stopped.add(answer.stream)
        if gone and (b'"reason":"busy' in one) != (b'"reason":"busy' in other):
            unlike.add(answer.stream)
        elif answer.stream in gone and (answer.reason or "").startswith("unknown"):
            violations.append(
                f"{answer.stream} is retired, and {answer.id} was answered that there is no such stream"
            )
        different += answer.stream not in stopped | unlike and not are_alike(one, other, installation.same_version)
    if different:
        violations.append(f"partition {partition}: replay gave {different} answers that differ, of {len(seen)}")
    streams = [stream for stream in replayed.streams.names if stream not in ended | unlike]
    rebuilt = installation.restored(logs, partition)
    process_records(rebuilt, [])
    violations += [f"{stream} is retired and still hosted" for stream in gone & rebuilt.streams.slots.keys()]
    violations += [
        f"{stream} can still answer, and the ledger has it ended"
        for stream, snapshot in rebuilt.streams.snapshot_streams().items()
        if stream in ended and snapshot[0] == "open"
    ]
    what = f"partition {partition}: changelog and replay"
    return violations + differences(what, rebuilt, replayed, streams, shares=not gone)


def are_alike(one: bytes, other: bytes, same_version: bool) -> bool:
    """Return whether two answers are the same, as far as their versions promise that."""
    if one == other or same_version:
        return one == other
    seen, again = answers_codec.decode(one), answers_codec.decode(other)
    ignored: dict[str, Any] = {"reason": None}
    if seen.interval is None and seen.intervals is None:
        ignored |= {"interval": None, "intervals": None}
        if seen.basis == again.basis == "measured" and _have_common_truth(seen, again):
            ignored |= {"estimate": None, "alpha": None}
    return seen.model_copy(update=ignored) == again.model_copy(update=ignored)


def _have_common_truth(one: Answer, other: Answer) -> bool:
    """Return whether a number exists that is within the error bounds of both estimates."""
    if one.estimate is None or other.estimate is None or one.alpha is None or other.alpha is None:
        return False
    return abs(one.estimate - other.estimate) <= one.alpha + other.alpha


def differences(
    what: str, one: QueryProcessor, other: QueryProcessor, streams: Iterable[str], *, shares: bool = True
) -> list[str]:
    """Return the differences between the states of two processors in some streams: their snapshots, and what they would write next.

    Without ``shares``, their outstanding work may differ. Neither processor can be used afterwards.
    """
    streams = list(streams)
    snapshots, others = one.streams.snapshot_streams(), other.streams.snapshot_streams()
    violations = [f"{what} disagree about {name}" for name in streams if snapshots.get(name) != others.get(name)]
    after = 1 + max(
        [0, *(int(processor.streams.columns.last_offset.max(initial=0)) for processor in (one, other))]
    )
    probes: list[Record] = []
    for name in streams:
        if (slot := one.streams.slots.get(name)) is not None:
            terms = one.streams.terms_at(slot)
            if isinstance(terms.source, EventsSource) and terms.standing is not None:
                value = standing_probe(name, one.streams.kinds[slot], terms.source, terms.standing)
            else:
                value = probe(name, terms.mechanism.kind, on_table=terms.source.kind == "table")
            probes.append(Record("queries", 0, after + len(probes), 0, name.encode(), value))
    # Only an engine learns the ids of topics.
    topic_ids = one.topic_ids | other.topic_ids
    for processor in (one, other):
        processor.topic_ids.update(topic_ids)
        if not shares:
            processor.streams.columns.due[:] = 0
            processor._admission.shares.resume(0, 0, {})
        process_records(processor, [])  # Requests to halt or close that were not acted upon yet.
    if _ordered(process_records(one, probes)) != _ordered(process_records(other, probes)):
        violations.append(f"{what} would answer differently")
    return violations


def _ordered(outputs: Outputs) -> dict[tuple[str, int], list[Message]]:
    """Return the messages by partition. Those to compacted topics are sorted, because compaction changes the order of streams."""
    return {(topic, number): sorted(messages, key=itemgetter(0)) for topic, number, messages in outputs}


def _ended(logs: Logs, topics: Topics) -> set[str]:
    """Return the streams that were halted or closed on request; exhausted streams end in a replay too."""
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


def news_taken(
    logs: Logs, topics: Topics, partition: int, fingerprint: Fingerprint
) -> tuple[dict[int, list[Record]], list[str]]:
    """Return the extensions and data versions that a worker applied before each query, by the query's number, and violations.

    Violations are answers that no grant pays for, and answers of an earlier version than the last one. Extensions and versions
    that no answer shows come after the last query.
    """
    streams = _extensible(logs.get((topics.control, partition), ()), fingerprint)
    queries = logs.get((topics.queries, partition), ())
    answers = iter(logs.get((topics.answers, partition), ()))
    taken: dict[int, list[Record]] = defaultdict(list)
    violations = []
    for number, query in enumerate(queries):
        if not _is_answered(query) or (seen := next(answers, None)) is None:
            continue
        answer = answers_codec.decode(seen.value)
        if answer.tops_left is None or (stream := streams.get(answer.stream)) is None:
            continue
        if answer.index is not None and not stream.is_of(answer):
            violations.append(f"{answer.stream} answered {answer.id} of version {answer.version}")
        elif not stream.shows(answer):
            violations.append(f"{answer.stream} has other charged answers left at {answer.id} than it was granted")
        elif stream.news is not None:
            taken[number].append(stream.news)
    taken[len(queries)] += [stream.as_granted() for stream in streams.values()]
    return taken, violations


class _Extensible:
    """A stream, its number of charged answers left, and the number of its extensions that its answers have shown."""

    def __init__(self, record: RecordLike, fingerprint: Fingerprint) -> None:
        definition = read_control(record.value or b"")
        self._fingerprint = fingerprint
        self._latest = definition.version
        self._version = 1
        self._moved = False
        parts = losses(definition.calibration)
        self._each = parts.loss_per_answer
        # The price of the first answer of pmw includes its opening.
        is_estimate = isinstance(definition.calibration, EstimateCalibration)
        self._unpaid = parts.first_loss + parts.loss_while_open if is_estimate else Fraction(0)
        self.extensions = definition.extensions
        self.news: Record | None = None
        self._record = record
        self._left = definition.calibration.cutoff * PARTS_PER_CHARGE
        self._known = 0

    @property
    def rank(self) -> int:
        """A number that grows whenever the stream is extended or its data are renewed."""
        return len(self.extensions) + self._latest

    def is_of(self, answer: Answer) -> bool:
        """Note the data version of the next answer; return whether that version is possible."""
        before, self._version = self._version, answer.version or 1
        self._moved |= self._version > before
        return before <= self._version <= self._latest

    def shows(self, answer: Answer) -> bool:
        """Note the charged answers left after the next answer; return whether they are possible. A newly shown definition becomes ``news``."""
        if is_charged(answer):
            self._left -= self._parts_of(answer)
        if answer.outcome == "answer":
            self._unpaid = Fraction(0)
        added = (answer.tops_left or 0) - self._left // PARTS_PER_CHARGE
        self._left += added * PARTS_PER_CHARGE
        known = self._known
        while added > 0 and known < len(self.extensions):
            added -= self.extensions[known].answers
            known += 1
        news, self._moved = known > self._known or self._moved, False
        self.news = self._as_of(known, self._version) if news else None
        self._known = known
        return added == 0

    def _parts_of(self, answer: Answer) -> int:
        """Return the parts of a charge that an answer's price pays for; a worker of the last release leaves the opening out of it."""
        if answer.price is None:
            return PARTS_PER_CHARGE
        with_opening, alone = (
            round((Fraction(answer.price) - opening) / self._each * PARTS_PER_CHARGE)
            for opening in (self._unpaid, Fraction(0))
        )
        fits = (self._left - with_opening) // PARTS_PER_CHARGE == answer.tops_left
        return alone if not fits and (self._left - alone) // PARTS_PER_CHARGE == answer.tops_left else with_opening

    def as_granted(self) -> Record:
        """Return its definition with all its extensions and the latest version of its data."""
        return self._as_of(len(self.extensions), self._latest)

    def _as_of(self, extensions: int, version: int) -> Record:
        return _extended(self._record, extensions, version, self._fingerprint)


def _extensible(control: Sequence[RecordLike], fingerprint: Fingerprint) -> dict[str, _Extensible]:
    """Return the streams of a partition, each with the control event that has the most extensions and versions."""
    found: dict[str, _Extensible] = {}
    for record in control:
        stream = _Extensible(record, fingerprint)
        name = (record.key or b"").decode()
        if name not in found or stream.rank >= found[name].rank:
            found[name] = stream
    return found


def is_charged(answer: Answer) -> bool:
    """Return whether an answer used up one of its stream's charged answers."""
    return answer.outcome == "above" or answer.basis == "noisy"


def _is_answered(query: RecordLike) -> bool:
    value = query.value
    if isinstance(value, UnreadableValue) and value.batch is not None:
        return False
    return address_of(value) is not None


def _replay(
    installation: Installation, logs: Logs, partition: int, taken: Mapping[int, Sequence[Record]]
) -> tuple[QueryProcessor, Outputs]:
    topics = installation.topics
    processor = installation.processor(partition)
    processor.restore(
        [_extended(record, 0, 1, installation.fingerprint) for record in logs.get((topics.control, partition), ())]
    )
    processor.end_restore()
    outputs = Outputs()
    queries = logs.get((topics.queries, partition), ())
    cuts = sorted({0, len(queries), *taken, *range(0, len(queries), 777)})
    for first, last in pairwise([*cuts, len(queries)]):
        processor.apply_lookup_records(taken.get(first, ()))
        batch = queries[first:last]
        for topic, number, messages in process_records(processor, batch):
            outputs.extend(topic, number, messages)
    return processor, outputs


def _extended(record: RecordLike, count: int, version: int, fingerprint: Fingerprint) -> Record:
    """Return a stream's control event as it was after ``count`` extensions and with a version of its data.

    It is derived from a later event, because compaction may have removed it.
    """
    value = _as_opened(record.value or b"", count, version, fingerprint)
    return Record(record.topic, record.partition, record.offset, 0, record.key, value)


@lru_cache(maxsize=4096)
def _as_opened(value: bytes, count: int, version: int, fingerprint: Fingerprint) -> bytes:
    definition = read_control(value)
    fields = {name: getattr(definition, name) for name in StreamOpened.model_fields if name != "kind"}
    fields["extensions"] = definition.extensions[:count]
    if version != definition.version:
        fields |= {"version": version, "fingerprint": fingerprint(definition.source, version)}
    return control_codec.encode(StreamOpened(**fields))
