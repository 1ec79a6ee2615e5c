"""The monitor's tables: what the topics last said of every source, stream, partition and refused event.

Pure state, told nothing of Kafka or HTTP. Every record that is taken in holds totals, so the order in which topics are
read does not matter and reading one again changes nothing: of a stream's totals the largest count, of everything else
the record with the highest offset.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from typing import Literal

from schemas import StreamState, named_from, registered_as
from stream.monitor.state.budget_history import TrailState
from stream.monitor.state.digests import (
    ControlShape,
    DeadLetterDigest,
    GrantRecordShape,
    MemberShape,
    RestoreShape,
    SourceRecordShape,
    TotalsShape,
    UnreadableRecordError,
    dead_letter,
    read,
)
from stream.monitor.state.entries import (
    STATES,
    Activity,
    Lines,
    MemberEntry,
    RestoreEntry,
    SharedBudgets,
    SourceEntry,
    StreamEntry,
    StreamTotals,
    whole,
)
from stream.privacy.composition.costs import shown_state, whole_left
from stream.processing.dead_letters import says_exhausted
from stream.processing.protocol import RecordLike
from stream.processing.topic_names import Topics

RECENT_REJECTED = 100
"""Refused events that are remembered of each reason."""
MEMBER_PREFIX = b"@member|"
MAX_MEMBERS = 10_000
"""Service processes remembered: those that were killed take nothing back."""
MAX_CODES = 64
"""Different reasons told apart; our services know about ten."""

ChangeTopic = Literal["sources", "streams", "rejected", "workers", "trail", "alerts"]


class Tables:
    """Everything that the monitor knows."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.sources: dict[str, SourceEntry] = {}
        self.streams: dict[str, StreamEntry] = {}
        self.source_lines = Lines()
        self.stream_lines = Lines()
        self.restores: dict[tuple[str, int], RestoreEntry] = {}
        self.members: dict[str, MemberEntry] = {}
        self.trail = TrailState()
        self.shared = SharedBudgets()
        self.totals = StreamTotals()
        self.rejected: Counter[str] = Counter()
        self.last_rejected: dict[str, float] = {}
        self.recent_rejected: dict[str, deque[tuple[float, DeadLetterDigest]]] = defaultdict(
            lambda: deque(maxlen=RECENT_REJECTED)
        )
        self.unreadable = 0
        self.records = 0
        self.passed_over = 0
        """Of these, refused events of live topics: not to be shown."""
        self.changes: dict[ChangeTopic, int] = {
            "sources": 0,
            "streams": 0,
            "rejected": 0,
            "workers": 0,
            "trail": 0,
            "alerts": 0,
        }
        self._seen: dict[tuple[str, int], int] = {}
        self._refused: defaultdict[int, set[str]] = defaultdict(set)
        self._states: defaultdict[str, Counter[StreamState]] = defaultdict(Counter)
        self._takes = {
            topics.ledger: self._take_ledger,
            topics.status: self._take_status,
            topics.charges: self._take_totals,
            topics.control: self._take_control,
            topics.rejected: self._take_rejected,
            topics.trail: self._take_trail,
        }
        self._public = frozenset(
            (topics.queries, topics.requests, topics.charges, topics.control, topics.partials)
        )
        """The topics whose refused events are shown: of a live topic it is about people what they say, how many they are and where."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The topics that it is made from."""
        return tuple(self._takes)

    @property
    def shown(self) -> int:
        """How many streams are shown."""
        return self.totals.states.total()

    def streams_of(self, source: str | None = None) -> Iterator[StreamEntry]:
        """The streams that the ledger has told of, of one source or of all; where one has periods, that in the latest."""
        named = None if source is None else named_from(source)
        lines = self.stream_lines
        for name in (lines.current(name) or name for name in lines) if named is None else lines.at(named[1]):
            entry = self.streams.get(name)
            if entry is None or entry.grant is None:
                continue
            on = entry.grant.spec.source
            if source in {None, on, registered_as(on) if entry.is_of_period else on}:
                yield entry

    def position(self, topic: str, partition: int) -> int:
        """The offset after the last record that was taken in."""
        return self._seen.get((topic, partition), -1) + 1

    def take(self, record: RecordLike) -> None:
        """Take in one record of one of the ``inputs``. What cannot be read is counted and passed over."""
        place = (record.topic, record.partition)
        if record.offset <= self._seen.get(place, -1):
            return
        self._seen[place] = record.offset
        self.records += 1
        try:
            self._takes[record.topic](record)
        except UnreadableRecordError:
            self.unreadable += 1

    def _take_ledger(self, record: RecordLike) -> None:
        key, value = record.key or b"", record.value
        if value is None:
            return
        if key.startswith(b"source|"):
            self._take_source(read(SourceRecordShape, value), value, record.timestamp / 1000)
        elif key.startswith(b"grant|"):
            self._take_grant(read(GrantRecordShape, value), value, record.timestamp / 1000)
        elif key.startswith(b"population|"):
            self.shared.take_population(value, record.timestamp / 1000)
            self.changes["sources"] += 1
        elif key.startswith(b"allotment|"):
            self.shared.take_allotment(value)
            self.changes["sources"] += 1

    def _take_source(self, record: SourceRecordShape, raw: bytes, time: float) -> None:
        told = record.source
        entry = self.sources.get(told.source)
        if entry is None:
            total = whole(told.epsilon, told.delta, told.accountant)
            entry = SourceEntry(record, raw, total, time, self._states[told.source])
            self.sources[told.source] = entry
            self.source_lines.add(told.source, period=told.period_of is not None)
        # A period is declared as its source is, but for its name and its moment: thousands of them may be long.
        entry.record, entry.raw, entry.updated = record, raw if told.period_of is None else b"", time
        self.changes["sources"] += 1

    def _take_grant(self, record: GrantRecordShape, raw: bytes, time: float) -> None:
        entry = self._entry(record.spec.stream)
        self._count(entry, -1)
        if entry.incarnation != record.identity.incarnation:
            # What was said of another opening under this name is not this stream's.
            opened = entry.opened if entry.grant is None else None
            entry = self.streams[entry.name] = StreamEntry(entry.name, opened=opened)
            entry.incarnation = record.identity.incarnation
        entry.grant, entry.raw, entry.ending = record, raw, record.ending
        self.stream_lines.add(entry.name, period=entry.is_of_period)
        if entry.state == "exhausted" and not entry.has_run_dry:
            # It was extended: what its worker and the ledger said before is over.
            entry.state, entry.reason = "open", None
        self._merge(entry, record, time)
        if record.ending is not None or record.state == "exhausted":
            entry.reason = record.reason
        self._count(entry, 1)

    def _take_status(self, record: RecordLike) -> None:
        if record.value is None:
            if (record.key or b"").startswith(MEMBER_PREFIX):
                self.members.pop((record.key or b"").removeprefix(MEMBER_PREFIX).decode(errors="replace"), None)
            return
        if (record.key or b"").startswith(MEMBER_PREFIX):
            self._take_member(read(MemberShape, record.value), record.timestamp / 1000)
        elif (record.key or b"").startswith(b"@"):
            restore = read(RestoreShape, record.value)
            self.restores[restore.role, restore.partition] = RestoreEntry(restore, record.timestamp / 1000)
            if restore.role == "worker":
                self._forget_refusals(record.partition)
            self.changes["workers"] += 1
        else:
            self._take_totals(record)

    def _forget_refusals(self, partition: int) -> None:
        """What a partition's last worker lacked its next one may have: what that one lacks it tells once it has begun."""
        for name in self._refused.pop(partition, ()):
            entry = self._entry(name)
            self._count(entry, -1)
            entry.refused = None
            self._count(entry, 1)

    def _take_member(self, record: MemberShape, time: float) -> None:
        self.members.pop(record.member, None)
        self.members[record.member] = MemberEntry(record, time)
        while len(self.members) > MAX_MEMBERS:
            del self.members[next(iter(self.members))]  # of those who have gone without a word the longest silent
        self.changes["workers"] += 1

    def _take_totals(self, record: RecordLike) -> None:
        if record.value is None:
            return
        totals, time = read(TotalsShape, record.value), record.timestamp / 1000
        entry = self._entry(totals.stream)
        if entry.grant is None and entry.incarnation != totals.incarnation:
            entry = self.streams[entry.name] = StreamEntry(
                entry.name, incarnation=totals.incarnation, opened=entry.opened
            )
        if entry.incarnation != totals.incarnation:
            return
        self._count(entry, -1)
        self._merge(entry, totals, time)
        if record.topic == self._topics.status:
            entry.refused = totals.refused
            if totals.refused is not None:
                self._refused[record.partition].add(entry.name)
        if totals.position is not None and (
            entry.position is None or totals.position.offset > entry.position.offset
        ):
            entry.position = totals.position
        self._count(entry, 1)

    def _take_control(self, record: RecordLike) -> None:
        if record.value is None:
            return
        control = read(ControlShape, record.value)
        entry = self._entry((record.key or b"").decode(errors="replace"))
        if control.kind == "opened":
            if not control.extensions:
                entry.opened = record.timestamp / 1000
            return
        # One that has run dry was not asked to end, and may be extended.
        if (
            entry.grant is not None
            and entry.incarnation == control.identity.incarnation
            and not says_exhausted(control.reason)
        ):
            entry.ending, entry.reason = control.kind, control.reason or entry.reason
            self.changes["streams"] += 1

    def _take_rejected(self, record: RecordLike) -> None:
        letter = dead_letter(record.headers, record.value)
        if letter.topic not in self._public:
            self.passed_over += 1
            return
        code = letter.code if letter.code in self.rejected or len(self.rejected) < MAX_CODES else "other"
        time = record.timestamp / 1000
        self.rejected[code] += 1
        self.last_rejected[code] = max(time, self.last_rejected.get(code, time))
        self.recent_rejected[code].append((time, letter))
        self.changes["rejected"] += 1

    def _take_trail(self, record: RecordLike) -> None:
        self.changes["trail"] += 1
        self.trail.take(record.value or b"")

    def _entry(self, stream: str) -> StreamEntry:
        entry = self.streams.get(stream)
        if entry is None:
            entry = self.streams[stream] = StreamEntry(stream)
        return entry

    def _merge(self, entry: StreamEntry, told: GrantRecordShape | TotalsShape, time: float) -> None:
        """Totals only grow and states only follow each other, whichever topic tells first."""
        state = told.state
        if (
            state == "exhausted"
            and entry.cutoff is not None
            and whole_left(entry.cutoff, told.tops, told.surplus) > 0
        ):
            state = "open"
        rank, known = STATES.index(state), STATES.index(entry.state)
        if told.answered > entry.answered:
            entry.last_answered = time
        elif told.answered == entry.answered and entry.last_answered is not None:
            entry.last_answered = min(entry.last_answered, time)  # topics are read in no order
        # An open stream's loss includes the round under way: of equal totals the later state's are the final ones.
        if entry.spent is None or (told.answered, told.tops, rank) >= (entry.answered, entry.tops, known):
            entry.answered, entry.tops, entry.surplus, entry.spent = (
                told.answered,
                told.tops,
                told.surplus,
                told.spent,
            )
        if rank > known:
            entry.state, entry.reason = state, told.reason or entry.reason
        if entry.grant is not None:
            entry.state = shown_state(entry.state, entry.tops_left, entry.grant.spec.mechanism.beyond)
        entry.updated = time if entry.updated is None else max(time, entry.updated)
        if entry.answered:
            if entry.activity is None:
                entry.activity = Activity.empty()
                if entry.opened is not None:
                    self._remember(entry.activity, (entry.opened, 0, 0))
            self._remember(entry.activity, (time, entry.answered, entry.tops))

    @staticmethod
    def _remember(activity: Activity, row: tuple[float, int, int]) -> None:
        for series in (*activity.windows, activity.timeline):
            series.add(row)

    def _count(self, entry: StreamEntry, sign: int) -> None:
        """Take a stream out of the sums before a change, and put it back after."""
        if entry.grant is None:
            return
        totals = self.totals
        totals.answered += sign * entry.answered
        totals.tops += sign * entry.tops
        totals.nearly_dry += sign * entry.nearly_dry
        totals.not_answering += sign * (entry.lack is not None)
        if not entry.is_of_period:
            totals.states[entry.state] += sign
        self._states[entry.grant.spec.source][entry.state] += sign
        self.changes["streams"] += 1
