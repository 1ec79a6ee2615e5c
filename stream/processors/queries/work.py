"""What a question costs, told before it is worked on.

From public facts alone: the text of the question, the declared attributes, the mechanism, and the number of rows where
that is public. Caches are left out of account, and a hypothesis is taken to be corrected by every question, so that the
figure is about the most that a question can cost, and the same for whoever reads the log again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

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
from stream.mechanisms.estimator import WHOLE_CELLS
from stream.processors.queries.families.base import Context
from stream.processors.rejections import Rejection

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

_SERVED: Final = 10
"""So many questions about the same attributes are taken to be served by one fit of few cells; a large one is each question's own."""

_AXES: Final = 5
"""A fit goes over the cells once for each attribute; so many are in the figure for a cell."""

_LITERALS_AT_MOST: Final = 8
"""Longer lists of literals are looked up in one pass, which costs about as much as so many comparisons."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What does not change between the questions of streams of the same terms."""

    rows: int
    named: Sequence[tuple[str, int]]
    universe: int


class Workload:
    """What the questions of a partition's streams cost."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._facts: dict[int, _Facts] = {}

    def of(self, slot: int, query: Any) -> int:
        """The work of one question, in units of work."""
        terms = self._context.streams.terms_at(slot)
        # A longer predicate is refused unread.
        texts = [text for text in _predicates(query) if len(text) <= MAX_PREDICATE_LENGTH]
        listed = sum(len(part) for part in (query.values, query.candidates, query.cells) if part is not None)
        work = float(QUESTION + LISTED * listed + CHARACTER * sum(map(len, texts)))
        if isinstance(terms.source, TableSource):
            facts = self._facts_of(slot, terms.source)
            if isinstance(terms.calibration, EstimateCalibration):
                return int(work + _estimated(terms.calibration, query, texts, facts))
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

    def _facts_of(self, slot: int, source: TableSource) -> _Facts:
        number = int(self._context.streams.columns.terms_of[slot])
        if (known := self._facts.get(number)) is not None:
            return known
        mechanism = self._context.streams.terms_at(slot).mechanism
        named = [(name.replace('"', '""').casefold(), domain.size) for name, domain in source.attributes.items()]
        universe = math.prod(source.attributes[name].size for name in getattr(mechanism, "attributes", ()))
        try:
            rows = self._context.public_rows(slot)
        except Rejection:
            # This worker lacks the table and answers nothing for it; another that has it may.
            return _Facts(PRIVATE_ROWS, named, universe)
        found = self._facts[number] = _Facts(PRIVATE_ROWS if rows is None else rows, named, universe)
        return found


def _predicates(query: Any) -> Iterable[str]:
    if query.where is not None:
        yield query.where
    for part in (*(query.terms or ()), *(query.candidates or ())):
        if part.where is not None:
            yield part.where


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
    sums = [query.sum, query.mean, *(one.sum for one in query.candidates or ())]
    work += SCAN * sum(_digits(source.attributes, name) for name in sums if name is not None)
    return work + (GROUPED * (1 + len(query.group_by)) if query.group_by is not None else 0.0)


def _digits(attributes: Mapping[str, Any], name: str) -> int:
    domain = attributes.get(name)
    return (domain.size - 1).bit_length() if isinstance(domain, Integers) else 0


def _estimated(calibration: EstimateCalibration, query: Any, texts: Sequence[str], facts: _Facts) -> float:
    """The work of a fit, of a marginal, and of writing a question out over the cells of the attributes that it names."""
    fields = (name for name in (query.sum, query.mean, *(query.group_by or ())) if name is not None)
    folded = " ".join([*texts, *(name.replace('"', '""') for name in fields)]).casefold()
    named = [size for name, size in facts.named if name in folded]
    cells = min(facts.universe, math.prod(named), MAX_UNIVERSE)
    if facts.universe <= WHOLE_CELLS:
        # One estimate of all cells for every question, fitted once for each ⊤ and once before.
        fits = (calibration.cutoff + 1) / max(calibration.expected_queries, calibration.cutoff + 1)
        work = FITTED * facts.universe * fits
    elif cells <= WHOLE_CELLS:
        work = FITTED * cells / _SERVED
    else:
        work = FITTED_WIDE * cells * max(1.0, len(named) / _AXES)
    measured = (MEASURED * cells + GROUPED * facts.rows * (1 + len(named))) / (
        1 if cells > WHOLE_CELLS else _SERVED
    )
    written = cells * sum(WEIGHED + LEAF * _leaves(text) for text in texts)
    return work + measured + written + (LISTED * min(cells, MAX_CATEGORIES) if query.group_by is not None else 0.0)


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
