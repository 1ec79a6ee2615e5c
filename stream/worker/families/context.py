"""The context of families: the streams and tables of a partition, and the private numbers of a question."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np

from schemas import EstimateCalibration, HypothesisCalibration, Numeric, StandingQuery, TableSource
from schemas.queries import STATISTICS
from stream.caches import RecentCache
from stream.formatting import find_name_in_other_case
from stream.privacy.noise.keyed_noise import DrawRole, event_words, round_words
from stream.privacy.noise.samplers import LowWords, Sampler, Words, sampler
from stream.privacy.planning.hypothesis_plans import rows_rate
from stream.processing.dead_letters import Rejection, malformed_rejection
from stream.tables.counted_table import CountedTable
from stream.tables.expressions import Predicate, conjunction
from stream.tables.sensitivity import rows_are_public
from stream.tables.store import TableStore
from stream.tables.table_errors import private_text_message, quote_names
from stream.tables.table_errors import quote_name as described
from stream.worker.hosted_streams import HostedStreams
from stream.worker.stream_terms import WindowAndGroup


@dataclass(frozen=True, slots=True)
class AdmittedQuestion:
    """An admitted question: its place in the batch, its stream's slot, and its ``content``.

    ``content`` is the result of ``Family.admit``. ``window_and_group`` is the window and group of a standing
    stream's question.
    """

    place: int
    id: str
    slot: int
    offset: int
    payload: bytes
    content: Any
    window_and_group: WindowAndGroup | None = None


class TableFreedError(Exception):
    """The table of an ended stream has been freed from memory."""


TERMS_CACHE_SIZE: Final = 1 << 10
"""Size of caches of values derived from streams' terms: this number of recent ones, and as many older ones."""

Kind = TypeVar("Kind")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Context:
    """The streams and tables of a worker's partition, with functions that all families use."""

    streams: HostedStreams
    tables: TableStore
    topic: str
    partition: int
    await_tables: Callable[[Iterable[int]], None] = lambda _: None
    """Waits until the tables of the streams in some slots are loaded."""

    def mechanism(self, slot: int, kind: type[Kind]) -> Kind:
        """Return a stream's mechanism; TypeError if it is not of this class."""
        return _require_kind(self.streams.terms_at(slot).mechanism, kind)

    def calibration(self, slot: int, kind: type[Kind]) -> Kind:
        """Return a stream's calibration; TypeError if it is not of this class."""
        return _require_kind(self.streams.terms_at(slot).calibration, kind)

    def source(self, slot: int, kind: type[Kind]) -> Kind:
        """Return a stream's source; TypeError if it is not of this class."""
        return _require_kind(self.streams.terms_at(slot).source, kind)

    def standing_query(self, slot: int) -> StandingQuery:
        """Return a stream's standing query; TypeError if it has none."""
        standing = self.streams.terms_at(slot).standing
        if standing is None:
            raise TypeError(f"the stream in slot {slot} is not a standing stream")
        return standing

    def derive_words(self, questions: Sequence[AdmittedQuestion], count: int) -> tuple[Words, LowWords]:
        """Derive uniform words for the answers to questions, from the questions' events."""
        return event_words(
            [self.streams.noise.subkey(one.slot, DrawRole.ANSWER) for one in questions],
            self.topic,
            self.partition,
            [one.offset for one in questions],
            [one.payload for one in questions],
            count,
        )

    def answer_noise(self, questions: Sequence[AdmittedQuestion], laws: Sequence[Sampler]) -> list[list[int]]:
        """Draw noise of these laws for each question."""
        words, low = self.derive_words(questions, sum(law.words for law in laws))
        columns = []
        start = 0
        for law in laws:
            end = start + law.words
            columns.append(
                law.draw(words[:, start:end], lambda row, start=start, end=end: low(row)[start:end])  # type: ignore[misc]
            )
            start = end
        return np.stack(columns, axis=1).tolist()  # type: ignore[no-any-return]

    def noisy_rows(self, slot: int, calibration: HypothesisCalibration | EstimateCalibration) -> int:
        """Return the private number of rows, with noise drawn once per stream."""
        law = sampler("two_sided", rows_rate(calibration))
        words, low = round_words([self.streams.noise.subkey(slot, DrawRole.ROWS)], [0], law.words)
        return max(1, self.table(slot).private_row_count + int(law.draw(words, low)[0]))

    def trusts_values(self, slot: int) -> bool:
        """Return True if this stream's queries carry the private values, which are trusted."""
        return self.streams.terms_at(slot).trusts_values

    def source_table(self, slot: int) -> TableSource:
        """Return a stream's table source; Rejection if its source has no table."""
        source = self.streams.terms_at(slot).source
        if not isinstance(source, TableSource):
            raise malformed_rejection("where: this stream's source has no table; send a 'value' instead")
        return source

    def table(self, slot: int) -> CountedTable:
        """Return a stream's private table; TableFreedError if the stream has ended and the table is freed."""
        terms, source = self.streams.terms_at(slot), self.source_table(slot)
        if (known := self.tables.table_in_memory(source, terms.fingerprint)) is not None:
            return known
        if not self.streams.life.can_answer(slot):
            raise TableFreedError
        try:
            return self.tables.get(source, terms.fingerprint, terms.version)
        except ValueError as error:
            raise Rejection("table", f"stream: {error}") from None

    def predicate(self, slot: int, where: str | None, field: str = "where") -> Predicate:
        """Parse a predicate; None means all rows."""
        text = "TRUE" if where is None else where
        return _reject_value_errors(field, lambda: self.tables.predicate(self.source_table(slot), text))

    def count(self, slot: int, where: str | None, field: str = "where") -> int:
        """Return the private true count of a predicate."""
        return _reject_value_errors(field, lambda: self.table(slot).count(self.predicate(slot, where, field)))

    def count_together(self, questions: Iterable[tuple[int, Any]]) -> None:
        """Make each table in a database compute the counts and sums of several questions at once.

        ``questions`` has the slot and the query of each question. A question that is refused adds nothing.
        """
        wanted: dict[CountedTable, tuple[set[Predicate], set[tuple[str, Predicate]]]] = {}
        for slot, query in questions:
            source = self.streams.terms_at(slot).source
            if not isinstance(source, TableSource) or source.engine == "memory":
                continue
            with suppress(Rejection, TableFreedError):
                counts, sums = wanted.setdefault(self.table(slot), (set(), set()))
                for where, summed in _list_measures(query):
                    predicate = conjunction([self.predicate(slot, one) for one in where])
                    counts.add(predicate)
                    sums |= set() if summed is None else {(summed, predicate)}
        for table, (counts, sums) in wanted.items():
            table.count_together(sorted(counts, key=repr), sorted(sums, key=repr))

    def people(self, slot: int, where: str | None, field: str = "where", min_rows: int | None = None) -> int:
        """Return the private true number of people with ``min_rows`` rows that satisfy a predicate."""
        if min_rows is not None and self.source_table(slot).person is None:
            raise malformed_rejection(
                "min_rows: the source declares no person column, so each person has one row; count rows, or declare the column"
            )
        predicate = self.predicate(slot, where, field)
        return _reject_value_errors(field, lambda: self.table(slot).people_count(predicate, min_rows or 1))

    def total(self, slot: int, attribute: str, where: str | None, *, center: int = 0, field: str = "sum") -> int:
        """Return the private true sum of an attribute minus ``center`` for each row."""
        return _reject_value_errors(
            field, lambda: self.table(slot).total(attribute, self.predicate(slot, where), center)
        )

    def to_grid_steps(self, slot: int, number: int, attribute: str | None = None) -> float:
        """Convert a count, or the total of an attribute in its steps, to steps of the stream's grid."""
        steps = self.streams.terms_at(slot).steps_in_one
        if attribute is not None:
            steps *= self.numeric_domain(slot, attribute, "sum").unit
        return float(number if steps == 1 else number * steps)

    def require_row_counts(self, slot: int, field: str) -> None:
        """Refuse counts and sums of rows on a stream whose noise is planned for counts of people only."""
        if getattr(self.streams.terms_at(slot).mechanism, "people", False):
            raise malformed_rejection(
                f"{field}: the stream takes only counts of people; send people beside where, or open a stream without mechanism.people"
            )

    def require_planned_sum(self, slot: int, attribute: str, field: str = "sum") -> None:
        """Refuse a sum that the stream's noise was not planned for."""
        sums: tuple[str, ...] = getattr(self.streams.terms_at(slot).mechanism, "sums", ())
        if attribute not in sums:
            raise malformed_rejection(
                f"{field}: the stream was not opened for sums of this attribute; open one that names it in mechanism.sums"
            )

    def numeric_domain(self, slot: int, attribute: str, field: str) -> Numeric:
        """Return the declared range of an attribute of integers or decimals."""
        source = self.source_table(slot)
        if attribute in source.texts:
            raise malformed_rejection(f"{field}: {private_text_message(attribute)}")
        attributes = source.attributes
        domain = attributes.get(attribute)
        if not isinstance(domain, Numeric):
            numeric = [name for name, one in attributes.items() if isinstance(one, Numeric)]
            raise malformed_rejection(
                f"{field}: {describe_attribute(attribute, attributes)} is no attribute of integers or decimals; {list_declared(numeric)}"
                f"{suggest_name(attribute, numeric)}"
            )
        return domain

    def count_limit(self, slot: int) -> float | None:
        """Return the largest possible count, the number of rows; None if it is private."""
        rows = self.public_rows(slot)
        return None if rows is None else float(rows)

    def public_rows(self, slot: int) -> int | None:
        """Return the table's number of rows if it is public, because neighbors have the same number.

        If one row of each person counts, the result is the number of people plus the number of rows without
        a person. If several rows of a person count, the number of rows is private.
        """
        if not rows_are_public(self.source_table(slot)):
            return None
        self.await_tables((slot,))
        return self.table(slot).public_size


class TermsCache(Generic[Result]):
    """Values that depend on streams' terms alone, for a number of recent terms.

    ``build`` is a function and not a method, because a reference cycle would keep a closed partition's memory.
    """

    def __init__(self, context: Context, build: Callable[[Context, int], Result]) -> None:
        self._context = context
        self._build = build
        self._known: RecentCache[int, Result] = RecentCache(TERMS_CACHE_SIZE)

    def find(self, slot: int) -> Result:
        """Return the value for a stream's terms, from the cache or built again."""
        index = int(self._context.streams.columns.terms_of[slot])
        if (known := self._known.get(index)) is None:
            known = self._build(self._context, slot)
            self._known.put(index, known)
        return known


_UNBATCHED_FORMS: Final = ("people", "group_by", "person_sum", *STATISTICS)


def _list_measures(query: Any) -> Iterator[tuple[tuple[str | None, ...], str | None]]:
    """Yield the conditions of each count or sum of a question, with the summed attribute or None."""
    for part in (query, *(getattr(query, "candidates", None) or ())):
        if any(getattr(part, form, None) for form in _UNBATCHED_FORMS):
            continue
        where = getattr(part, "where", None)
        yield (where,), getattr(part, "sum", None) or getattr(part, "mean", None)
        if (rate := getattr(part, "rate", None)) is not None:
            yield (where, rate), None


def _require_kind(terms: Any, kind: type[Kind]) -> Kind:
    if not isinstance(terms, kind):
        raise TypeError(f"a stream of {kind.__name__} has terms of kind {terms.kind}")
    return terms


def _reject_value_errors(field: str, read: Callable[[], Result]) -> Result:
    """Call ``read``; raise Rejection about ``field`` if it raises ValueError."""
    try:
        return read()
    except ValueError as error:
        raise Rejection("predicate", f"{field}: {error}") from None


def describe_attribute(attribute: str, attributes: Container[str]) -> str:
    """Describe an attribute in a refusal; only declared attributes are named, because refusals are public."""
    return f"attribute {described(attribute)}" if attribute in attributes else "this name"


def list_declared(names: Collection[str]) -> str:
    """List declared names, as part of a refusal."""
    return f"declared are {quote_names(names)}" if names else "none is declared"


def suggest_name(attribute: str, names: Collection[str]) -> str:
    """Return the end of a refusal: a declared name that differs only in case, or an empty text."""
    found = None if attribute in names else find_name_in_other_case(attribute, names)
    return "" if found is None else f"; did you mean {described(found)}?"
