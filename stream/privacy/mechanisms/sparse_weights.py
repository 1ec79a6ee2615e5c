"""Multiplicative weights over a universe that is too large to enumerate.

All cells that no update named have the same weight, so that time and memory depend on the named
cells, never on the universe. Source: Blum & Roth 2011, Section 4 (Sparse Multiplicative Weights);
docs/proofs/sparse-pmw.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from typing import Final

import numpy as np
import numpy.typing as npt

from stream.privacy.mechanisms.releases import cell_bytes
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS

Cell = tuple[int, ...]

SHARE_BITS: Final = 80
"""Shares of cells are integers out of 2⁸⁰."""

_BYTES_PER_CELL: Final = 640
"""Approximate memory of a named cell: codes, log-weight, weight and share."""
_DECIMAL_CONTEXT: Final = Context(prec=40, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Decimal arithmetic gives the same result on every machine; 2⁸⁰ has only 25 digits."""


@dataclass(frozen=True, slots=True)
class CellQuestion:
    """A weighted sum of distinct, sorted ``cells``; ``steps`` are the weights, above 0."""

    cells: tuple[Cell, ...]
    steps: tuple[int, ...]

    @property
    def key(self) -> bytes:
        """Canonical bytes, equal for equivalent questions."""
        return b"".join(cell_bytes(self.cells)) + np.array(self.steps, dtype=">u4").tobytes()


class SparseHypothesis:
    """A hypothesis over ``universe`` cells, initially uniform.

    ``universe`` is the number of all cells, or the calibration's ``places`` if that is less
    (docs/proofs/sparse-pmw.md, Theorem 1). Log-weights are whole multiples of η/resolution. Weights
    are relative to the unnamed cells' weight and recomputed from the log-weights, so that rounding
    errors do not accumulate.
    """

    def __init__(self, universe: int, learning_rate: float, resolution: int) -> None:
        self._universe = universe
        self._log_weight_step = _DECIMAL_CONTEXT.divide(Decimal(learning_rate), Decimal(resolution))
        self._log_weights: dict[Cell, int] = {}
        self._weights: dict[Cell, Decimal] = {}
        self._shares: dict[Cell, int] | None = None
        self._other_share = 0

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        return _BYTES_PER_CELL * (1 + len(self._log_weights))

    def estimate_answers(self, questions: Sequence[CellQuestion], rows: int) -> npt.NDArray[np.int64]:
        """Return the estimated answers to questions, in steps of 1/1024.

        An answer is the number of ``rows`` times the sum, over the question's cells, of weight times
        share of the cell. It is rounded to the nearest step, halves upwards. Before rounding, the
        error due to inexact shares is at most rows·2⁻⁶⁰ steps.
        """
        shares = self._current_shares()
        other_share = self._other_share
        half = 1 << (SHARE_BITS - 1)
        masses = (
            sum(
                step * shares.get(cell, other_share)
                for cell, step in zip(question.cells, question.steps, strict=True)
            )
            for question in questions
        )
        return np.array([(rows * mass + half) >> SHARE_BITS for mass in masses], dtype=np.int64)

    def update(self, question: CellQuestion, *, up: bool, times: int = 1) -> None:
        """Multiply the weight of each cell x of a question by exp(±times·η·q(x)).

        q(x) = step/resolution is the question's weight of the cell.
        """
        with localcontext(_DECIMAL_CONTEXT):
            for cell, step in zip(question.cells, question.steps, strict=True):
                log_weight = self._log_weights.get(cell, 0) + times * (step if up else -step)
                self._log_weights[cell] = log_weight
                self._weights[cell] = (self._log_weight_step * log_weight).exp()
        self._shares = None

    def _current_shares(self) -> dict[Cell, int]:
        """Return the shares of named cells; ``_other_share`` is the share of each other cell."""
        if self._shares is None:
            with localcontext(_DECIMAL_CONTEXT):
                others = Decimal(self._universe - len(self._weights))
                scale = Decimal(1 << SHARE_BITS) / sum(self._weights.values(), others)
                self._shares = {cell: int(weight * scale) for cell, weight in self._weights.items()}
                self._other_share = int(scale)
        return self._shares


def steps_of_weight(weight: float) -> int:
    """Convert a finite weight to steps of 1/1024; raise ValueError if it is not a whole number."""
    steps = weight * WEIGHT_STEPS
    nearest = round(steps)
    if steps != nearest:
        raise ValueError(f"weights are multiples of 1/{WEIGHT_STEPS}; round it to one")
    return nearest


def steps_of_unit_weight(weight: float) -> int:
    """Convert a weight from 0 to 1 to steps of 1/1024; raise ValueError for others."""
    if not 0.0 <= weight <= 1.0:
        raise ValueError("a weight must be from 0 to 1; scale the question down")
    return steps_of_weight(weight)
