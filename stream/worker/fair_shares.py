"""Estimates the work of questions, and divides a partition's work fairly among its streams.

Estimates use public facts alone: a question's text, the declared attributes, the mechanism, and
the number of rows if it is public. They ignore caches and assume that every question corrects a
hypothesis. So they are near the worst case, and equal whenever the log is read again.
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
    SparsePmw,
    SparseProject,
    TableSource,
)
from schemas.queries import STATISTICS
from stream.privacy.mechanisms.estimator import WHOLE_CELLS
from stream.processing.dead_letters import BUSY, Rejection
from stream.tables.cache import RecentCache
from stream.worker.families.family import Context, TableLetGoError

SECOND: Final = 1_000_000_000
"""Units of work per second: nanoseconds of one core of the machine in docs/performance.md."""

PRIVATE_ROWS: Final = 1 << 20
"""Assumed number of rows if it is private, so that a refusal does not reveal it."""

QUESTION: Final = 60_000
"""Per question: resolving, drawing, encoding, its checkpoint."""
LISTED: Final = 40_000
"""Per listed value, cell or candidate, and per requested number."""
CHARACTER: Final = 6_000
"""Per character of a predicate: parsing and normalization."""
SCAN: Final = 0.25
"""Per row, for each literal of a comparison and each binary digit of a sum."""
GROUPED: Final = 3.0
"""Per row, for each attribute of a grouping."""
LEAF: Final = 0.5
"""Per cell, for each comparison of a predicate."""
WEIGHED: Final = 1.0
"""Per cell, for each weighted term."""
CORRECTED: Final = 20.0
"""Per cell of a hypothesis: a correction, and the next question's marginal."""
FITTED: Final = 2_500
"""Per cell of a small estimate: the steps of its fit."""
FITTED_WIDE: Final = 700
"""Per cell of a large estimate, whose fit takes fewer steps, for each ``_AXES`` attributes."""
MEASURED: Final = 200
"""Per cell of a marginal: its noise, its counts and their sums."""
NAMED: Final = 1_000
"""Per cell of a sparse hypothesis."""
RELEASED: Final = 4.0
"""Per cell of a release in a sum."""
PROJECTED: Final = 15.0
"""Per row of a projection, for each cell."""

PRICED: Final = 1_500_000
"""Noise distribution and price of a question with a requested error."""

_SERVED: Final = 10
"""Assumed number of questions that share a small fit; a large fit serves one question."""

_AXES: Final = 5
"""Attributes included in ``FITTED_WIDE``; a fit visits each cell once per attribute."""

_REMEMBERED: Final = 1 << 13
"""Least number of cached estimates of work, by question and by shape."""
_LONGEST_REMEMBERED: Final = 512

_number = re.compile(r"[0-9]+")

_LITERALS_AT_MOST: Final = 8
"""Longer lists of literals take one lookup, which costs about as much as 8 comparisons."""


@dataclass(frozen=True)
class _Facts:
    """Facts of a table that all questions on the same terms share."""

    rows: int
    named: Sequence[tuple[str, int]]
    universe: int

    @cached_property
    def numbered(self) -> bool:
        """Whether an attribute's name has a digit in it."""
        return any(_number.search(name) for name, _ in self.named)


class Workload:
    """Estimates the work of questions from public facts."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._facts: dict[int, _Facts] = {}
        self._estimates: RecentCache[tuple[Any, ...], float] = RecentCache(_REMEMBERED)

    def estimate(self, slot: int, query: Any) -> int:
        """Estimate the work of one question."""
        number = int(self._context.streams.columns.terms_of[slot])
        terms = self._context.streams.terms[number]
        texts = _predicates(query)
        work = float(QUESTION + LISTED * _listed(query) + CHARACTER * sum(map(len, texts)))
        if query.alpha is not None:
            work += PRICED
        if isinstance(terms.source, TableSource):
            facts = self._facts.get(number) or self._facts_of(slot, number, terms.source)
            if isinstance(terms.calibration, EstimateCalibration):
                return int(work + self._estimated(number, terms.calibration, query, texts, facts))
            work += _over_cells(terms.mechanism, terms.calibration.cutoff, query, texts, facts)
            if not isinstance(terms.mechanism, Histogram | SparsePmw | SparseProject):
                work += facts.rows * _passes(terms.source, query, texts)
            if isinstance(terms.mechanism, Laplace) and query.group_by is not None:
                sizes = [
                    terms.source.attributes[name].size
                    for name in query.group_by
                    if name in terms.source.attributes
                ]
                work += LISTED * min(math.prod(sizes), MAX_CATEGORIES)
        return int(work)

    def _estimated(
        self, number: int, calibration: EstimateCalibration, query: Any, texts: Sequence[str], facts: _Facts
    ) -> float:
        """Estimate the work of an estimate's question; cached for texts with other numbers."""
        statistic = _statistic(query)
        named = (query.sum, query.mean, statistic, *(query.group_by or ()))
        fields = tuple(name for name in named if name is not None)
        grouped = query.group_by is not None or statistic is not None
        if query.alpha is not None:
            return _estimated(calibration, fields, texts, facts, grouped=grouped, alone=True)
        if facts.numbered or len(texts) != 1 or len(texts[0]) > _LONGEST_REMEMBERED:
            return _estimated(calibration, fields, texts, facts, grouped=grouped)
        written = (number, facts.rows, texts[0], fields, grouped)
        if (known := self._estimates.get(written)) is None:
            shape = (number, facts.rows, _number.sub("0", texts[0]), fields, grouped)
            if (known := self._estimates.get(shape)) is None:
                known = _estimated(calibration, fields, texts, facts, grouped=grouped)
                self._estimates.put(shape, known)
            self._estimates.put(written, known)
        return known

    def _facts_of(self, slot: int, number: int, source: TableSource) -> _Facts:
        mechanism = self._context.streams.terms_at(slot).mechanism
        named = [(name.replace('"', '""').casefold(), domain.size) for name, domain in source.attributes.items()]
        universe = math.prod(source.attributes[name].size for name in getattr(mechanism, "attributes", ()))
        try:
            rows = self._context.public_rows(slot)
        except (Rejection, TableLetGoError):
            # This worker lacks the table, or the stream has ended: it will not answer.
            return _Facts(PRIVATE_ROWS, named, universe)
        found = self._facts[number] = _Facts(PRIVATE_ROWS if rows is None else rows, named, universe)
        return found


def _listed(query: Any) -> int:
    if query.values is None and query.candidates is None and query.cells is None:
        return 0
    return sum(len(part) for part in (query.values, query.candidates, query.cells) if part is not None)


def _predicates(query: Any) -> list[str]:
    """List the predicates of a question, without overlong ones, which are never parsed."""
    texts = [text for text in (query.where, query.rate) if text is not None]
    if query.terms is not None or query.candidates is not None:
        parts = (*(query.terms or ()), *(query.candidates or ()))
        texts += [part.where for part in parts if part.where is not None]
    return [text for text in texts if len(text) <= MAX_PREDICATE_LENGTH]


def _leaves(text: str) -> int:
    """Return an upper bound on the number of comparisons in a predicate."""
    folded = text.casefold()
    return 1 + folded.count("and") + folded.count("or")


def _passes(source: TableSource, query: Any, texts: Sequence[str]) -> float:
    """Estimate the work per row of counting, summing or grouping."""
    work = 0.0
    for text in texts:
        leaves = _leaves(text)
        work += SCAN * min(2 * (leaves + text.count(",")), _LITERALS_AT_MOST * leaves)
    # People with a matching row are looked up row by row.
    work += GROUPED * [query.people, *(one.people for one in query.candidates or ())].count(True)
    if query.person_sum is not None:
        # A person's sum is added up row by row.
        work += 2 * GROUPED
    sums = [query.sum, query.mean, *(one.sum for one in query.candidates or ())]
    work += SCAN * sum(_digits(source.attributes, name) for name in sums if name is not None)
    # A rate counts twice: hits and all rows.
    times = 1 if query.rate is None else 2
    grouped = len(query.group_by or ()) + (_statistic(query) is not None)
    return work + (times * GROUPED * (1 + grouped) if grouped else 0.0)


def _statistic(query: Any) -> str | None:
    """Return the attribute of a quantile, variance or deviation, which are read off its counts."""
    return next((name for form in STATISTICS if (name := getattr(query, form)) is not None), None)


def _digits(attributes: Mapping[str, Any], name: str) -> int:
    domain = attributes.get(name)
    return (domain.size - 1).bit_length() if isinstance(domain, Integers | Decimals) else 0


def _estimated(
    calibration: EstimateCalibration,
    fields: Sequence[str],
    texts: Sequence[str],
    facts: _Facts,
    *,
    grouped: bool,
    alone: bool = False,
) -> float:
    """Estimate the work of a fit, a marginal and the weights over the attributes' cells."""
    folded = " ".join([*texts, *(name.replace('"', '""') for name in fields)]).casefold()
    named = [size for name, size in facts.named if name in folded]
    cells = min(facts.universe, math.prod(named), MAX_UNIVERSE)
    # A question with a requested error may be measured alone, so that the next needs a new fit.
    served = 1 if alone else _SERVED
    if facts.universe <= WHOLE_CELLS:
        # All questions share one estimate of all cells, fitted at first and after each ⊤ (charge).
        fits = (calibration.cutoff + 1) / max(calibration.expected_queries, calibration.cutoff + 1)
        work = FITTED * facts.universe * (1.0 if alone else fits)
    elif cells <= WHOLE_CELLS:
        work = FITTED * cells / served
    else:
        work = FITTED_WIDE * cells * max(1.0, len(named) / _AXES)
    measured = (MEASURED * cells + GROUPED * facts.rows * (1 + len(named))) / (
        1 if cells > WHOLE_CELLS else served
    )
    written = cells * sum(WEIGHED + LEAF * _leaves(text) for text in texts)
    return work + measured + written + (LISTED * min(cells, MAX_CATEGORIES) if grouped else 0.0)


def _over_cells(mechanism: Mechanism, cutoff: int, query: Any, texts: Sequence[str], facts: _Facts) -> float:
    """Estimate the work over the cells of a hypothesis, a release or a projection."""
    match mechanism:
        case Pmw():
            return CORRECTED * facts.universe + _evaluated(texts, facts, WEIGHED)
        case Histogram() if query.cells is None:
            return RELEASED * facts.universe + _evaluated(texts, facts, 0.0)
        case SparsePmw(sparsity=sparsity):
            return float(NAMED * min(facts.universe, cutoff * sparsity))
        case SparseProject(projections=projections):
            return PROJECTED * projections * len(query.cells or ())
    return 0.0


def _evaluated(texts: Sequence[str], facts: _Facts, weighed: float) -> float:
    """Estimate the evaluation of predicates on all cells of the attributes that they may name."""
    folded = " ".join(texts).casefold()
    cells = min(facts.universe, math.prod(size for name, size in facts.named if name in folded))
    return cells * sum(weighed + LEAF * _leaves(text) for text in texts)


_MILLISECONDS: Final = 1000


class Limits(NamedTuple):
    """The most outstanding work that a partition admits; 0 means no limit."""

    outstanding: int
    rate: int
    """Work per millisecond of the partition's clock."""

    @classmethod
    def of(cls, outstanding: float, rate: float) -> Self:
        """Convert seconds of work, and seconds of work per second."""
        return cls(round(outstanding * SECOND), max(1, round(rate * SECOND / _MILLISECONDS)))


NO_LIMITS: Final = Limits(0, 1)


class Shares:
    """The outstanding work of the streams of one partition, served in equal shares.

    ``served`` is a virtual time: the work served so far to a stream that was always busy. ``due``
    has, for each busy stream, the value of ``served`` at which its outstanding work will be done.
    Neither ever decreases. ``queue`` orders streams by ``due``.
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

    def copy(self) -> Shares:
        """Return an independent copy."""
        found = copy(self)
        found.due, found.queue = self.due.copy(), self.queue.copy()
        return found

    def admit(self, slot: int, work: int, timestamp: int) -> None:
        """Admit a question of a stream; Rejection if there is no room for its work.

        A question that exceeds the limit is admitted if no work is outstanding.
        """
        limit = self._limits.outstanding
        if limit == 0:
            return
        self._advance(timestamp)
        due = self.due.get(slot, self.served)
        own = due - self.served
        excess = own + work - (limit - self._outstanding - work)
        if self._outstanding and excess > 0:
            raise self._busy(own, work, excess)
        self.due[slot] = due + work
        self._outstanding += work
        heapq.heappush(self.queue, (due + work, slot))

    def _advance(self, timestamp: int) -> None:
        """Serve the streams up to a time; an earlier time has no effect."""
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

    def _busy(self, own: int, work: int, excess: int) -> Rejection:
        # Both the stream's and the partition's outstanding work shrink while the client waits.
        active = len(self.due)
        pace = self._limits.rate * (active + (own > 0))
        wait = min(excess * active // pace, self._outstanding // self._limits.rate) // _MILLISECONDS + 1
        return Rejection(
            BUSY,
            f"stream: it has {own / SECOND:.1f} s of work outstanding and its partition {self._outstanding / SECOND:.1f} s "
            f"of at most {self._limits.outstanding / SECOND:g} s; this question would take {1000 * work / SECOND:.1f} ms; "
            f"ask it again in {wait} s; a stream may have as much as its partition has left",
        )
