"""Statistical checks with a stated rate of false alarms. All draws are seeded: a check that passes once always passes."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.stats import binom, chi2

from tests.privacy.exact import Law

FALSE_ALARM = 1e-6
"""The largest probability, over all keys, that a check fails although the noise is correct."""

LEAST_EXPECTED = 50.0
"""Fewest draws expected in a cell: with fewer, χ² is not accurate this far out in its tail."""


def fits(counts: Sequence[float], expected: Sequence[float]) -> bool:
    """Return the result of Pearson's χ² test; neighboring cells are merged until each has enough expected draws."""
    merged: list[list[float]] = [[0.0, 0.0]]
    for count, mean in zip(counts, expected, strict=True):
        if merged[-1][1] >= LEAST_EXPECTED:
            merged.append([0.0, 0.0])
        merged[-1][0] += count
        merged[-1][1] += mean
    if merged[-1][1] < LEAST_EXPECTED and len(merged) > 1:
        count, mean = merged.pop()
        merged[-1][0] += count
        merged[-1][1] += mean
    assert len(merged) > 1, "too few draws to tell anything"
    statistic = sum((count - mean) ** 2 / mean for count, mean in merged)
    return bool(chi2.sf(statistic, len(merged) - 1) >= FALSE_ALARM)


def follows(draws: npt.NDArray[np.int64], law: Law) -> bool:
    """Return whether draws look like independent ones of a law."""
    assert draws.min() >= law.first
    assert draws.max() <= law.last
    counts = np.bincount(draws - law.first, minlength=len(law.weights))
    expected = [len(draws) * float(Fraction(weight, 1 << law.bits)) for weight in law.weights]
    return fits(counts.tolist(), expected)


def happens(successes: int, trials: int, probability: float) -> bool:
    """Return whether so many successes are likely enough, in both directions; an exact binomial test."""
    upper = binom.sf(successes - 1, trials, probability)
    lower = binom.cdf(successes, trials, probability)
    return bool(min(upper, lower) >= FALSE_ALARM / 2)


def at_most(successes: int, trials: int, probability: float) -> bool:
    """Return whether so many successes are likely enough if each has at most this probability."""
    return bool(binom.sf(successes - 1, trials, probability) >= FALSE_ALARM)


def unrelated(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> bool:
    """Return whether two arrays of uniform words agree in half of their bits, as independent ones do."""
    differing = int(np.bitwise_count(one ^ other).sum())
    return happens(differing, 64 * one.size, 0.5)
