"""What is audited: a stream as an operator opens it, and two neighbouring data sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from schemas import Answer

Interruption = Literal["none", "crash", "redelivery"]
"""What happens to the workers during a run: nothing, a crash after each query, or everything delivered several times."""

_SIGNS = {"above": "above", "below": "below", "halted": "halted", "answer": ""}


class AuditError(RuntimeError):
    """A case asks what the installation refuses; the message says what it answered."""


class Seen(NamedTuple):
    """What one answer shows: its outcome, its numbers as multiples of the case's resolution, its choice."""

    outcome: str
    numbers: tuple[int, ...] = ()
    choice: str | None = None

    def __str__(self) -> str:
        shown = [*map(str, self.numbers), *([] if self.choice is None else [self.choice])]
        sign = _SIGNS[self.outcome]
        return f"{sign}{'=' if sign and shown else ''}{','.join(shown)}"


Transcript = tuple[Seen, ...]
"""All that one run shows. Where a stream has halted, nothing more is asked of it and the transcript ends."""

HALTED = Seen("halted")


@dataclass(frozen=True)
class Sent:
    """Events of a live topic that come in one go, and the moment that the source's clock reaches then."""

    events: Sequence[Mapping[str, Any]]
    until: str


@dataclass(frozen=True)
class Side:
    """One of two neighbouring data sets: what each query of a run asks, without its id and stream, and the table.

    On a source of trusted values the data are in the queries; on a table the queries of both sides are the same. Streams of a live
    topic may be left to ask by themselves: ``sent`` is what comes on it then.
    """

    queries: Sequence[Mapping[str, Any]] = ()
    table: Mapping[str, Sequence[Any]] | None = None
    sent: Sequence[Sent] = ()


@dataclass(frozen=True)
class Case:
    """A pair of neighbouring data sets and the stream that they are audited on.

    Attributes:
        pair: what the two data sets are, for the report; together with ``title`` it names the case.
        mechanism: the stream's mechanism, as an operator writes it.
        source: the source, without name and budget.
        sides: the two data sets; they ask equally many queries.
        stream: further fields of the stream's specification: ``epsilon`` (1 if not given), ``delta`` and so on.
        streams: how many streams one run opens over one source; query n goes to stream n modulo ``streams``. The claim
            is their sum.
        interruption: what the workers suffer in a run.
        resolution: numbers in answers are seen as multiples of this; about the noise's scale is best for the search.
        event: a predicate on transcripts, if it is known which one tells the two sides apart. Without one it is sought.
    """

    pair: str
    mechanism: Mapping[str, Any]
    source: Mapping[str, Any]
    sides: tuple[Side, Side]
    stream: Mapping[str, Any] = field(default_factory=dict)
    streams: int = 1
    interruption: Interruption = "none"
    resolution: float = 1.0
    event: Callable[[Transcript], bool] | None = None

    def __post_init__(self) -> None:
        one, other = self.sides
        if bool(one.queries) == bool(one.sent) or len(one.queries) != len(other.queries):
            raise ValueError("sides: both must ask the same number of queries, one at least, or have events")
        if [sent.until for sent in one.sent] != [sent.until for sent in other.sent]:
            raise ValueError("sides: the clock of both must reach the same moments")

    @property
    def kind(self) -> str:
        """The mechanism's kind."""
        return str(self.mechanism["kind"])

    @property
    def epsilon(self) -> float:
        """The ε that a run claims to lose at most."""
        return float(self.stream.get("epsilon", 1.0)) * self.streams

    @property
    def delta(self) -> float:
        """The δ that a run claims to lose at most."""
        return float(self.stream.get("delta", 0.0)) * self.streams

    def seen(self, answer: Answer) -> Seen:
        """What an answer shows; AuditError if it is a rejection, from which nothing can be learnt."""
        if answer.outcome == "rejected":
            raise AuditError(f"{self.kind}, {self.pair}: a query was rejected: {answer.reason}")
        numbers = (*(() if answer.estimate is None else (answer.estimate,)), *(answer.estimates or ()))
        return Seen(
            answer.outcome,
            tuple(math.floor(number / self.resolution) for number in numbers),
            answer.choice,
        )
