"""The monitor's tables: the latest state of every source, stream, partition and dead letter.

The tables use neither Kafka nor HTTP. Records contain totals, so topics may be read in any order and
more than once. A stream's entry has the largest totals; every other entry has the record with the highest
offset.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from sys import intern
from typing import Literal

import msgspec

from schemas import (
    STREAM_STATES,
    AllotmentRecord,
    MemberStatus,
    PartitionStatus,
    PopulationRecord,
    split_period_name,
)
from stream.monitor.api.service_models import Restore
from stream.monitor.budget_history import TrailState
from stream.monitor.entries import (
    ActiveStreams,
    MemberEntry,
    Owner,
    RecordPacking,
    SourceEntry,
    StreamEntry,
    total_amount,
)
from stream.monitor.record_shapes import (
    ControlShape,
    DeadLetterSummary,
    GrantRecordShape,
    SharedParts,
    SourceRecordShape,
    TotalsShape,
    UnreadableRecordError,
    decode_record,
    summarize_dead_letter,
)
from stream.monitor.stream_totals import PeriodsByName, StreamTotals
from stream.privacy.composition.costs import displayed_state, ordinary_charges_left
from stream.processing.dead_letters import TopicRefusals, says_exhausted
from stream.processing.protocol import REPEATED_HEADER, RecordLike
from stream.processing.topic_names import Topics

MAX_RECENT_REJECTED = 100
"""Number of dead letters that are kept for each reason."""
MEMBER_PREFIX = b"@member|"
MAX_MEMBERS = 10_000
"""Maximum number of service processes in memory, because a killed process does not remove its heartbeat."""
MAX_PACKINGS = 64
"""Maximum number of kinds of mechanisms that are packed separately."""
MAX_CODES = 64
"""Maximum number of distinct reasons of dead letters; the services use about ten."""
MAX_LIVE_TOPICS = 1_000
"""Maximum number of live topics whose refused events are counted."""

ChangeTopic = Literal["sources", "streams", "rejected", "workers", "trail", "alerts"]


class MonitorTables:
    """The monitor's state from all topics that it reads, except the answers."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.sources: dict[str, SourceEntry] = {}
        self.streams: dict[str, StreamEntry] = {}
        self.source_periods = PeriodsByName()
        self.stream_periods = PeriodsByName()
        self.restores: dict[tuple[str, int], Restore] = {}
        self.members: dict[str, MemberEntry] = {}
        self.trail = TrailState()
        self.populations: dict[str, tuple[PopulationRecord, float]] = {}
        """The record of each population, and the record's time."""
        self.allotments: dict[tuple[Owner, str], AllotmentRecord] = {}
        self.totals = StreamTotals(self.streams, self.stream_periods)
        self.rejected: Counter[str] = Counter()
        self.last_rejected: dict[str, float] = {}
        self.recent_rejected: dict[str, deque[tuple[float, DeadLetterSummary]]] = defaultdict(
            lambda: deque(maxlen=MAX_RECENT_REJECTED)
        )
        self.unreadable = 0
        self.records = 0
        self.hidden_dead_letters = 0
        """Number of dead letters of live topics, which are not shown."""
        self.refusals: dict[str, TopicRefusals] = {}
        """The refused events of each live topic; only operators may see them."""
        self.changes: Counter[ChangeTopic] = Counter()
        self._read_offsets: dict[tuple[str, int], int] = {}
        self._streams_lacking_input: defaultdict[int, set[str]] = defaultdict(set)
        self._last_questions: dict[int, tuple[int, str]] = {}
        """For each partition of the queries, the last processed question's offset, and its stream unless it was rejected."""
        self._shared_parts = SharedParts()
        self._packings: dict[str, RecordPacking] = {}
        self._active_streams = ActiveStreams()
        self._adders = {
            topics.ledger: self._add_ledger,
            topics.status: self._add_status,
            topics.charges: self._add_totals,
            topics.control: self._add_control,
            topics.rejected: self._add_rejected,
            topics.trail: self._add_trail,
        }
        self._public = {topics.queries, topics.requests, topics.charges, topics.control, topics.partials}
        """Topics whose dead letters viewers may see. The number of a live topic's dead letters is private."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that are read into the tables."""
        return tuple(self._adders)

    @property
    def shown_streams(self) -> int:
        """The number of shown streams."""
        return self.totals.states.total()

    def streams_of(self, source: str | None = None) -> Iterator[StreamEntry]:
        """Yield the streams of a source, of the account of one of its periods, or of all sources.

        For a source with periods, only the streams of the latest period are yielded.
        """
        named = None if source is None else split_period_name(source)
        latest = (self.stream_periods.latest_name(name) or name for name in self.stream_periods)
        for name in latest if named is None else self.stream_periods.names_at(named[1]):
            entry = self.streams.get(name)
            if entry is None or entry.grant is None:
                continue
            if source in {None, entry.grant.source, entry.listed_source}:
                yield entry

    def position(self, topic: str, partition: int) -> int:
        """Return the offset after the last record that was read."""
        return self._read_offsets.get((topic, partition), -1) + 1

    def add_record(self, record: RecordLike) -> None:
        """Add one record of one of the ``inputs``; unreadable records are counted and skipped."""
        topic_partition = (record.topic, record.partition)
        if record.offset <= self._read_offsets.get(topic_partition, -1):
            return
        self._read_offsets[topic_partition] = record.offset
        self.records += 1
        try:
            self._adders[record.topic](record)
        except UnreadableRecordError:
            self.unreadable += 1

    def _add_ledger(self, record: RecordLike) -> None:
        key, value = record.key or b"", record.value
        if value is None:
            self._remove_retired(key.decode(errors="replace"))
        elif key.startswith(b"source|"):
            self._add_source(decode_record(SourceRecordShape, value), value, record.timestamp / 1000)
        elif key.startswith(b"grant|"):
            self._add_grant(record, decode_record(GrantRecordShape, value), value)
        elif key.startswith(b"population|"):
            population = decode_record(PopulationRecord, value)
            self.populations[population.population.population] = population, record.timestamp / 1000
            self.changes["sources"] += 1
        elif key.startswith(b"allotment|"):
            allotment = decode_record(AllotmentRecord, value)
            self.allotments[Owner(allotment.source, allotment.population), allotment.allotment] = allotment
            self.changes["sources"] += 1

    def _remove_retired(self, key: str) -> None:
        """Remove a retired stream or period account, after its record in the ledger was deleted."""
        kind, _, name = key.partition("|")
        if kind == "source" and (source := self.sources.pop(name, None)) is not None:
            self.source_periods.remove(name, period=source.record.source.period_of is not None)
            self.totals.states_of.pop(name, None)
            self.totals.listed_of.pop(name, None)
            self.trail.forget_source(name)
            self.changes["sources"] += 1
        elif kind == "grant" and (entry := self.streams.get(name.partition("|")[2])) is not None:
            self._count_stream(entry, -1)
            del self.streams[entry.name]
            # The number of answers must not go back.
            self.totals.answered += entry.answered
            self.totals.tops += entry.tops
            self.stream_periods.remove(entry.name, period=entry.is_of_period)
            if entry.grant is not None:
                self.totals.add_listed(entry, 1)  # the model, or the period before

    def _add_source(self, record: SourceRecordShape, raw: bytes, time: float) -> None:
        source = record.source
        entry = self.sources.get(source.source)
        if entry is None:
            total = total_amount(source.epsilon, source.delta, source.accountant)
            entry = SourceEntry(record, raw, total, time, self.totals.states_of[source.source])
            self.sources[source.source] = entry
            self.source_periods.add(source.source, period=source.period_of is not None)
        # The record of a period repeats its source's definition; thousands of copies would need much memory.
        entry.record, entry.raw, entry.updated = record, raw if source.period_of is None else b"", time
        self.changes["sources"] += 1

    def _add_grant(self, written: RecordLike, record: GrantRecordShape, raw: bytes) -> None:
        entry = self._get_or_add_stream(record.spec.stream)
        is_new = entry.grant is None
        self._count_stream(entry, -1)
        if entry.incarnation != record.identity.incarnation:
            # The entry's totals belong to an earlier stream of this name.
            times = (entry.opened, entry.extended) if entry.grant is None else (None, None)
            entry = self.streams[entry.name] = StreamEntry(entry.name, opened=times[0], extended=times[1])
            entry.incarnation = record.identity.incarnation
        entry.grant, entry.ending = self._shared_parts.grant(record), record.ending
        if is_new and self.totals.find_listed(entry) is not entry:
            self.totals.add_listed(entry, -1)  # the model, or the period before
        entry.packing = self._build_packing(record.spec.mechanism.kind, raw)
        entry.packed = entry.packing.pack(raw)
        self.stream_periods.add(entry.name, period=entry.is_of_period)
        if entry.state == "exhausted" and entry.tops_left:
            # The stream was extended: earlier reports of exhaustion are obsolete.
            entry.state, entry.reason = "open", None
        if record.lost or REPEATED_HEADER in dict(written.headers):
            # A worker may have reported its totals after the restore.
            entry.is_restored, entry.last_answered, entry.kept_activity = True, None, None
        time = written.timestamp / 1000
        entry.granted_by = min(entry.granted_by or time, time)
        self._merge_totals(entry, record, time)
        if record.ending is not None or record.state == "exhausted":
            entry.reason = record.reason
        self._count_stream(entry, 1)

    def _build_packing(self, mechanism: str, raw: bytes) -> RecordPacking:
        """Return the packing of a mechanism's records, of which the first is the sample."""
        if (known := self._packings.get(mechanism)) is None:
            known = RecordPacking(raw)
            if len(self._packings) < MAX_PACKINGS:
                self._packings[mechanism] = known
        return known

    def _add_status(self, record: RecordLike) -> None:
        if record.value is None:
            if (record.key or b"").startswith(MEMBER_PREFIX):
                self.members.pop((record.key or b"").removeprefix(MEMBER_PREFIX).decode(errors="replace"), None)
            return
        if (record.key or b"").startswith(MEMBER_PREFIX):
            self._add_member(decode_record(MemberStatus, record.value), record.timestamp / 1000)
        elif (record.key or b"").startswith(b"@"):
            restore = decode_record(PartitionStatus, record.value)
            updated = record.timestamp / 1000
            self.restores[restore.role, restore.partition] = Restore.from_record(restore, updated=updated)
            if restore.role == "worker":
                self._clear_missing_inputs(record.partition)
            self.changes["workers"] += 1
        else:
            self._add_totals(record)

    def _clear_missing_inputs(self, partition: int) -> None:
        """Clear the missing inputs that a partition's earlier worker reported; the new worker reports its own."""
        for name in self._streams_lacking_input.pop(partition, ()):
            if (entry := self.streams.get(name)) is None:
                continue  # it is retired
            self._count_stream(entry, -1)
            entry.refused = None
            self._count_stream(entry, 1)

    def _add_member(self, record: MemberStatus, time: float) -> None:
        self.members.pop(record.member, None)
        self.members[record.member] = MemberEntry(record, time)
        while len(self.members) > MAX_MEMBERS:
            del self.members[next(iter(self.members))]  # the process with the oldest heartbeat
        self.changes["workers"] += 1

    def _add_totals(self, record: RecordLike) -> None:
        if record.value is None:
            return
        totals, time = decode_record(TotalsShape, record.value), record.timestamp / 1000
        entry = self._get_or_add_stream(totals.stream)
        if entry.grant is None and entry.incarnation != totals.incarnation:
            entry = self.streams[entry.name] = StreamEntry(
                entry.name, incarnation=totals.incarnation, opened=entry.opened, extended=entry.extended
            )
        if entry.incarnation != totals.incarnation:
            return
        self._count_stream(entry, -1)
        self._merge_totals(entry, totals, time)
        if record.topic == self.topics.status:
            entry.refused = totals.refused
            if totals.refused is not None:
                self._streams_lacking_input[record.partition].add(entry.name)
        position, known = totals.position, entry.position
        if position is not None and (known is None or position.offset > known.offset):
            # Positions of all streams share the topic's name.
            entry.position = msgspec.structs.replace(position, topic=intern(position.topic))
            self._note_question(position.partition, position.offset, entry.name)
        self._count_stream(entry, 1)

    def _note_question(self, partition: int, offset: int, stream: str) -> None:
        """Note the last processed question of a partition; ``stream`` is empty for a rejected question."""
        last = offset, stream
        self._last_questions[partition] = max(last, self._last_questions.get(partition, last))

    def asker_of(self, partition: int, offset: int) -> Literal["client", "feed"] | None:
        """Return who asked the last processed question of a partition; None if it has another offset, or is not known.

        Workers reject no question of a feed, so a rejected question is a client's. A halted question is not known.
        """
        last, name = self._last_questions.get(partition, (-1, ""))
        if last != offset:
            return None
        entry = self.streams.get(name)
        source = None if entry is None or entry.grant is None else self.sources.get(entry.grant.source)
        if not name:
            return "client"
        return None if source is None else "feed" if source.record.source.kind == "events" else "client"

    def _add_control(self, record: RecordLike) -> None:
        name = (record.key or b"").decode(errors="replace")
        if record.value is None:
            if (known := self.streams.get(name)) is not None and known.grant is None:
                del self.streams[name]  # retired before its record in the ledger was read
            return
        if name.startswith("@"):
            return
        control = decode_record(ControlShape, record.value)
        entry = self._get_or_add_stream(name)
        if control.kind == "opened":
            if control.extensions:
                entry.extended = record.timestamp / 1000
            elif REPEATED_HEADER not in dict(record.headers):
                entry.opened = record.timestamp / 1000
            return
        # A stream that is halted as exhausted has not ended: it may be extended.
        is_present = entry.grant is not None and entry.incarnation == control.identity.incarnation
        if is_present and not says_exhausted(control.reason):
            entry.ending, entry.reason = control.kind, control.reason or entry.reason
            self.changes["streams"] += 1

    def _add_rejected(self, record: RecordLike) -> None:
        letter = summarize_dead_letter(record.headers, record.value)
        if letter.topic not in self._public:
            self.hidden_dead_letters += 1
            self._add_refusal(letter, record.timestamp / 1000)
            return
        code = letter.code if letter.code in self.rejected or len(self.rejected) < MAX_CODES else "other"
        time = record.timestamp / 1000
        self.rejected[code] += 1
        self.last_rejected[code] = max(time, self.last_rejected.get(code, time))
        self.recent_rejected[code].append((time, letter))
        if letter.topic == self.topics.queries:
            self._note_question(letter.partition, letter.offset, "")
        self.changes["rejected"] += 1

    def _add_refusal(self, letter: DeadLetterSummary, time: float) -> None:
        if (topic := self.refusals.get(letter.topic)) is None:
            if len(self.refusals) >= MAX_LIVE_TOPICS:
                return
            topic = self.refusals[letter.topic] = TopicRefusals()
        topic.add(letter.partition, letter.offset, f"{letter.code}: {letter.message}", time)

    def _add_trail(self, record: RecordLike) -> None:
        self.changes["trail"] += 1
        self.trail.add_entry(record.value or b"")

    def add_earlier_entry(self, earlier: TrailState, value: bytes) -> None:
        """Add the next of the entries that precede ``trail`` to their state, ``earlier``."""
        self.records += 1
        self.changes["trail"] += 1
        try:
            earlier.add_entry(value)
        except UnreadableRecordError:
            self.unreadable += 1
        self.trail.note_earlier(earlier)

    def join_trail(self, earlier: TrailState) -> None:
        """Add a state of all earlier entries to ``trail``."""
        self.trail.join(earlier, self.sources)
        self.changes["trail"] += 1

    def _get_or_add_stream(self, stream: str) -> StreamEntry:
        return self.streams.get(stream) or self.streams.setdefault(stream, StreamEntry(stream))

    def _merge_totals(self, entry: StreamEntry, update: GrantRecordShape | TotalsShape, time: float) -> None:
        """Merge a record into an entry, in any order, because totals only grow and states only advance."""
        state = update.state
        if state == "exhausted" and entry.cutoff is not None:
            left = ordinary_charges_left(entry.cutoff, update.tops, update.surplus)
            state = "open" if left > 0 else state
        rank, known_rank = STREAM_STATES.index(state), STREAM_STATES.index(entry.state)
        if update.answered > entry.answered:
            entry.last_answered = None if entry.is_restored else time
        elif update.answered == entry.answered > 0 and not entry.is_restored:
            entry.last_answered = min(entry.last_answered or time, time)  # topics are read in any order
        # An open stream's ``spent`` includes the current round, so of equal totals the later state's are right.
        if entry.spent is None or (update.answered, update.tops, rank) >= (entry.answered, entry.tops, known_rank):
            entry.answered, entry.tops, entry.surplus = update.answered, update.tops, update.surplus
            entry.spent = self._shared_parts.amount(update.spent)
        if entry.grant is not None and entry.grant.lost:
            entry.spent = entry.grant.cost  # its worker does not know the answers that are lost
        if rank > known_rank:
            entry.state, entry.reason = state, update.reason or entry.reason
        if entry.grant is not None:
            entry.state = displayed_state(entry.state, entry.tops_left, entry.grant.mechanism.beyond)
        entry.updated = time if entry.updated is None else max(time, entry.updated)
        if entry.answered and not entry.is_restored:
            self._active_streams.add(entry, time)

    def _count_stream(self, entry: StreamEntry, sign: int) -> None:
        self.totals.add(entry, sign)
        if entry.grant is not None:
            self.changes["streams"] += 1
