"""What a question costs, told before it is worked on.

From public facts alone: the text of the question, the declared attributes, the mechanism, and the number of rows where
that is public. Caches are left out of account, and a hypothesis is taken to be corrected by every question, so that the
figure is about the most that a question can cost, and the same for whoever reads the log again.
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
from stream.privacy.mechanisms.estimator import WHOLE_CELLS
from stream.processing.dead_letters import BUSY, Rejection
from stream.tables.cache import RecentCache
from stream.worker.families.family import Context, TableLetGoError

SECOND: Final = 1_000_000_000
"""Work is counted in nanoseconds of one core of the machine that docs/performance.md is measured on."""

PRIVATE_ROWS: Final = 1 << 20
"""So many rows a table is taken to have where their number is private: a refusal must not tell of it."""

QUESTION: Final = 60_000
"""A question as such: resolving, drawing, encoding, its checkpoint."""
LISTED: Final = 40_000
"""Each value, cell or candidate that a question lists, and each number that it asks for."""
CHARACTER: Final = 6_000
"""Each character of a predicate: reading it, and bringing it to normal form."""
SCAN: Final = 0.25
"""Each row, for each literal that an attribute is compared with, and each binary digit of a sum."""
GROUPED: Final = 3.0
"""Each row, for each attribute that it is grouped by."""
LEAF: Final = 0.5
"""Each cell, for each comparison of a predicate over cells."""
WEIGHED: Final = 1.0
"""Each cell, for each term that is weighed over cells."""
CORRECTED: Final = 20.0
"""Each cell of a hypothesis: a correction, and the next question's marginal."""
FITTED: Final = 2_500
"""Each cell of an estimate of few cells: the steps of its fit."""
FITTED_WIDE: Final = 700
"""Each cell of an estimate of many cells, whose fit takes fewer steps, for each ``_AXES`` attributes."""
MEASURED: Final = 200
"""Each cell of a marginal: its noise, its counts and their sums."""
NAMED: Final = 1_000
"""Each cell that a sparse hypothesis may have named."""
RELEASED: Final = 4.0
"""Each cell of a release that is summed over."""
PROJECTED: Final = 15.0
"""Each row of a projection, for each cell."""

PRICED: Final = 1_500_000
"""The law of the noise that a question with a wanted error is given by itself, and its price."""

_SERVED: Final = 10
"""So many questions about the same attributes are taken to be served by one fit of few cells; a large one is each question's own."""

_AXES: Final = 5
"""A fit goes over the cells once for each attribute; so many are in the figure for a cell."""

_REMEMBERED: Final = 1 << 13
"""Questions, and shapes of questions, whose work is remembered at least."""
_LONGEST_REMEMBERED: Final = 512

_number = re.compile(r"[0-9]+")

_LITERALS_AT_MOST: Final = 8
"""Longer lists of literals are looked up in one pass, which costs about as much as so many comparisons."""


@dataclass(frozen=True)
class _Facts:
    """What does not change between the questions of streams of the same terms."""

    rows: int
    named: Sequence[tuple[str, int]]
    universe: int

    @cached_property
    def numbered(self) -> bool:
        """Whether a name has a digit in it."""
        return any(_number.search(name) for name, _ in self.named)


class Workload:
    """What the questions of a partition's streams cost."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._facts: dict[int, _Facts] = {}
        self._estimates: RecentCache[tuple[Any, ...], float] = RecentCache(_REMEMBERED)

    def of(self, slot: int, query: Any) -> int:
        """The work of one question, in units of work."""
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
        """The work of an estimate, which numbers have no part in: texts that differ in them alone have the same."""
        fields: tuple[str, ...] = ()
        if query.sum is not None or query.mean is not None or query.group_by is not None:
            fields = tuple(name for name in (query.sum, query.mean, *(query.group_by or ())) if name is not None)
        grouped = query.group_by is not None
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
            # This worker lacks the table and answers nothing for it; another that has it may. Or nobody answers for it any more.
            return _Facts(PRIVATE_ROWS, named, universe)
        found = self._facts[number] = _Facts(PRIVATE_ROWS if rows is None else rows, named, universe)
        return found


def _listed(query: Any) -> int:
    if query.values is None and query.candidates is None and query.cells is None:
        return 0
    return sum(len(part) for part in (query.values, query.candidates, query.cells) if part is not None)


def _predicates(query: Any) -> list[str]:
    """The predicates of a question but for those that are too long: they are refused unread."""
    texts = [] if query.where is None else [query.where]
    if query.terms is not None or query.candidates is not None:
        parts = (*(query.terms or ()), *(query.candidates or ()))
        texts += [part.where for part in parts if part.where is not None]
    return [text for text in texts if len(text) <= MAX_PREDICATE_LENGTH]


def _leaves(text: str) -> int:
    """At least as many comparisons as a predicate has."""
    folded = text.casefold()
    return 1 + folded.count("and") + folded.count("or")


def _passes(source: TableSource, query: Any, texts: Sequence[str]) -> float:
    """The work per row of counting, summing or grouping."""
    work = 0.0
    for text in texts:
        leaves = _leaves(text)
        work += SCAN * min(2 * (leaves + text.count(",")), _LITERALS_AT_MOST * leaves)
    # Who has a row within is looked up row by row.
    work += GROUPED * [query.people, *(one.people for one in query.candidates or ())].count(True)
    sums = [query.sum, query.mean, *(one.sum for one in query.candidates or ())]
    work += SCAN * sum(_digits(source.attributes, name) for name in sums if name is not None)
    return work + (GROUPED * (1 + len(query.group_by)) if query.group_by is not None else 0.0)


def _digits(attributes: Mapping[str, Any], name: str) -> int:
    domain = attributes.get(name)
    return (domain.size - 1).bit_length() if isinstance(domain, Integers) else 0


def _estimated(
    calibration: EstimateCalibration,
    fields: Sequence[str],
    texts: Sequence[str],
    facts: _Facts,
    *,
    grouped: bool,
    alone: bool = False,
) -> float:
    """The work of a fit, of a marginal, and of writing a question out over the cells of the attributes that it names."""
    folded = " ".join([*texts, *(name.replace('"', '""') for name in fields)]).casefold()
    named = [size for name, size in facts.named if name in folded]
    cells = min(facts.universe, math.prod(named), MAX_UNIVERSE)
    # What a question with a wanted error has measured by itself has the next one fitted anew.
    served = 1 if alone else _SERVED
    if facts.universe <= WHOLE_CELLS:
        # One estimate of all cells for every question, fitted once for each ⊤ and once before.
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
    """The work over the cells of a hypothesis, a release or a projection."""
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
    """The work of writing out which cells satisfy predicates, over the attributes that they can be about."""
    folded = " ".join(texts).casefold()
    cells = min(facts.universe, math.prod(size for name, size in facts.named if name in folded))
    return cells * sum(weighed + LEAF * _leaves(text) for text in texts)


_MILLISECONDS: Final = 1000


class Limits(NamedTuple):
    """How much work a partition takes on, in units of work; an ``outstanding`` of 0 takes on everything."""

    outstanding: int
    rate: int
    """Work per millisecond of the partition's clock."""

    @classmethod
    def of(cls, outstanding: float, rate: float) -> Self:
        """Limits from seconds of work, and seconds of work per second."""
        return cls(round(outstanding * SECOND), max(1, round(rate * SECOND / _MILLISECONDS)))


UNLIMITED: Final = Limits(0, 1)
"""Takes on everything."""


class Shares:
    """The work that the streams of one partition have outstanding.

    ``served`` is how much work a stream would have been served that always had some outstanding, ``due`` of a stream that
    has some what that will be when its work is done. Both only ever grow. ``queue`` has these streams in the order in
    which their work is done.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.clock = 0
        self.served = 0
        self.due: dict[int, int] = {}
        self._outstanding = 0
        self.queue: list[tuple[int, int]] = []

    def resume(self, clock: int, served: int, due: Mapping[int, int]) -> None:
        """Go on from the changelog's figures."""
        self.clock, self.served = clock, served
        self.due = {slot: one for slot, one in due.items() if one > served}
        self.queue = sorted((one, slot) for slot, one in self.due.items())
        self._outstanding = sum(self.due.values()) - served * len(self.due)

    def copy(self) -> Shares:
        """Shares that can be tried out; these here stay as they are."""
        found = copy(self)
        found.due, found.queue = self.due.copy(), self.queue.copy()
        return found

    def take(self, slot: int, work: int, timestamp: int) -> None:
        """Take on a question of a stream; Rejection if there is no room for it.

        A question that is larger than the room there ever is for one stream is taken on when nothing is outstanding.
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
        """Serve the streams up to a time; time does not go back."""
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
        # What the stream has outstanding and what all have shrink together, but for the stream's part in the rate.
        active = len(self.due)
        pace = self._limits.rate * (active + (own > 0))
        wait = min(excess * active // pace, self._outstanding // self._limits.rate) // _MILLISECONDS + 1
        return Rejection(
            BUSY,
            f"stream: it has {own / SECOND:.1f} s of work outstanding and its partition {self._outstanding / SECOND:.1f} s "
            f"of at most {self._limits.outstanding / SECOND:g} s; this question would take {1000 * work / SECOND:.1f} ms; "
            f"ask it again in {wait} s, and spread questions out",
        )
