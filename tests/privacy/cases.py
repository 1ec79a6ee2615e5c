"""Calibrations of the planner, and the streams on which they are tried."""

from __future__ import annotations

from typing import Literal

from schemas import AboveThreshold, NumericSparse, SparseVectorCalibration
from stream.privacy.planning.plans import plan_sparse_vectors
from tests.privacy.exact import Machine, Move, find_neighbors


def calibrations(
    cutoff: int,
    *,
    epsilon: float = 1.0,
    delta: float = 0.05,
    monotone: bool = False,
    steps: int = 1,
    numbers: Literal["none", "fresh", "gap"] = "none",
) -> dict[str, SparseVectorCalibration]:
    """Return every method's calibration; with the large δ, the noise of ``one_sided_rounds`` is small enough to enumerate."""
    mechanism: AboveThreshold | NumericSparse
    if numbers == "none":
        mechanism = AboveThreshold(kind="above_threshold", threshold=0.0, cutoff=cutoff, monotone=monotone)
    else:
        mechanism = NumericSparse(
            kind="numeric_sparse", threshold=0.0, cutoff=cutoff, monotone=monotone, numbers=numbers
        )
    found = plan_sparse_vectors(
        mechanism,
        epsilon=epsilon,
        delta=delta,
        expected_queries=8,
        beta=0.1,
        sensitivity_steps=steps,
        grid=1.0,
    )
    return {one.method: one for one in found}


def moves_of(calibration: SparseVectorCalibration, margins: tuple[int, ...]) -> list[list[Move]]:
    """Return how one person may move a query: one list for each neighboring relation that the calibration allows."""
    steps = calibration.sensitivity_steps
    if calibration.monotone:
        return [find_neighbors(margins, steps, "up"), find_neighbors(margins, steps, "down")]
    return [find_neighbors(margins, steps)]


def near(calibration: SparseVectorCalibration) -> tuple[int, ...]:
    """Return margins around the shift, where ⊤ and ⊥ are both likely."""
    reach = calibration.sensitivity_steps
    return tuple(range(calibration.shift - 1, calibration.shift + reach + 1))


def lowest(machine: Machine) -> int:
    """Return the margin below which a ⊤ is impossible."""
    return machine.shift + machine.threshold.first - machine.query.last


def highest(machine: Machine) -> int:
    """Return the margin from which on a ⊥ is impossible."""
    return machine.shift + machine.threshold.last - machine.query.first


def spread(calibration: SparseVectorCalibration) -> tuple[int, ...]:
    """Return pairs Δ apart near the shift, far above, far below and at both ends of the noise, where its cut tail has an effect.

    A query's own threshold moves the margins of both neighbors alike, so that margins far apart are also what
    thresholds far apart come to.
    """
    machine = Machine.shipped(calibration)
    shift, delta = calibration.shift, calibration.sensitivity_steps
    far = round(3 / max(calibration.epsilon_threshold, 0.2)) * delta
    bottoms = (lowest(machine) - delta, shift - far, shift, shift + far, highest(machine) - delta)
    return tuple(sorted({bottom + step for bottom in bottoms for step in (0, delta)}))
