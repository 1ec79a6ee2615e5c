"""Weights of questions as whole numbers of steps, so that what meets noise is an integer."""

from __future__ import annotations

from stream.accounting.hypotheses import WEIGHT_STEPS


def whole_steps(weight: float) -> int:
    """A finite weight in steps of 1/1024; ValueError for one that lies between two steps."""
    steps = weight * WEIGHT_STEPS
    nearest = round(steps)
    if steps != nearest:
        raise ValueError(f"weights are multiples of 1/{WEIGHT_STEPS}; round it to one")
    return nearest


def weight_steps(weight: float) -> int:
    """A weight from 0 to 1 in steps of 1/1024; ValueError for any other."""
    if not 0.0 <= weight <= 1.0:
        raise ValueError("a weight must be from 0 to 1; scale the question down")
    return whole_steps(weight)
