"""Questions that name single cells; their cost does not depend on the number of all cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import SparsePmw, TableSource
from stream.privacy.mechanisms.sparse_weights import CellQuestion, SparseHypothesis, steps_of_unit_weight
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.processing.dead_letters import Rejection
from stream.tables import CellReader, PrivateTable


class AttributeCells:
    """The cells of some attributes of a table source, in the attributes' order."""

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

    @property
    def universe(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def parse_question(self, cells: Sequence[Any], max_cells: int) -> CellQuestion:
        """Resolve the cells of a query; leave out cells of weight 0; Rejection if a cell is invalid."""
        if len(cells) > max_cells:
            raise Rejection(
                "malformed",
                f"cells: {len(cells)} cells, and the stream takes at most {max_cells}; ask for them in several queries",
            )
        steps: dict[tuple[int, ...], int] = {}
        for cell in cells:
            try:
                codes = self.reader.read(cell.at)
                weight = steps_of_unit_weight(cell.weight)
            except ValueError as error:
                raise Rejection("malformed", f"cells: {error}") from None
            if codes in steps:
                raise Rejection("malformed", "cells: one cell is named twice; name it once, with one weight")
            steps[codes] = weight
        named = sorted((codes, weight) for codes, weight in steps.items() if weight)
        if not named:
            raise Rejection("malformed", "cells: no weight is above 0; give at least one cell a positive weight")
        return CellQuestion(tuple(codes for codes, _ in named), tuple(weight for _, weight in named))


class CellSpace:
    """The cells of a ``sparse_pmw`` stream.

    The uniform hypothesis spreads the rows over ``places`` cells, or over all if there are fewer.
    """

    def __init__(
        self,
        source: TableSource,
        table: Callable[[], PrivateTable],
        mechanism: SparsePmw,
        learning_rate: float,
        places: int,
    ) -> None:
        self._cells = AttributeCells(source, mechanism.attributes)
        self._table = table
        self._sparsity = mechanism.sparsity
        self._learning_rate = learning_rate
        self._places = min(self._cells.universe, places)

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
    table: PrivateTable, attributes: Sequence[str], questions: Sequence[CellQuestion]
) -> npt.NDArray[np.int64]:
    """Return the exact (private) sum of weight·count of each question, in steps of 1/1024."""
    if not questions:
        return np.zeros(0, dtype=np.int64)
    counts = table.cell_counts(attributes, list(chain.from_iterable(one.cells for one in questions)))
    weighted = counts * np.fromiter(chain.from_iterable(one.steps for one in questions), dtype=np.int64)
    starts = np.cumsum([0, *(len(one.cells) for one in questions[:-1])])
    return np.add.reduceat(weighted, starts)
