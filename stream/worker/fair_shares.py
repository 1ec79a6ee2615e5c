"""Estimates the work of questions, and divides a partition's work fairly among its streams.

Estimates use public facts alone: a question's text, the declared attributes, the mechanism, and the number
of rows if it is public. They ignore caches and assume that every question corrects a hypothesis. So a worker
that reads the queries again computes the same estimates.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple, Self

from schemas import (
    MAX_CATEGORIES,
    MAX_PREDICATE_LENGTH,
    MAX_UNIVERSE,
    Decimals,
    EstimateCalibration,
    Histogram,
    Integers,
    Laplace,
    Mechanism,
    Pmw,
    RunningCountCalibration,
    SparsePmw,
    SparseProject,
    TableSource,
)
from schemas.queries import STATISTICS
from stream.caches import RecentCache
from stream.privacy.mechanisms.estimator import MAX_CELLS_OF_ONE_ESTIMATE
from stream.privacy.planning.unknown_groups_plans import most_texts_within
from stream.processing.dead_letters import BUSY, Rejection
from stream.worker.families.context import TERMS_CACHE_SIZE, Context, TableFreedError

SECOND: Final = 1_000_000_000
"""One second of work. The unit is a nanosecond of one core of the machine in docs/performance.md."""

ASSUMED_ROWS: Final = 1 << 20
"""Assumed number of rows of a table whose number is private, so that no refusal reveals it."""

ASSUMED_SCANNED_ROWS: Final = 1 << 26
"""Assumed number of rows that a question scans of a table in a database, unless a smaller number is public.

With this number, a hundred counts over two attributes (computed by one scan) fit into a stream's share.
"""

QUESTION_WORK: Final = 60_000
"""Work per question: to resolve it, draw noise, encode the answer and write a checkpoint."""
LISTED_WORK: Final = 40_000
"""Work for each value, cell or candidate that a question lists, and for each number that it requests."""
CHARACTER_WORK: Final = 6_000
"""Work per character of a predicate, to parse and normalize it."""
SCAN_WORK: Final = 0.25
"""Work per row, for each literal of a comparison and each binary digit of a sum."""
GROUPING_WORK: Final = 3.0
"""Work per row, for each attribute of a grouping."""
COMPARISON_WORK: Final = 0.5
"""Work per cell, for each comparison of a predicate."""
TERM_WORK: Final = 1.0
"""Work per cell, for each weighted predicate (JSON field ``terms``)."""
CORRECTION_WORK: Final = 20.0
"""Work per cell of a hypothesis, to correct it and to compute the next question's marginal."""
SMALL_FIT_WORK: Final = 2_500
"""Work to fit a small estimate, per cell."""
LARGE_FIT_WORK: Final = 700
"""Work to fit a large estimate, which takes fewer steps, per cell and ``_LARGE_FIT_ATTRIBUTES`` attributes."""
MARGINAL_WORK: Final = 200
"""Work per cell of a marginal, for noise, counts and their sums."""
SPARSE_CELL_WORK: Final = 1_000
"""Work per cell of a sparse hypothesis."""
RELEASE_WORK: Final = 4.0
"""Work per cell of a release that a question adds up."""
TEXT_WORK: Final = 4_000
"""Work per text and node of a running count of texts; the largest possible number of texts is assumed."""
PROJECTION_WORK: Final = 15.0
"""Work per row of a projection, for each cell of a question."""

PRICING_WORK: Final = 1_500_000
"""Work to choose the noise distribution and the price of a question with a requested error."""

_QUESTIONS_PER_FIT: Final = 10
"""Assumed number of questions between two small fits; a large fit is assumed for each question."""
_LARGE_FIT_ATTRIBUTES: Final = 5
"""Number of attributes that ``LARGE_FIT_WORK`` includes."""
_MIN_CACHED_ESTIMATES: Final = 1 << 13
"""Least number of cached estimates of work, both by text and by text without its numbers."""
_MAX_CACHED_CHARACTERS: Final = 512
"""Longer predicates are not cached."""

_number = re.compile(r"[0-9]+")

_MAX_COMPARED_LITERALS: Final = 8
"""A list of more literals is checked by one lookup, which costs about as much as 8 comparisons."""


class Work(NamedTuple):
    """The work of one question."""

    share: int
    """The work that counts against the share of the question's stream."""

    batch: int
    """The work that counts against the batch, whose questions share the scans of a table in a database."""


@dataclass(frozen=True)
class _TableFacts:
    """Facts of a table that depend on a stream's terms alone."""

    rows: int
    """Assumed number of rows for the work of each question."""

    scanned_rows: int
    """Assumed number of rows that a question scans if it is alone in its batch."""

    attribute_sizes: Sequence[tuple[str, int]]
    universe: int

    @cached_property
    def names_have_digits(self) -> bool:
        """True if the name of any attribute has a digit."""
        return any(_number.search(name) for name, _ in self.attribute_sizes)


class WorkEstimator:
    """Estimates the work of questions from public facts."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._facts: RecentCache[int, _TableFacts] = RecentCache(TERMS_CACHE_SIZE)
        self._estimates: RecentCache[tuple[Any, ...], float] = RecentCache(_MIN_CACHED_ESTIMATES)

    def estimate(self, slot: int, query: Any) -> Work:
        """Estimate the work of one question."""
        number = int(self._context.streams.columns.terms_of[slot])
        terms = self._context.streams.terms[number]
        texts = _list_predicates(query)
        alone = 0.0
        listed = sum(map(len, filter(None, (query.values, query.candidates, query.cells))))
        work = float(QUESTION_WORK + LISTED_WORK * listed + CHARACTER_WORK * sum(map(len, texts)))
        if query.alpha is not None:
            work += PRICING_WORK
        if isinstance(terms.calibration, RunningCountCalibration) and terms.calibration.most_bytes is not None:
            work += TEXT_WORK * terms.calibration.nodes * most_texts_within(terms.calibration.most_bytes)
        if isinstance(terms.source, TableSource):
            facts = self._facts.get(number) or self._facts_of(slot, number, terms.source)
            if isinstance(terms.calibration, EstimateCalibration):
                work += self._cached_fit_work(number, terms.calibration, query, texts, facts)
                return Work(int(work), int(work))
            work += _cell_work(terms.mechanism, terms.calibration.cutoff, query, texts, facts)
            if not isinstance(terms.mechanism, Histogram | SparsePmw | SparseProject):
                row_work = _row_work(terms.source, query, texts)
                work += facts.rows * row_work
                alone = (facts.scanned_rows - facts.rows) * row_work
            if isinstance(terms.mechanism, Laplace) and query.group_by is not None:
                declared = terms.source.attributes
                sizes = [declared[name].size for name in query.group_by if name in declared]
                work += LISTED_WORK * min(math.prod(sizes), MAX_CATEGORIES)
        return Work(int(work + alone), int(work))

    def _cached_fit_work(
        self, number: int, calibration: EstimateCalibration, query: Any, texts: Sequence[str], facts: _TableFacts
    ) -> float:
        """Estimate the work of a question to a stream with an estimate; predicates that differ only in numbers share it."""
        statistic = _statistic_attribute(query)
        named = (query.sum, query.mean, statistic, *(query.group_by or ()))
        fields = tuple(name for name in named if name is not None)
        grouped = query.group_by is not None or statistic is not None
        if query.alpha is not None:
            return _fit_work(calibration, fields, texts, facts, grouped=grouped, alone=True)
        if facts.names_have_digits or len(texts) != 1 or len(texts[0]) > _MAX_CACHED_CHARACTERS:
            return _fit_work(calibration, fields, texts, facts, grouped=grouped)
        text_key = (number, facts.rows, texts[0], fields, grouped)
        if (known := self._estimates.get(text_key)) is None:
            shape_key = (number, facts.rows, _number.sub("0", texts[0]), fields, grouped)
            if (known := self._estimates.get(shape_key)) is None:
                known = _fit_work(calibration, fields, texts, facts, grouped=grouped)
                self._estimates.put(shape_key, known)
            self._estimates.put(text_key, known)
        return known

    def _facts_of(self, slot: int, number: int, source: TableSource) -> _TableFacts:
        mechanism = self._context.streams.terms_at(slot).mechanism
        named = [(name.replace('"', '""').casefold(), domain.size) for name, domain in source.attributes.items()]
        universe = math.prod(source.attributes[name].size for name in getattr(mechanism, "attributes", ()))
        try:
            rows = self._context.public_rows(slot)
        except (Rejection, TableFreedError):
            # This worker does not have the table, or the stream has ended, so the question will not be answered.
            return _TableFacts(*_assumed_rows(source, None), named, universe)
        found = _TableFacts(*_assumed_rows(source, rows), named, universe)
        self._facts.put(number, found)
        return found


def _assumed_rows(source: TableSource, public_rows: int | None) -> tuple[int, int]:
    """Return the assumed number of rows, and the number that a question scans if it is alone in its batch."""
    if source.engine == "memory":
        rows = ASSUMED_ROWS if public_rows is None else public_rows
        return rows, rows
    known = ASSUMED_SCANNED_ROWS if public_rows is None else min(public_rows, ASSUMED_SCANNED_ROWS)
    return min(known, ASSUMED_ROWS), known


def _list_predicates(query: Any) -> list[str]:
    """List the predicates of a question, except those too long to be parsed."""
    texts = [text for text in (query.where, query.rate) if text is not None]
    if query.terms is not None or query.candidates is not None:
        parts = (*(query.terms or ()), *(query.candidates or ()))
        texts += [part.where for part in parts if part.where is not None]
    return [text for text in texts if len(text) <= MAX_PREDICATE_LENGTH]


def _count_comparisons(text: str) -> int:
    """Return an upper bound on the number of comparisons in a predicate."""
    folded = text.casefold()
    return 1 + folded.count("and") + folded.count("or")


def _row_work(source: TableSource, query: Any, texts: Sequence[str]) -> float:
    work = 0.0
    for text in texts:
        leaves = _count_comparisons(text)
        work += SCAN_WORK * min(2 * (leaves + text.count(",")), _MAX_COMPARED_LITERALS * leaves)
    # For each matching row, its person is looked up.
    work += GROUPING_WORK * [query.people, *(one.people for one in query.candidates or ())].count(True)
    if query.person_sum is not None:
        work += 2 * GROUPING_WORK  # the rows of each person are added up
    sums = [query.sum, query.mean, *(one.sum for one in query.candidates or ())]
    domains = [source.attributes.get(name) for name in sums if name is not None]
    work += SCAN_WORK * sum((one.size - 1).bit_length() for one in domains if isinstance(one, Integers | Decimals))
    # A rate needs two counts: of its hits and of all rows.
    times = 1 if query.rate is None else 2
    grouped = len(query.group_by or ()) + (_statistic_attribute(query) is not None)
    return work + (times * GROUPING_WORK * (1 + grouped) if grouped else 0.0)


def _statistic_attribute(query: Any) -> str | None:
    """Return the attribute of a quantile, variance or deviation: its counts give the statistic."""
    return next((name for form in STATISTICS if (name := getattr(query, form)) is not None), None)


def _fit_work(
    calibration: EstimateCalibration,
    fields: Sequence[str],
    texts: Sequence[str],
    facts: _TableFacts,
    *,
    grouped: bool,
    alone: bool = False,
) -> float:
    named = _named_sizes([*texts, *(name.replace('"', '""') for name in fields)], facts)
    cells = min(facts.universe, math.prod(named), MAX_UNIVERSE)
    # A question with a requested error may be measured alone, so that the next question needs a new fit.
    served = 1 if alone else _QUESTIONS_PER_FIT
    if facts.universe <= MAX_CELLS_OF_ONE_ESTIMATE:
        # All questions share one estimate of all cells, which is fitted at first and after each charge.
        fits = (calibration.cutoff + 1) / max(calibration.expected_queries, calibration.cutoff + 1)
        work = SMALL_FIT_WORK * facts.universe * (1.0 if alone else fits)
    elif cells <= MAX_CELLS_OF_ONE_ESTIMATE:
        work = SMALL_FIT_WORK * cells / served
    else:
        work = LARGE_FIT_WORK * cells * max(1.0, len(named) / _LARGE_FIT_ATTRIBUTES)
    measured = (MARGINAL_WORK * cells + GROUPING_WORK * facts.rows * (1 + len(named))) / (
        1 if cells > MAX_CELLS_OF_ONE_ESTIMATE else served
    )
    weights_work = cells * sum(TERM_WORK + COMPARISON_WORK * _count_comparisons(text) for text in texts)
    return work + measured + weights_work + (LISTED_WORK * min(cells, MAX_CATEGORIES) if grouped else 0.0)


def _cell_work(mechanism: Mechanism, cutoff: int, query: Any, texts: Sequence[str], facts: _TableFacts) -> float:
    match mechanism:
        case Pmw():
            return CORRECTION_WORK * facts.universe + _evaluation_work(texts, facts, TERM_WORK)
        case Histogram() if query.cells is None:
            return RELEASE_WORK * facts.universe + _evaluation_work(texts, facts, 0.0)
        case SparsePmw(sparsity=sparsity):
            return float(SPARSE_CELL_WORK * min(facts.universe, cutoff * sparsity))
        case SparseProject(projections=projections):
            return PROJECTION_WORK * projections * len(query.cells or ())
    return 0.0


def _evaluation_work(texts: Sequence[str], facts: _TableFacts, term_work: float) -> float:
    cells = min(facts.universe, math.prod(_named_sizes(texts, facts)))
    return cells * sum(term_work + COMPARISON_WORK * _count_comparisons(text) for text in texts)


def _named_sizes(texts: Sequence[str], facts: _TableFacts) -> list[int]:
    """Return the sizes of the attributes that texts may name."""
    folded = " ".join(texts).casefold()
    return [size for name, size in facts.attribute_sizes if name in folded]


_MILLISECONDS: Final = 1000


class Limits(NamedTuple):
    """The most outstanding work that a partition admits; 0 means no limit."""

    outstanding: int
    rate: int
    """Work that is served per millisecond of the partition's clock."""

    @classmethod
    def from_seconds(cls, outstanding: float, rate: float) -> Self:
        """Convert seconds of outstanding work, and seconds of work that are served per second."""
        return cls(round(outstanding * SECOND), max(1, round(rate * SECOND / _MILLISECONDS)))


NO_LIMITS: Final = Limits(0, 1)


class Shares:
    """The outstanding work of the streams of one partition, served in equal shares.

    ``served`` is a virtual time: the work that a stream would have been served so far if it had always been
    busy. ``due`` has, for each busy stream, the value of ``served`` at which its outstanding work will be
    done. ``served`` and each entry of ``due`` never decrease. ``queue`` orders streams by ``due``.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.clock = 0
        self.served = 0
        self.due: dict[int, int] = {}
        self._outstanding = 0
        self.queue: list[tuple[int, int]] = []

    def resume(self, clock: int, served: int, due: Mapping[int, int]) -> None:
        """Restore the shares from the changelog."""
        self.clock, self.served = clock, served
        self.due = {slot: one for slot, one in due.items() if one > served}
        self.queue = sorted((one, slot) for slot, one in self.due.items())
        self._outstanding = sum(self.due.values()) - served * len(self.due)

    def forget(self, slot: int) -> None:
        """Forget a retired stream's outstanding work."""
        if (due := self.due.pop(slot, None)) is not None:
            self._outstanding -= due - self.served

    def copy(self) -> Shares:
        """Return an independent copy."""
        found = copy(self)
        found.due, found.queue = self.due.copy(), self.queue.copy()
        return found

    def admit(self, slot: int, work: int, timestamp: int) -> None:
        """Admit a question of a stream; Rejection if its work would exceed the limit and other work is outstanding."""
        limit = self._limits.outstanding
        if limit == 0:
            return
        self._serve_until(timestamp)
        due = self.due.get(slot, self.served)
        stream_work = due - self.served
        excess = stream_work + work - (limit - self._outstanding - work)
        if self._outstanding and excess > 0:
            raise self._busy_rejection(stream_work, work, excess)
        self.due[slot] = due + work
        self._outstanding += work
        heapq.heappush(self.queue, (due + work, slot))

    def _serve_until(self, timestamp: int) -> None:
        """Serve the streams up to a time; a time before the last one has no effect."""
        work = (timestamp - self.clock) * self._limits.rate
        if work <= 0:
            return
        self.clock = timestamp
        while self.queue:
            due, slot = self.queue[0]
            if due == self.due.get(slot):
                active = len(self.due)
                step = min(due - self.served, work // active)
                self.served += step
                self._outstanding -= step * active
                work -= step * active
                if self.served < due:
                    return
                del self.due[slot]
            heapq.heappop(self.queue)

    def _busy_rejection(self, stream_work: int, work: int, excess: int) -> Rejection:
        # Both the stream's and the partition's outstanding work shrink while the client waits.
        active = len(self.due)
        pace = self._limits.rate * (active + (stream_work > 0))
        wait = min(excess * active // pace, self._outstanding // self._limits.rate) // _MILLISECONDS + 1
        return Rejection(
            BUSY,
            f"stream: this question would add {1000 * work / SECOND:.1f} ms to {stream_work / SECOND:.1f} s of outstanding work; "
            f"its partition has {self._outstanding / SECOND:.1f} s of at most {self._limits.outstanding / SECOND:g} s, and a stream's "
            f"work must not exceed the room that is left; ask again in {wait} s",
        )
