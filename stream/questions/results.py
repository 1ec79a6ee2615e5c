"""``Result`` and ``Results``: answers with their questions and the group of each number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Final, Self, overload

from pydantic import PrivateAttr

from schemas import (
    INDEPENDENCE,
    MAX_ANSWER_BYTES,
    TOO_MANY_TEXTS,
    Answer,
    Calibration,
    Dates,
    EventsSource,
    Histogram,
    Interval,
    Query,
    Source,
    StreamSpec,
    TableSource,
    TextInterval,
)
from schemas.wire import Codec
from stream.errors import Exhausted, Halted, NotAnswered, Rejected
from stream.formatting import (
    cells_of,
    contribution_bound_of,
    counts_people,
    describe_promise_bound,
    describe_source_bound,
)
from stream.processing.dead_letters import PRICE, says_exhausted
from stream.questions import result_text
from stream.questions.answer_warnings import (
    describe_reasons,
    predicates_of,
    reasons_of,
    warn_about_domains,
    warn_about_people,
    warn_about_promise,
    warn_about_rows,
    warn_about_top,
)
from stream.questions.clamped_values import describe_clamping, warn_about_clamping
from stream.questions.html_tables import format_html_table, with_unit_of_alpha
from stream.questions.result_text import ConvertibleRows

Group = Mapping[str, str | int | float]
"""The value of each attribute of a group; a bin is written as ``[0, 10)``."""

_BASIS_WARNINGS: Final = {
    INDEPENDENCE: "basis: two of these attributes were never measured together, or one was never measured, so the estimate assumes independence; request an alpha "
    "below its ±, or open a stream whose workload names them",
    TOO_MANY_TEXTS: "basis: a noisy test found too many different texts in the window, or in all windows of a running count, so none is released; "
    "use smaller or fewer windows, a where, or a shorter max_length",
}
"""The warning about an answer's basis, for each basis that needs a warning."""


def groups_of(source: Source, attributes: Sequence[str]) -> tuple[Group, ...] | None:
    """Return the cells of these attributes in the order of an answer's numbers; None for undeclared attributes."""
    if not isinstance(source, TableSource | EventsSource) or not set(attributes) <= source.attributes.keys():
        return None
    return cells_of(source.attributes, attributes)


class Result(ConvertibleRows, Answer):
    """An ``Answer`` with its question, groups and warnings, which JSON and ``==`` ignore.

    ``estimate`` is the number, ``interval`` its 95 % confidence interval, and ``alpha`` an error bound of all answers of
    the stream together; all three have the same unit. Properties that need the source's definition are empty if the
    client may not read the ledger.

    Examples:
        >>> result = client.ask("counts", where="age >= 65")
        >>> abs(result.estimate - 350) <= result.alpha
        True
    """

    _query: Query | None = PrivateAttr(None)
    _source: Source | None = PrivateAttr(None)
    _spec: StreamSpec | None = PrivateAttr(None)
    _calibration: Calibration | None = PrivateAttr(None)
    _missed: str | None = PrivateAttr(None)

    @classmethod
    def read(cls, value: bytes | None) -> Result:
        """Parse an answer's bytes."""
        return _result_codec.decode(value)

    def with_question(
        self, query: Query | None, source: Source | None, calibration: Calibration | None = None
    ) -> Self:
        """Set question, source and calibration; return the result, or a copy without intervals if ``top`` chose groups."""
        if query is not None and query.top is not None and self.intervals is not None:
            return self.model_copy(update={"intervals": None}).with_question(query, source, calibration)
        self._query, self._source, self._calibration = query, source, calibration
        return self

    @property
    def lacks_stream(self) -> bool:
        """True if this is the answer of a window without the stream's definition; see ``with_stream``."""
        return self.window is not None and self._spec is None

    def with_stream(
        self, spec: StreamSpec, source: Source, calibration: Calibration | None = None, missed: str | None = None
    ) -> Result:
        """Set facts of a standing stream, and the missed events of the window; return the result itself."""
        self._source, self._calibration, self._missed = source, calibration, missed
        self._spec = self._spec if spec.standing is None else spec
        return self

    @property
    def query(self) -> Query | None:
        """The question; None for the answer to another client's question."""
        return self._query

    @property
    def alpha_unit(self) -> str:
        """The unit of ``alpha`` if it is not the unit of the numbers: a quantile's is in rows or events of rank.

        For a choice among candidates it says that ``alpha`` is the distance of the choice's score from the best one.
        """
        if self._query is not None and self._query.candidates is not None:
            return " below the best score"
        if self._query is not None and (self._query.quantile is not None or self._query.iqr is not None):
            return " rows of rank"
        standing = None if self._spec is None else self._spec.standing
        return " events of rank" if standing is not None and standing.quantile is not None else ""

    @property
    def number_unit(self) -> str:
        """The unit of the numbers if they count periods of a calendar, such as ``days``; else an empty text."""
        if self._query is None or self._query.iqr is None or not isinstance(self._source, TableSource):
            return ""
        domain = self._source.attributes.get(self._query.iqr)
        return f"{domain.granularity}s" if isinstance(domain, Dates) and domain.part is None else ""

    @property
    def charge_name(self) -> str:
        """The name of one answer that ``tops_left`` counts; one charge pays for all counts of a running count."""
        is_running = self._spec is not None and self._spec.mechanism.kind == "running_count"
        return "count" if is_running else "charged answer"

    @property
    def groups(self) -> tuple[Group, ...] | None:
        """The group of each number of a ``group_by`` question or live histogram; None for other answers.

        For unknown groups these are the released groups, the largest first. If only names are released, they are sorted,
        and there are no ``estimates``.
        """
        if self.keys is not None:
            name = "key" if self._query is None or self._query.group_by is None else self._query.group_by[0]
            return tuple({name: text} for text in self.keys)
        if self.top_groups is not None:
            return self.top_groups
        numbers = self.estimates if self.choices is None else self.choices
        group_by = None if self._query is None else self._query.group_by
        if self._query is None and self._spec is not None and isinstance(self._spec.mechanism, Histogram):
            group_by = self._spec.mechanism.attributes
        groups = None if group_by is None or self._source is None else groups_of(self._source, group_by)
        return groups if groups is not None and numbers is not None and len(groups) == len(numbers) else None

    @property
    def uninformative(self) -> tuple[int, ...]:
        """Positions of the numbers that are not informative; a single number has the position 0.

        The error of such a number may exceed the number itself or a third of its public range, by the 95 % confidence
        interval or, without one, by ``alpha`` or else the typical error. A decision is not informative if its error may
        exceed the threshold.

        Examples:
            >>> result = client.ask("counts", where="age >= 65")
            >>> result.informative, result.uninformative
            (True, ())
        """
        return tuple(place for place, reason in enumerate(self.reasons) if reason is not None)

    @property
    def informative(self) -> bool:
        """False if the answer has numbers and none of them is informative; see ``uninformative``."""
        reasons = self.reasons
        return not reasons or None in reasons

    @property
    def reasons(self) -> tuple[str | None, ...]:
        """For each number, why it is not informative; None for a number that is or may be informative."""
        return reasons_of(self, self._query, self._source, getattr(self._calibration, "alpha", None), self._spec)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about the answer: its basis, its place in the stream, its question, and numbers that are not informative.

        A warning about the question names its contribution bound, a part that the domain decides (such as a predicate
        that holds for every row), or a range whose ends count the values beyond them. Warnings depend only on public and
        released figures, and change neither the answer nor the charge. If the ``basis`` is ``independence`` or
        ``too-many-texts``, the first warning says so.
        """
        marked = describe_reasons(self.reasons)
        return self.question_warnings if marked is None else (*self.question_warnings, marked)

    @property
    def question_warnings(self) -> tuple[str, ...]:
        """The warnings about the basis and the question, without the warning about numbers; none of a refusal."""
        if self.outcome in {"rejected", "halted"} and not self.is_priced:
            return ()
        about_basis = tuple(text for basis, text in _BASIS_WARNINGS.items() if basis == self.basis)
        if self.index is not None:
            # Extensions are unknown here, so this may be too small. With zCDP prices are no measure of the promise.
            paid = (
                0 if self.spent is None or self.spent.rho is not None else getattr(self._calibration, "cutoff", 0)
            )
            used = 0 if self.tops_left is None else paid - self.tops_left
            about_basis += warn_about_promise(self.index + 1, self._calibration, used)
        about_basis += warn_about_top(self, self._query, self._spec)
        if self._query is None and (spec := self._spec) and (source := self._source):
            return (*about_basis, *filter(None, (self.counted, *describe_clamping(spec, source), self._missed)))
        if self._query is None or self._source is None:
            return about_basis
        return (
            *about_basis,
            *((describe_source_bound(self._source),) if self.rows_per_person is not None else ()),
            *warn_about_people(self._source, self._query),
            *warn_about_domains(self._source, self._query),
            *warn_about_clamping(self, self._query, self._source, predicates_of(self._query)),
            *warn_about_rows(self._source, self._query),
        )

    @property
    def counted(self) -> str:
        """The contribution bound of a standing stream in words; empty if the stream's definition is unknown."""
        if (spec := self._spec) is None or (source := self._source) is None:
            return ""
        return describe_promise_bound(spec, describe_source_bound(source), getattr(source, "total", None))

    @property
    def rows_per_person(self) -> int | None:
        """Maximum number of counted rows of one person; None if all rows count, or if the bound is unknown."""
        if self._query is None or self._source is None or counts_people(self._query):
            return None
        return contribution_bound_of(self._source)

    def checked(self) -> Self:
        """Return the result itself, or raise if the question was not answered.

        Raises:
            Rejected: the question is invalid, or its stream is not open.
            Exhausted: the stream's grant is used up.
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
        """True if the question was rejected only for its ``max_price``, as in a dry run; ``price`` has its ε."""
        return self.outcome == "rejected" and (self.reason or "").startswith(f"{PRICE}: max_price:")

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each number, or one row for an outcome without numbers.

        The columns are:

        - ``stream``, ``id`` and ``outcome``;
        - for a standing stream ``window_start``, ``window_end`` and the attributes of the window's group;
        - the attributes of the number's group, or its ``position``; for one of several quantiles also ``q``;
        - ``estimate``, ``alpha`` and, if the number has them, ``interval_low`` and ``interval_high`` (the ends of its
          confidence interval) or ``typical_error``;
        - if some number is not informative, ``informative``: false for this number and true for the others.

        An attribute with the name of another column gets a ``*`` at its end.
        """
        common: dict[str, Any] = {"stream": self.stream, "id": self.id, "outcome": self.outcome}
        if self.window is not None:
            common |= {"window_start": self.window.start, "window_end": self.window.end}
            common |= _rename_clashing(self.group or {}, dict.fromkeys((*common, *_NUMBER_COLUMNS)))
        bound = {} if self.rows_per_person is None else {"rows_per_person": self.rows_per_person}
        typical = {} if self.typical_error is None else {"typical_error": self.typical_error}
        name, found = ("estimate", self.estimates) if self.choices is None else ("choice", self.choices)
        if found is None and self.groups is not None:
            return [{**common, **_rename_clashing(label, {**common, **bound}), **bound} for label in self.groups]
        uninformative = frozenset(self.uninformative)
        if found is None:
            one = {"estimate": self.estimate, "choice": self.choice, "alpha": self.alpha, "reason": self.reason}
            ends = self.interval if self.choice_intervals is None else self.choice_intervals[0]
            marked = _informative_column(0, uninformative)
            return [{**common, **one, **_interval_columns(ends), **typical, **marked, **bound}]
        quantiles = None if self._query is None else self._query.q
        labels: Sequence[Mapping[str, Any]] = self.groups or [
            {"position": number} | ({"q": quantiles[number]} if isinstance(quantiles, tuple) else {})
            for number in range(len(found))
        ]
        intervals = (self.intervals if self.choices is None else self.choice_intervals) or repeat(None)
        rows = []
        for place, (label, value, interval) in enumerate(zip(labels, found, intervals, strict=False)):
            number = {name: value, "alpha": self.alpha, **_interval_columns(interval), **typical}
            number |= {**_informative_column(place, uninformative), **bound}
            rows.append({**common, **_rename_clashing(label, {**common, **number}), **number})
        return rows

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def __str__(self) -> str:
        return " ".join([result_text.format_answer(self), *result_text.format_warnings(self.warnings)])

    def _repr_html_(self) -> str:
        return format_html_table(with_unit_of_alpha(self, self.rows()), self.warnings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and self.__dict__ == other.__dict__

    __hash__ = Answer.__hash__


class Results(ConvertibleRows, Sequence[Result]):
    """An immutable sequence of ``Result`` in the order of the questions.

    Examples:
        >>> results = client.ask_many({"stream": "counts", "where": f"age < {n}"} for n in (10, 20))
        >>> [result.outcome for result in results.checked()]
        ['answer', 'answer']
    """

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
        """Return the results themselves, or raise the error of the first unanswered question; see ``Result.checked``."""
        for result in self._results:
            try:
                result.checked()
            except NotAnswered as error:
                raise type(error)(error.answer, self.answered, len(self)) from None
        return self

    @property
    def answered(self) -> int:
        """The number of answered questions."""
        return sum(one.outcome not in {"rejected", "halted"} for one in self._results)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The first ten distinct warnings of all results, and the number of further warnings."""
        return result_text.list_warnings(line for result in self._results for line in result.warnings)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all results."""
        return _complete_marks([row for result in self._results for row in result.rows()])

    def __repr__(self) -> str:
        return result_text.format_answers(self._results)

    def _repr_html_(self) -> str:
        rows = [row for result in self._results for row in with_unit_of_alpha(result, result.rows())]
        return format_html_table(_complete_marks(rows), self.warnings)


def _complete_marks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark numbers as informative in the rows of results without such marks, if other results have them."""
    for row in rows if any("informative" in row for row in rows) else ():
        if (row.get("estimate"), row.get("choice")) != (None, None):
            row.setdefault("informative", True)
    return rows


_NUMBER_COLUMNS = (
    *("position", "estimate", "choice", "alpha", "interval_low", "interval_high", "typical_error", "reason"),
    *("informative", "rows_per_person"),
)
"""Columns that follow the group's attributes in rows of a standing stream."""

_result_codec: Codec[Result] = Codec(Result, limit=MAX_ANSWER_BYTES)


def _interval_columns(interval: Interval | TextInterval | None) -> dict[str, float | str]:
    return {} if interval is None else {"interval_low": interval[0], "interval_high": interval[1]}


def _informative_column(place: int, uninformative: frozenset[int]) -> dict[str, bool]:
    return {"informative": place not in uninformative} if uninformative else {}


def _rename_clashing(group: Mapping[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    return {name + "*" * (name in columns): value for name, value in group.items()}
