"""Results: answers that know their question, and what each of their numbers stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, overload

from pydantic import PrivateAttr

from schemas import MAX_ANSWER_BYTES, Answer, Query, Source, TableSource
from schemas.wire import Codec
from stream.errors import Exhausted, Halted, Rejected
from stream.formatting import bound_of, cells_of, counted_words, counts_people
from stream.processing.dead_letters import PRICE, says_exhausted
from stream.questions import result_text
from stream.questions.domain_limits import outside
from stream.questions.result_text import Framed

Group = Mapping[str, str | int]
"""One cell: the value of each attribute; of a binned one its bin, as ``[0, 10)``."""


def groups_of(source: Source, attributes: Sequence[str]) -> tuple[Group, ...] | None:
    """The cells in the order in which an answer lists them (row-major); None if the source declares no such attributes."""
    if not isinstance(source, TableSource) or not set(attributes) <= source.attributes.keys():
        return None
    return cells_of(source.attributes, attributes)


class Result(Framed, Answer):
    """An answer with the question that was asked. On the wire, and to ``==``, it is the answer that it is.

    ``query`` is the question, null for an answer to somebody else's. ``groups`` are the cells that the ``estimates`` of a
    ``group_by`` question stand for, null for other questions, and where the ledger, which declares them, may not be read.
    ``warnings`` are what stands out in the question beside its source's declared domain, and how many rows of one person count
    where the source bounds them, one line each.
    """

    _query: Query | None = PrivateAttr(None)
    _source: Source | None = PrivateAttr(None)

    @classmethod
    def read(cls, value: bytes | None, query: Query | None = None, source: Source | None = None) -> Result:
        """The result that an answer's bytes are; ``source`` is what the question is about, where that is known."""
        return _results.decode(value).of(query, source)

    def of(self, query: Query | None, source: Source | None) -> Result:
        """The result itself, as the answer to this question about this source."""
        self._query, self._source = query, source
        return self

    @property
    def query(self) -> Query | None:
        """The question."""
        return self._query

    @property
    def groups(self) -> tuple[Group, ...] | None:
        """What each of the ``estimates`` stands for."""
        if self.estimates is None or self._query is None or self._query.group_by is None or self._source is None:
            return None
        groups = groups_of(self._source, self._query.group_by)
        return groups if groups is not None and len(groups) == len(self.estimates) else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the declared domain decides by itself: a constant outside it, a predicate of every row or none, one candidate.

        A public fact: it follows from the question and the source's definition alone, and changes neither answer nor charge.
        None where the ledger, which has the definition, may not be read.
        """
        if self._query is None or self._source is None:
            return ()
        bounded = (counted_words(self._source),) if self.rows_per_person is not None else ()
        return (*bounded, *outside(self._source, self._query))

    @property
    def rows_per_person(self) -> int | None:
        """How many rows of one person count in the answer, which leaves out all others; None if all count, or it is not known."""
        if self._query is None or self._source is None or counts_people(self._query):
            return None
        return bound_of(self._source)

    def checked(self) -> Self:
        """The result itself if the question was answered.

        Raises:
            Rejected: the question is wrong, or its stream is not open.
            Exhausted: the stream's grant pays for no ordinary answer any more.
            Halted: the stream is halted or closed.
        """
        if self.outcome in {"rejected", "halted"} and says_exhausted(self.reason):
            raise Exhausted(self)
        if self.outcome == "rejected":
            raise Rejected(self)
        if self.outcome == "halted":
            raise Halted(self)
        return self

    @property
    def is_priced(self) -> bool:
        """Whether its own ``max_price`` alone refused the question, as in a dry run; ``price`` is what its answer may cost."""
        return self.outcome == "rejected" and (self.reason or "").startswith(f"{PRICE}: max_price:")

    def rows(self) -> list[dict[str, Any]]:
        """One row for each number (or the one outcome): its group's attributes or its ``position``, and its error bar.

        Those of a standing stream begin with ``window_start``, ``window_end`` and the attributes of the ``group``. An attribute that is
        named like another column is told from it by a star behind its name.
        """
        told: dict[str, Any] = {"stream": self.stream, "id": self.id, "outcome": self.outcome}
        if self.window is not None:
            told |= {"window_start": self.window.start, "window_end": self.window.end}
            told |= _apart(self.group or {}, dict.fromkeys((*told, *_NUMBERS)))
        bound = {} if self.rows_per_person is None else {"rows_per_person": self.rows_per_person}
        if self.estimates is None:
            one = {"estimate": self.estimate, "choice": self.choice, "alpha": self.alpha, "reason": self.reason}
            return [{**told, **one, **bound}]
        labels = self.groups or [{"position": number} for number in range(len(self.estimates))]
        numbers = [{"estimate": number, "alpha": self.alpha, **bound} for number in self.estimates]
        return [
            {**told, **_apart(label, {**told, **number}), **number}
            for label, number in zip(labels, numbers, strict=True)
        ]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __str__(self) -> str:
        return " ".join([result_text.line(self), *result_text.told(self.warnings)])

    def _repr_html_(self) -> str:
        return result_text.table(self.rows(), self.warnings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and self.__dict__ == other.__dict__

    __hash__ = Answer.__hash__


class Results(Framed, Sequence[Result]):
    """The results of many questions, in the order in which they were asked."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._results = tuple(results)

    @overload
    def __getitem__(self, at: int) -> Result: ...
    @overload
    def __getitem__(self, at: slice) -> Results: ...
    def __getitem__(self, at: int | slice) -> Result | Results:
        return Results(self._results[at]) if isinstance(at, slice) else self._results[at]

    def __len__(self) -> int:
        return len(self._results)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self._results) == list(other)

    def __hash__(self) -> int:
        return hash(self._results)

    def checked(self) -> Self:
        """The results themselves if all questions were answered; else what the first raises that was not."""
        for result in self._results:
            result.checked()
        return self

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of all results, each once; of many the first, and how many more there are."""
        lines = tuple(dict.fromkeys(line for result in self._results for line in result.warnings))
        more = len(lines) - result_text.MAX_LINES
        return lines if more <= 0 else (*lines[: result_text.MAX_LINES], f"and {more:,} more of such kinds")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all results, one after the other."""
        return [row for result in self._results for row in result.rows()]

    def __repr__(self) -> str:
        return result_text.lines(self._results)

    def _repr_html_(self) -> str:
        return result_text.table(self.rows(), self.warnings)


_NUMBERS = ("position", "estimate", "choice", "alpha", "reason", "rows_per_person")
"""The other columns of rows."""

_results: Codec[Result] = Codec(Result, limit=MAX_ANSWER_BYTES)


def _apart(group: Group | dict[str, int], columns: dict[str, Any]) -> dict[str, Any]:
    return {name + "*" * (name in columns): value for name, value in group.items()}
