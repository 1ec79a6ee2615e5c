"""Selects the notices of ``watch``: alerts, all other answers on request, and the end of each stream once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal, NamedTuple

import msgspec

from schemas import (
    Calibration,
    EventsSource,
    Source,
    SparseVectorCalibration,
    StandingQuery,
    StreamSpec,
    StreamState,
    StreamStatus,
    registered_name,
)
from schemas.windows import moment_ms, span_ms
from schemas.wire import DECODE_ERRORS
from stream.caches import ENTRY_BYTES, BoundedCache
from stream.errors import Unknown
from stream.formatting import describe_bound, describe_source_bound, did_you_mean, format_count
from stream.processing.dead_letters import says_exhausted
from stream.processing.protocol import RecordLike
from stream.questions.alert_states import (
    ABOVE_BYTES,
    NO_TERMS,
    AlertTerms,
    Notice,
    format_time,
    matches_patterns,
)
from stream.questions.clamped_values import describe_clamping
from stream.questions.question_forms import as_stream_names
from stream.questions.results import Result


class StreamOpening(NamedTuple):
    """One opening of a stream, which ``incarnation`` identifies; ``time`` is the Unix time of its latest state."""

    stream: str
    source: str
    incarnation: str
    state: StreamState
    reason: str | None
    time: float
    terms: AlertTerms = NO_TERMS

    @property
    def end(self) -> str | None:
        """The state and the reason of the stream's end; None while it is open."""
        if self.state == "open":
            return None
        if not self.reason or self.reason.startswith(f"{self.state}:"):
            return self.reason or self.state
        return f"{self.state}: {self.reason}"


def split_ledger_key(key: bytes | None) -> tuple[str, str, str]:
    """Return the kind of a ledger record, its source and, for a grant, its stream."""
    kind, _, names = (key or b"").decode(errors="replace").partition("|")
    source, _, stream = names.partition("|")
    return kind, source, stream


def describe_record_bound(value: bytes | None) -> str:
    """Describe the contribution bound in the record of a source; empty if it has none."""
    try:
        source = _source_decoder.decode(value or b"").source
    except DECODE_ERRORS:
        return ""
    if source.person is None:
        return ""
    return describe_bound(source.kind, source.person, source.contribution)


def parse_opening(
    key: bytes | None, value: bytes | None, timestamp_ms: int, is_wanted: Callable[[str, str], bool]
) -> StreamOpening | None:
    """Parse the ledger record of a stream; None for other records, and for streams that are not wanted."""
    kind, source, stream = split_ledger_key(key)
    if kind != "grant" or value is None or not is_wanted(source, stream):
        return None
    try:
        grant = _grant_decoder.decode(value)
    except DECODE_ERRORS:
        return None  # a record of a later version
    state = grant.state if grant.state != "open" or grant.next_state is None else grant.next_state
    time, terms = timestamp_ms / 1000, alert_terms_of(grant.spec)
    return StreamOpening(stream, source, grant.identity.incarnation, state, grant.reason, time, terms)


def add_if_changed(known: dict[str, StreamOpening], opening: StreamOpening) -> bool:
    """Add an opening to ``known``; return False, and add nothing, if at most its time has changed.

    The ledger sometimes writes the record of an unchanged opening again; the time of the first record is kept.
    """
    before = known.get(opening.stream)
    if before is not None and before._replace(time=opening.time) == opening:
        return False
    known[opening.stream] = opening
    return True


class _Identity(msgspec.Struct, gc=False):
    incarnation: str


class MechanismTerms(msgspec.Struct, gc=False):
    """The threshold of a stream's mechanism, and whether it only counts people."""

    kind: str
    threshold: float | None = None
    people: bool = False


class StandingTerms(msgspec.Struct, gc=False):
    """The condition of a standing query, and what it counts."""

    where: str | None = None
    count: Any = "events"


class SpecTerms(msgspec.Struct, gc=False):
    """The parts of a stream's definition that an alert names."""

    mechanism: MechanismTerms
    standing: StandingTerms | None = None


def alert_terms_of(spec: SpecTerms) -> AlertTerms:
    """Return the threshold, the condition and the counted things of a definition."""
    if spec.standing is None:
        people = None if spec.mechanism.kind == "laplace" else spec.mechanism.people
        return AlertTerms(spec.mechanism.threshold, counted=None, people=people)
    return AlertTerms(spec.mechanism.threshold, spec.standing.where, spec.standing.count)


class _Grant(msgspec.Struct, gc=False):
    identity: _Identity
    spec: SpecTerms
    state: StreamState
    next_state: Literal["halted", "closed"] | None = msgspec.field(default=None, name="ending")
    reason: str | None = None


class _LedgerSource(msgspec.Struct, gc=False):
    kind: str
    person: str | None = None
    contribution: int = 1


class _SourceRecord(msgspec.Struct, gc=False):
    source: _LedgerSource


_grant_decoder = msgspec.json.Decoder(_Grant)
_source_decoder = msgspec.json.Decoder(_SourceRecord)

_HALTED_BYTES: Final = b'"halted"'
_BY_ANSWER: Final = "answer"
_BY_LEDGER: Final = "ledger"
_ENDED_BYTES: Final = 8 << 20
"""Maximum size in bytes of the set of streams whose end was reported; older ends may be reported again."""


class Watch:
    """Selects streams by patterns of names and by source; of these, the alerts or, with ``all_answers``, all answers.

    The name of a standing stream with periods selects the streams of all its periods.
    """

    def __init__(self, patterns: tuple[str, ...], source: str | None, *, all_answers: bool) -> None:
        self._patterns = tuple(as_stream_names(patterns))
        self._source = source
        self._all_answers = all_answers
        self._ended: BoundedCache[str, str] = BoundedCache(_ENDED_BYTES, name="ended streams")

    def wants(self, source: str, stream: str) -> bool:
        """Return whether a stream is watched."""
        return self._source in {None, source, registered_name(source)} and matches_patterns(stream, self._patterns)

    def first_notices(
        self, openings: Iterable[StreamOpening], sources: AbstractSet[str], *, from_beginning: bool
    ) -> list[Notice]:
        """Return the ends of streams that are named without a wildcard; with ``from_beginning``, they come later.

        Raises:
            Unknown: a named stream or the source does not exist.
        """
        if self._source is not None and self._source not in sources:
            hint = did_you_mean(self._source, sources) or "; see 'sotto source list'"
            raise Unknown(f"source '{self._source}' is not registered{hint}")
        known = {opening.stream: opening for opening in openings}
        for name in self._patterns:
            if name not in known and not any(sign in name for sign in "*?["):
                hint = did_you_mean(name, known) or f"; watch '{name}*' for streams that will be opened later"
                of_source = f" on source {self._source}" if self._source else ""
                raise Unknown(f"stream '{name}' does not exist{of_source}{hint}")
        return [] if from_beginning else self.end_notices(known[name] for name in self._patterns if name in known)

    def end_notices(self, openings: Iterable[StreamOpening]) -> list[Notice]:
        """Return the notices of the ends of these openings, sorted by time."""
        return sorted(
            (one for opening in openings for one in self._notices_of_change(opening)), key=lambda one: one.time
        )

    def _notices_of_change(self, opening: StreamOpening) -> list[Notice]:
        """Return the notice of an opening that has ended; a stream that closes with its period gives no notice."""
        if opening.end is None:
            self._ended.pop(opening.stream)
            return []
        if opening.state == "closed" and registered_name(opening.stream) != opening.stream:
            return []
        return self._report_end(opening, opening.end, opening.time)

    def may_matter(self, record: RecordLike) -> bool:
        """Return whether an answer may give a notice; its bytes are searched, because parsing is slow."""
        value = record.value or b""
        return (self._all_answers or ABOVE_BYTES in value or _HALTED_BYTES in value) and matches_patterns(
            (record.key or b"").decode(errors="replace"), self._patterns
        )

    def notices_of(self, record: RecordLike, opening: StreamOpening, bound_text: str = "") -> list[Notice]:
        """Return the notices of an answer of a watched stream; ``bound_text`` describes the source's contribution bound."""
        answer, terms = Result.read(record.value), opening.terms
        text = terms.describe_counting(bound_text)
        notice = Notice(
            record.timestamp / 1000, opening.stream, opening.source, answer, bound_text=text, terms=terms
        )
        if answer.outcome == "halted":
            # The ledger may report the end before or after this answer; the notice has the earlier time.
            time = notice.time if opening.end is None else min(notice.time, opening.time)
            own = f"{'' if says_exhausted(answer.reason) else 'halted: '}{answer.reason}"
            # The ledger has only the latest end; an extended stream may have been exhausted before, as its answer says.
            end = own if opening.end is None or says_exhausted(answer.reason) else opening.end
            ends = self._report_end(opening, end, time, by_answer=True)
            return ends or ([notice] if self._all_answers else [])
        if answer.outcome != "rejected" and (opening.end is None or self._ended.get(opening.stream) == _BY_ANSWER):
            self._ended.pop(opening.stream)  # it was extended
        return [notice] if self._all_answers or notice.is_alert else []

    def _report_end(
        self, opening: StreamOpening, end: str, when: float, *, by_answer: bool = False
    ) -> list[Notice]:
        if self._ended.get(opening.stream):
            return []
        by = _BY_ANSWER if by_answer else _BY_LEDGER
        self._ended.put(opening.stream, by, ENTRY_BYTES + len(opening.stream))
        return [Notice(when, opening.stream, opening.source, ended=end)]


OVERDUE_SECONDS: Final = 60.0
"""Seconds by which an answer may be late, for slow services and differences of clocks."""


def describe_overdue(
    asked: Iterable[StreamSpec],
    source: EventsSource,
    statuses: Mapping[str, tuple[StreamStatus, float]],
    now: float,
    seen: Mapping[str, float],
) -> str | None:
    """Describe a stream that its worker refuses, or whose next answer is overdue by the clock; None if there is none.

    A stream without a status may be new, so it is overdue only if none has come since it was first ``seen``.
    """
    for spec in asked:
        if (standing := spec.standing) is None or standing.begins is None:
            continue
        status, since = statuses.get(
            spec.stream, (None, max(moment_ms(standing.begins) / 1000, seen[spec.stream]))
        )
        if status is not None and status.refused:
            return f"stream {spec.stream} is not answered: {status.refused}"
        window = standing.window
        spans = (window.size, window.every or window.size, standing.lateness, source.idle)
        late = now - since - sum(map(span_ms, spans)) / 1000
        if (status is None or status.state == "open") and late > OVERDUE_SECONDS:
            return f"stream {spec.stream} has no answer since {format_time(since)}; check that feeds, workers and the budget service run"
    return None


def describe_live_topic(source: EventsSource) -> str:
    """Describe a live topic in words: its contribution bound, its clock and its periods."""
    total, period = "", ""
    if source.total is not None:
        total = f", and {source.total:,} in all windows of a running count"
    if source.period is not None:
        total += " in one period" if total else ""
        period = f"; the unit of privacy is one person in one period of {source.period}"
    clock = "marks in the topic"
    if source.clock == "broker":
        clock = f"the broker's timestamps, {source.idle} later if a partition is silent"
    return (
        f"topic {source.topic}: {describe_source_bound(source)} of a stream{total}; windows close by {clock}; "
        f"events more than {source.ahead} ahead are refused{period}"
    )


def describe_standing_query(spec: StreamSpec, source: Source) -> str:
    """Describe a stream's standing query: its number, its windows, when it asks, and clamped values.

    Empty without a standing query.
    """
    if (standing := spec.standing) is None:
        return ""
    counted = _describe_number(standing)
    where = f" with {standing.where}" if standing.where is not None else ""
    by = f" for each {' and '.join(standing.by)}" if standing.by else ""
    if standing.top is not None:
        by = f" for the {standing.top} largest groups by {' and '.join(standing.by)}"
    window = standing.window
    every = f", one every {window.every}" if window.every is not None and window.overlap > 1 else ""
    begins = f", from {standing.begins} on" if standing.begins is not None else ""
    after = "at its end" if standing.lateness == "0s" else f"{standing.lateness} after its end"
    within = "so far, after each window" if spec.mechanism.kind == "running_count" else "in windows"
    asked = f"asks {counted}{where}{by} {within} of {window.size}{every}{begins}; each is asked {after}"
    late = "events that arrive later do not count"
    return "; ".join((asked, late, *describe_clamping(spec, source)))


def _describe_number(standing: StandingQuery) -> str:
    name, q = standing.quantile, standing.q
    if name is None:
        count = standing.count
        return f"how many {count}" if isinstance(count, str) else f"the sum of '{count.sum}'"
    if q is None or q == 0.5:
        return f"the median of '{name}'"
    if isinstance(q, float):
        return f"the quantile {q:g} of '{name}'"
    return f"the quantiles {', '.join(f'{one:g}' for one in q)} of '{name}'"


def describe_window_count(windows: int, period: str | None, calibration: Calibration, duration: str = "") -> str:
    """Describe for how many windows an error bound holds; ``duration`` is the time that they take, in words."""
    each = "" if period is None else f", in each period of {period}"
    ends = ""
    if isinstance(calibration, SparseVectorCalibration):
        ends = f", or until the grant for {format_count(calibration.cutoff, 'charged answer')} is used up"
    time = f" ({duration})" if duration else ""
    return f"this promise lasts for {format_count(windows, 'window')}{time}, all groups of each{each}{ends}"


def describe_used_up_grant(answered: int, promised: int | None, used: int = 0, *, pays_more: bool = False) -> str:
    """Describe what the promise of an exhausted stream covers; ``promised`` is None if it is for all answers.

    The answers count as ``used`` by their prices, if questions of the stream may request an error. With ``pays_more``, the
    rest is less than the price of an ordinary answer.
    """
    rest = "the rest of the grant pays only for cheap questions with an alpha"
    if pays_more and (promised is None or promised > answered):
        return rest
    covered = f"{rest}; the promise covers" if pays_more else "the grant is used up, so the promise covers only"
    if promised is not None and used > max(promised, answered):
        return f"{covered} the first answers whose prices add up to {promised:,} ordinary answers"
    first = "" if promised is None or promised >= answered else f"first {promised:,} of the "
    return f"{covered} the {first}{format_count(answered, 'answer')} given so far"


def period_of(source: Source) -> str | None:
    """Return the length of a source's periods, or None."""
    return source.period if isinstance(source, EventsSource) else None
