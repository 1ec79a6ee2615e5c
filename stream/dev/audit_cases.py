"""Defines audit cases: a stream and two neighboring data sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple

from schemas import Answer

_OUTCOME_TEXTS = {"above": "above", "below": "below", "halted": "halted", "answer": ""}


class AuditError(RuntimeError):
    """A mechanism has no cases, or the installation rejects a query; the message has the reason."""


class AnswerContent(NamedTuple):
    """The content of one answer: the outcome, the numbers in multiples of the resolution, and the choice."""

    outcome: str
    numbers: tuple[int, ...] = ()
    choice: str | None = None

    def __str__(self) -> str:
        shown = [*map(str, self.numbers), *([] if self.choice is None else [self.choice])]
        outcome_text = _OUTCOME_TEXTS[self.outcome]
        return f"{outcome_text}{'=' if outcome_text and shown else ''}{','.join(shown)}"


Transcript = tuple[AnswerContent, ...]
"""The answers of one run; it ends when a stream halts."""

HALTED = AnswerContent("halted")


@dataclass(frozen=True)
class SentEvents:
    """A batch of live events, and the time to which the source's clock advances after the batch."""

    events: Sequence[Mapping[str, Any]]
    until: str


@dataclass(frozen=True)
class Side:
    """One of two neighboring data sets, and the queries of a run, without id and stream.

    For a source of values, the queries contain the data; for a table, both sides have the same
    queries. For standing streams, ``sent`` has the events of the live topic.
    """

    queries: Sequence[Mapping[str, Any]] = ()
    table: Mapping[str, Sequence[Any]] | None = None
    sent: Sequence[SentEvents] = ()


@dataclass(frozen=True)
class Case:
    """Two neighboring data sets and the stream that they are audited on.

    Attributes:
        pair: a description of the data sets for the report.
        mechanism: the stream's mechanism, as in the JSON of a stream's specification.
        source: the source, without name and budget.
        sides: the two data sets, with the same number of queries.
        stream: further fields of the stream's specification: ``epsilon`` (default 1), ``delta`` and so on.
        streams: number of streams on one source in a run; query n goes to stream n modulo ``streams``. The
            claimed ε is the sum over the streams.
        interruption: the fault in a run: none, a crash after each query, or repeated deliveries.
        resolution: numbers are rounded down to multiples of this; choose about the noise scale.
        event: a set of transcripts, as a predicate, that distinguishes the sides; if it is None, the auditor
            searches for such a set.
    """

    pair: str
    mechanism: Mapping[str, Any]
    source: Mapping[str, Any]
    sides: tuple[Side, Side]
    stream: Mapping[str, Any] = field(default_factory=dict)
    streams: int = 1
    interruption: Literal["none", "crash", "redelivery"] = "none"
    resolution: float = 1.0
    event: Callable[[Transcript], bool] | None = None

    def __post_init__(self) -> None:
        one, other = self.sides
        if bool(one.queries) == bool(one.sent) or len(one.queries) != len(other.queries):
            raise ValueError("sides: give either queries, equally many on both sides, or events")
        if [sent.until for sent in one.sent] != [sent.until for sent in other.sent]:
            raise ValueError("sides: both clocks must reach the same times")

    @property
    def kind(self) -> str:
        """The kind of the mechanism."""
        return str(self.mechanism["kind"])

    @property
    def epsilon(self) -> float:
        """The ε that a run may lose."""
        return float(self.stream.get("epsilon", 1.0)) * self.streams

    @property
    def delta(self) -> float:
        """The δ that a run may lose."""
        return float(self.stream.get("delta", 0.0)) * self.streams

    def content_of(self, answer: Answer) -> AnswerContent:
        """Return the content of an answer; raise AuditError for a rejection."""
        if answer.outcome == "rejected":
            raise AuditError(f"{self.kind}, {self.pair}: a query was rejected: {answer.reason}")
        single = (one for one in (answer.estimate, answer.typical_error) if one is not None)
        numbers = (*single, *(answer.estimates or ()))
        return AnswerContent(
            answer.outcome,
            tuple(math.floor(number / self.resolution) for number in numbers),
            _named_choice(answer),
        )


PLAN: Final = {"epsilon": 2.0, "expected_queries": 8, "beta": 0.1}
"""Fields of the streams of most cases."""


def make_case(
    pair: str,
    mechanism: str | Mapping[str, Any],
    source: Mapping[str, Any],
    sides: tuple[Side, Side],
    stream: Mapping[str, Any] = PLAN,
    **others: Any,
) -> Case:
    """Build a case whose mechanism may be only a kind, and whose stream is ``PLAN`` if it is omitted."""
    fields = {"kind": mechanism} if isinstance(mechanism, str) else mechanism
    return Case(pair, fields, source, sides, stream, **others)


def _named_choice(answer: Answer) -> str | None:
    if answer.top_groups is not None:
        return "; ".join(", ".join(map(str, group.values())) for group in answer.top_groups)
    return answer.choice if answer.keys is None else ", ".join(answer.keys)


def values_side(*numbers: float) -> Side:
    """Build a side whose questions carry these values."""
    return Side([{"value": float(number)} for number in numbers])


def values_sides(*pairs: tuple[float, float]) -> tuple[Side, Side]:
    """Build two sides from the pairs of values that their questions carry."""
    return values_side(*(one for one, _ in pairs)), values_side(*(other for _, other in pairs))


def rising_values(value: float, length: int) -> tuple[Side, Side]:
    """Build sides whose values are each 1 higher on the second side, so that only ⊥s (``below``) distinguish them."""
    return values_sides(*[(value, value + 1)] * length)


def crossing_values(value: float, lows: int, highs: int) -> tuple[Side, Side]:
    """Build sides with ``lows`` values that are 1 higher on the second side, and then ``highs`` that are 1 lower."""
    return values_sides(*[(value, value + 1)] * lows, *[(value + 1, value)] * highs)


_TOPIC: Final = {
    "kind": "events",
    "neighbors": "add-remove",
    "topic": "audit",
    "person": "who",
    "time": "at",
    "clock": "marks",
    "contribution": 2,
    "attributes": {"group": ["a", "b"], "amount": {"kind": "integers", "minimum": 0, "maximum": 1}},
}
_HOURLY: Final = {"window": {"size": "1h"}, "begins": "2026-01-01T00:00:00Z"}
_BATCH_ENDS: Final = ("00:20", "00:40", "01:00", "02:00")

_TOPIC_WITH_PERIODS: Final = {
    **_TOPIC,
    "contribution": 1,
    "total": 1,
    "unit": "person-period",
    "period": "1h",
    "ahead": "1h",
}
_QUARTERS: Final = {"window": {"size": "15m"}, "begins": "2026-01-01T00:00:00Z"}


def _event(who: str, time: str, group: str = "a", amount: int = 0, **texts: str) -> Mapping[str, Any]:
    return {"who": who, "at": f"2026-01-01T{time}:00Z", "group": group, "amount": amount, **texts}


def _sides(
    others: Sequence[Sequence[Mapping[str, Any]]], person: Sequence[Sequence[Mapping[str, Any]]]
) -> tuple[Side, Side]:
    def side(*, present: bool) -> Side:
        parts = zip(others, person, _BATCH_ENDS, strict=False)
        sent = [
            ([*(own_events if present else ()), *other_events], end) for other_events, own_events, end in parts
        ]
        return Side(sent=[SentEvents(events, f"2026-01-01T{end}:00Z") for events, end in sent])

    return side(present=False), side(present=True)


def _events_of_me(*times: str, **fields: Any) -> list[Mapping[str, Any]]:
    return [_event("me", time, **fields) for time in times]


_EIGHT_OTHERS: Final = [_event(f"other {number}", "00:41", group="b") for number in range(8)]

LAPLACE_CASES: Final = (
    # At most two events of a person count, whatever the number of events and batches.
    make_case(
        "one person with 9 events more",
        "laplace",
        _TOPIC,
        _sides([[_event("ann", "00:01")], [], []], [_events_of_me("00:02", "00:03", "00:04")] * 3),
        {**PLAN, "standing": _HOURLY},
    ),
    # An event after the window's end must not close the window for other people.
    make_case(
        "one person ahead of the others more",
        "laplace",
        _TOPIC,
        _sides([[], [], _EIGHT_OTHERS], [_events_of_me("00:02", "00:03"), [], _events_of_me("01:02")]),
        {**PLAN, "standing": _HOURLY},
    ),
    make_case(
        "one person in an empty window more",
        {"kind": "laplace", "answers": 2},
        _TOPIC,
        _sides([[], [], [], [_event("ann", "01:01")]], [_events_of_me("00:02", "00:03"), [], [], []]),
        {**PLAN, "standing": _HOURLY},
        resolution=2.0,
    ),
)

HISTOGRAM_CASES: Final = (
    make_case(
        "one person in both groups of a window more",
        {"kind": "histogram", "attributes": ["group"]},
        _TOPIC,
        _sides(
            [_EIGHT_OTHERS, [], []], [[_event("me", "00:02"), *_events_of_me("00:03", "00:04", group="b")], [], []]
        ),
        {**PLAN, "standing": {**_HOURLY, "by": ["group"]}},
    ),
)

_TOPIC_WITH_TEXTS: Final = {**_TOPIC, "texts": {"note": {"kind": "text", "max_length": 4}}}
_BY_NOTE: Final = {**PLAN, "delta": 0.001, "standing": {**_HOURLY, "by": ["note"]}}
_NINE_OTHERS: Final = [_event(f"other {number}", "00:01", note="x") for number in range(9)]

UNKNOWN_GROUPS_CASES: Final = (
    # At most two events of a person count, whether the events have one text or several.
    make_case(
        "one person with 9 events of a common text more",
        "unknown_groups",
        _TOPIC_WITH_TEXTS,
        _sides([_NINE_OTHERS, [], []], [_events_of_me("00:02", "00:03", "00:04", note="x")] * 3),
        _BY_NOTE,
    ),
    make_case(
        "one more person, with texts that no other person has",
        "unknown_groups",
        _TOPIC_WITH_TEXTS,
        _sides(
            [_NINE_OTHERS, [], []],
            [_events_of_me("00:02", "00:03", note="y"), _events_of_me("00:04", "00:05", note="z"), []],
        ),
        _BY_NOTE,
    ),
)


def _each_exceeds_previous(transcript: Transcript) -> bool:
    numbers = [0, *(seen.numbers[0] for seen in transcript[:4])]
    return all(later > former for former, later in pairwise(numbers))


RUNNING_CASES: Final = (
    # The person has events in all four windows of the first hour, which is a period, and one of these events counts.
    make_case(
        "one person's hour of 6 events more",
        {"kind": "running_count", "steps": 4},
        _TOPIC_WITH_PERIODS,
        _sides(
            [[], [], [], [_event("ann", "01:05")]],
            [
                _events_of_me("00:02", "00:16"),
                _events_of_me("00:17", "00:31", "00:32"),
                _events_of_me("00:46"),
                [],
            ],
        ),
        {"epsilon": 2.0, "beta": 0.1, "standing": _QUARTERS},
        event=_each_exceeds_previous,
    ),
)

_NOTES_SO_FAR: Final = {"kind": "running_count", "steps": 3}

RUNNING_TEXTS_CASES: Final = (
    # At most two events of a person count in all windows, whether other people have the same texts or not.
    make_case(
        "one person with 9 events of a common text more, in all windows",
        _NOTES_SO_FAR,
        {**_TOPIC_WITH_TEXTS, "total": 2},
        _sides([_NINE_OTHERS, [], []], [_events_of_me("00:02", "00:21", "00:41", note="x")] * 3),
        _BY_NOTE,
        resolution=4.0,
    ),
    make_case(
        "one more person, with texts that no other person has, in all windows",
        _NOTES_SO_FAR,
        {**_TOPIC_WITH_TEXTS, "total": 2},
        _sides([_NINE_OTHERS, [], []], [_events_of_me("00:02", note="y"), [], _events_of_me("00:41", note="z")]),
        _BY_NOTE,
        resolution=4.0,
    ),
)

_TOPIC_OF_SENT_SUMS: Final = {
    "kind": "events",
    "neighbors": "add-remove",
    "topic": "audit",
    "person": "who",
    "time": "at",
    "total": 1,
}
_RUNNING_PLAN: Final = {"epsilon": 2.0, "beta": 0.1, "standing": _HOURLY}


def _running_sides(*sums: tuple[Sequence[float], Sequence[float]]) -> tuple[Side, Side]:
    hours = [f"2026-01-01T0{hour}:00:00Z" for hour in range(len(sums) + 1)]
    windows = [{"start": start, "end": end} for start, end in pairwise(hours)]
    one, other = (
        Side([{"values": values, "window": window} for values, window in zip(side, windows, strict=True)])
        for side in zip(*sums, strict=True)
    )
    return one, other


def _each_at_least_one(transcript: Transcript) -> bool:
    return all(seen.numbers[0] >= 1 for seen in transcript)


SENT_SUMS_CASES: Final = (
    # Each window has independent noise, and all answers include the first window's noise.
    make_case(
        "one event more",
        {"kind": "running_count", "steps": 3},
        _TOPIC_OF_SENT_SUMS,
        _running_sides(([0.0], [1.0]), ([0.0, 0.0], [1.0, 0.0]), ([0.0] * 3, [1.0, 0.0, 0.0])),
        _RUNNING_PLAN,
        event=_each_at_least_one,
    ),
    # The first two answers use nodes of two levels. Both nodes count the event, so together they lose the whole ε.
    make_case(
        "one event more; two levels",
        {"kind": "running_count", "steps": 3},
        _TOPIC_OF_SENT_SUMS,
        _running_sides(([0.0], [1.0]), ([0.0], [1.0]), ([0.0, 0.0], [1.0, 0.0])),
        {**_RUNNING_PLAN, "calibration": "textbook"},
        event=lambda transcript: _each_at_least_one(transcript[:2]),
    ),
    make_case(
        "another's event in place of one",
        {"kind": "running_count", "steps": 2},
        {**_TOPIC_OF_SENT_SUMS, "neighbors": "replace"},
        _running_sides(([0.0], [1.0]), ([0.0, 1.0], [1.0, 0.0])),
        _RUNNING_PLAN,
    ),
)
