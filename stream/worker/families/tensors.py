"""Questions as weights of cells: of all cells of a tensor for ``pmw``, of single cells for ``sparse_pmw``.

The work for single cells does not depend on the number of all cells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import Pmw, SparsePmw, TableSource
from stream.caches import BoundedCache
from stream.privacy.mechanisms.estimate_questions import extent_of
from stream.privacy.mechanisms.multiplicative_weights import CellQuestion, SparseHypothesis, TensorHypothesis
from stream.privacy.mechanisms.releases import (
    Weighting,
    cheapest_weighting,
    combine_weightings,
    count_corners,
    is_cheap_to_cumulate,
    product_weighting,
)
from stream.privacy.noise.samplers import IntegerArray
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS, steps_of_limited_weight, steps_of_weight
from stream.processing.dead_letters import Rejection, malformed_rejection
from stream.tables.counted_table import CellReader, CountedTable, cell_mask, code_mask
from stream.tables.expressions import AllOf, Codes, Predicate, attributes_of, evaluate
from stream.tables.store import TableStore

WEIGHT_CACHE_BYTES: Final = 64 << 20
"""Maximum number of bytes of cached weights of questions per partition; other weights are computed again."""

_ALLOWED_CORNERS: Final = 4096

CellWeights = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class WeightedPredicates:
    """A weighted sum of distinct predicates in canonical order; weights are in 1/1024, and none is 0."""

    parts: tuple[tuple[Predicate, int], ...]

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes on which the question depends."""
        return frozenset[str]().union(*(attributes_of(predicate) for predicate, _ in self.parts))

    @property
    def key(self) -> bytes:
        """Canonical bytes, which are the same for equal weighted sums."""
        return json.dumps([[canonical_text(predicate), weight] for predicate, weight in self.parts]).encode()

    def cell_weights(self, sizes: Mapping[str, int]) -> CellWeights:
        """Return the weight of each cell of the tensor in 1/1024, in row-major order."""
        total = np.zeros(tuple(sizes.values()), dtype=np.int32)
        for predicate, weight in self.parts:
            total += np.int32(weight) * cell_mask(predicate, sizes)
        return total.reshape(-1)


def parse_terms(terms: Sequence[Any], parse: Callable[[str, str], Predicate]) -> WeightedPredicates:
    """Parse a question's weighted predicates (JSON field ``terms``) with ``parse(text, field)``."""
    alone = len(terms) == 1
    parts: dict[Predicate, int] = {}
    for place, term in enumerate(terms):
        predicate = parse(term.where, "where" if alone else f"terms[{place}].where")
        try:
            parts[predicate] = parts.get(predicate, 0) + steps_of_weight(term.weight)
        except ValueError as error:
            raise malformed_rejection(f"terms[{place}].weight: {error}") from None
    kept = [(predicate, weight) for predicate, weight in parts.items() if weight]
    return WeightedPredicates(tuple(sorted(kept, key=lambda part: canonical_text(part[0]))))


WeightCache = BoundedCache[tuple[tuple[str, ...], WeightedPredicates], CellWeights]
"""A cache of questions' weights, shared by the streams of a partition."""


@dataclass(frozen=True, eq=False)
class HypothesisQuestion:
    """A question to a hypothesis over a tensor; ``sizes`` has all attributes of the tensor."""

    sizes: Mapping[str, int]
    weights: WeightedPredicates
    weight_cache: WeightCache

    @cached_property
    def own_sizes(self) -> dict[str, int]:
        """The sizes of the attributes on which the question depends."""
        named = self.weights.attributes
        return {name: size for name, size in self.sizes.items() if name in named}

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The axes on which the question depends, in increasing order."""
        return tuple(axis for axis, name in enumerate(self.sizes) if name in self.own_sizes)

    @cached_property
    def key(self) -> bytes:
        """Canonical bytes, which are the same for equivalent questions."""
        return self.weights.key

    def steps(self) -> CellWeights:
        """Return the weight of each cell of the attributes in ``own_sizes``, in 1/1024 and row-major order."""
        # The cache key needs no sizes, because a predicate contains the sizes of its attributes.
        key = (tuple(self.own_sizes), self.weights)
        cached = self.weight_cache.get(key)
        if cached is None:
            cached = self.weights.cell_weights(self.own_sizes)
            cached.setflags(write=False)
            self.weight_cache.put(key, cached)
        return cached


class TensorSpace:
    """The universe of ``pmw``, with all cells in memory."""

    def __init__(
        self,
        source: TableSource,
        table: Callable[[], CountedTable],
        tables: TableStore,
        mechanism: Pmw,
        learning_rate: float,
        weight_cache: WeightCache,
    ) -> None:
        self._source = source
        self._table = table
        self._tables = tables
        self._sizes = {name: source.attributes[name].size for name in mechanism.attributes}
        self._weight_cache = weight_cache
        self._learning_rate = learning_rate

    def parse_question(self, terms: Sequence[Any]) -> HypothesisQuestion:
        """Resolve the weighted predicates of a query or of an update, or raise Rejection.

        The weight of every cell must lie between 0 and 1, so that one row changes the value by at
        most 1.
        """
        weights = parse_terms(terms, partial(parse_predicate_on, self._sizes, self._tables, self._source))
        question = HypothesisQuestion(self._sizes, weights, self._weight_cache)
        require_unit_weights(weights, question.own_sizes)
        return question

    def exact_values(self, questions: Sequence[HypothesisQuestion]) -> npt.NDArray[np.int64]:
        """Return the exact (private) value of each question in steps of 1/1024."""
        table = self._table()
        totals = [
            sum(weight * table.count(predicate) for predicate, weight in question.weights.parts)
            for question in questions
        ]
        return np.array(totals, dtype=np.int64)

    def uniform_hypothesis(self) -> TensorHypothesis:
        """Return the uniform hypothesis."""
        return TensorHypothesis(tuple(self._sizes.values()), self._learning_rate, WEIGHT_STEPS)


def parse_predicate_on(
    attributes: Container[str], tables: TableStore, source: TableSource, where: str, field: str
) -> Predicate:
    """Parse a predicate; Rejection about ``field`` if it names an attribute not in ``attributes``."""
    try:
        predicate = tables.predicate(source, where)
    except ValueError as error:
        raise Rejection("predicate", f"{field}: {error}") from None
    for name in sorted(attributes_of(predicate)):
        if name not in attributes:
            raise Rejection(
                "predicate",
                f"{field}: attribute '{name}' is not in the stream's mechanism.attributes; ask about those only",
            )
    return predicate


def canonical_text(predicate: Predicate) -> str:
    """Return a text that is the same for all predicates with the same normal form."""
    return evaluate(
        predicate,
        lambda holds: "1" if holds else "0",
        lambda leaf: json.dumps([leaf.attribute, *leaf.cuts]),
        lambda left, right: f"({left}&{right})",
        lambda left, right: f"({left}|{right})",
    )


def require_unit_weights(question: WeightedPredicates, sizes: Mapping[str, int]) -> None:
    """Reject a question that gives any row a weight below 0 or above 1."""
    weights = [weight for _, weight in question.parts]
    if min(weights, default=0) >= 0 and sum(weights) <= WEIGHT_STEPS:
        return
    weight_of_cell = question.cell_weights(sizes)
    lowest, highest = int(weight_of_cell.min()), int(weight_of_cell.max())
    if lowest < 0 or highest > WEIGHT_STEPS:
        raise malformed_rejection(
            "terms: some row's weights add up to less than 0 or more than 1; scale them, or add a term for all rows, so "
            "that every sum lies from 0 to 1"
        )


class AttributeCells:
    """The cells of some attributes of a table source, in row-major order of the attributes."""

    def __init__(self, source: TableSource, attributes: Sequence[str]) -> None:
        self.attributes = tuple(attributes)
        self._domains = {name: source.attributes[name] for name in attributes}

    @cached_property
    def reader(self) -> CellReader:
        """Converts cells' values to codes."""
        return CellReader(self._domains)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each attribute."""
        return tuple(domain.size for domain in self._domains.values())

    def parse_question(self, cells: Sequence[Any], max_cells: int) -> CellQuestion:
        """Resolve the cells of a query, without cells of weight 0; Rejection if a cell is invalid."""
        if len(cells) > max_cells:
            raise malformed_rejection(
                f"cells: {len(cells)} cells, and the stream takes at most {max_cells}; ask for them in several queries"
            )
        steps: dict[tuple[int, ...], int] = {}
        for cell in cells:
            try:
                codes = self.reader.read(cell.at)
                weight = steps_of_limited_weight(cell.weight)
            except ValueError as error:
                raise malformed_rejection(f"cells: {error}") from None
            if codes in steps:
                raise malformed_rejection("cells: one cell is named twice; name it once, with one weight")
            steps[codes] = weight
        named = sorted((codes, weight) for codes, weight in steps.items() if weight)
        if not named:
            raise malformed_rejection("cells: no weight is above 0; give at least one cell a positive weight")
        return CellQuestion(tuple(codes for codes, _ in named), tuple(weight for _, weight in named))


class CellSpace:
    """The cells of a ``sparse_pmw`` stream.

    The uniform hypothesis spreads the rows over ``places`` cells, or over all cells if there are fewer.
    """

    def __init__(
        self,
        source: TableSource,
        table: Callable[[], CountedTable],
        mechanism: SparsePmw,
        learning_rate: float,
        places: int,
    ) -> None:
        self._cells = AttributeCells(source, mechanism.attributes)
        self._table = table
        self._sparsity = mechanism.sparsity
        self._learning_rate = learning_rate
        self._places = min(math.prod(self._cells.shape), places)

    def parse_question(self, cells: Sequence[Any]) -> CellQuestion:
        """Resolve the cells of a query or of an update, or raise Rejection."""
        return self._cells.parse_question(cells, self._sparsity)

    def exact_values(self, questions: Sequence[CellQuestion]) -> npt.NDArray[np.int64]:
        """Return the exact (private) value of each question in steps of 1/1024."""
        return weighted_counts(self._table(), self._cells.attributes, questions)

    def uniform_hypothesis(self) -> SparseHypothesis:
        """Return the uniform hypothesis."""
        return SparseHypothesis(self._places, self._learning_rate, WEIGHT_STEPS)


def weighted_counts(
    table: CountedTable, attributes: Sequence[str], questions: Sequence[CellQuestion]
) -> npt.NDArray[np.int64]:
    """Return the exact (private) sum of weight·count of each question, in steps of 1/1024."""
    if not questions:
        return np.zeros(0, dtype=np.int64)
    counts = table.cell_counts(attributes, list(chain.from_iterable(one.cells for one in questions)))
    weighted = counts * np.fromiter(chain.from_iterable(one.steps for one in questions), dtype=np.int64)
    starts = np.cumsum([0, *(len(one.cells) for one in questions[:-1])])
    return np.add.reduceat(weighted, starts)


def corners_of_weights(weights: WeightedPredicates, sizes: dict[str, int]) -> Weighting:
    """Weight each cell by the sum of the weights of its predicates."""
    products = [_factor_predicate(predicate, sizes) for predicate, _ in weights.parts]
    if (found := _corners_of_products(products, sizes)) is not None:
        return combine_weightings([(weight, one) for one, (_, weight) in zip(found, weights.parts, strict=True)])
    return cheapest_weighting(weights.cell_weights(sizes).astype(np.int64).reshape(tuple(sizes.values())))


def corners_of_predicate(predicate: Predicate, sizes: dict[str, int]) -> Weighting:
    """Weight each cell that satisfies a predicate by 1."""
    if (found := _corners_of_products([_factor_predicate(predicate, sizes)], sizes)) is not None:
        return found[0]
    return cheapest_weighting(cell_mask(predicate, sizes).astype(np.int64))


def corners_of_values(predicate: Predicate, sizes: dict[str, int], attribute: str) -> Weighting:
    """Weight each cell that satisfies a predicate by the code (from 0) of its value of an attribute."""
    if (factors := _factor_predicate(predicate, sizes)) is not None:
        factors[attribute] = factors[attribute] * np.arange(sizes[attribute], dtype=np.int64)
    if (found := _corners_of_products([factors], sizes)) is not None:
        return found[0]
    return cheapest_weighting(values_of_cells(predicate, sizes, attribute, 0))


def _corners_of_products(
    products: Sequence[dict[str, IntegerArray] | None], sizes: dict[str, int]
) -> list[Weighting] | None:
    """Convert products of one factor per axis to weightings; None if one is None, or with too many corners."""
    if not is_cheap_to_cumulate(tuple(sizes.values())):
        return None
    factors = [list(product.values()) for product in products if product is not None]
    if len(factors) < len(products):
        return None
    most = max(_ALLOWED_CORNERS, math.prod(sizes.values()))
    return list(map(product_weighting, factors)) if sum(map(count_corners, factors)) <= most else None


def values_of_cells(predicate: Predicate, sizes: dict[str, int], attribute: str, minimum: int) -> IntegerArray:
    """Return the attribute's value in each cell that satisfies a predicate, and 0 in other cells."""
    along = [size if name == attribute else 1 for name, size in sizes.items()]
    values = np.arange(minimum, minimum + sizes[attribute], dtype=np.int64).reshape(along)
    return np.where(cell_mask(predicate, sizes), values, 0)


def extent_of_weights(weights: WeightedPredicates, sizes: dict[str, int]) -> tuple[int, bool]:
    """Return the number of cells with a weight, and True if they are a range on every axis."""
    if len(weights.parts) == 1:
        return extent_of_predicate(weights.parts[0][0], sizes)
    return extent_of(weights.cell_weights(sizes).reshape(tuple(sizes.values())))


def extent_of_predicate(predicate: Predicate, sizes: dict[str, int]) -> tuple[int, bool]:
    """Return the number of cells of a predicate, and True if they are a range on every axis."""
    if (factors := _factor_predicate(predicate, sizes)) is None:
        return extent_of(cell_mask(predicate, sizes))
    each = [extent_of(factor) for factor in factors.values()]
    return math.prod(count for count, _ in each), all(ranges for _, ranges in each)


def _factor_predicate(predicate: Predicate, sizes: dict[str, int]) -> dict[str, IntegerArray] | None:
    """Factor a predicate into weights per attribute; None if it is not a product."""
    leaves = predicate.parts if isinstance(predicate, AllOf) else (predicate,)
    found = {name: np.ones(size, dtype=np.int64) for name, size in sizes.items()}
    for leaf in leaves:
        if not isinstance(leaf, Codes):
            return None
        found[leaf.attribute] = found[leaf.attribute] * code_mask(leaf.cuts, leaf.size)
    return found
