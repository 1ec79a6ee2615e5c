"""Exact confidence bounds on a probability from a number of successes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stream.optional_packages import special

Floats = npt.NDArray[np.float64]


def at_least(successes: npt.ArrayLike, trials: int, alpha: float) -> Floats:
    """Return the lower one-sided Clopper-Pearson bound at error probability ``alpha``.

    Source: Clopper & Pearson, The use of confidence or fiducial limits, Biometrika 1934.
    """
    seen = _counts(successes, trials, alpha)
    return np.where(seen == 0, 0.0, special.betaincinv(np.maximum(seen, 1), trials - seen + 1, alpha))


def at_most(successes: npt.ArrayLike, trials: int, alpha: float) -> Floats:
    """Return the upper one-sided Clopper-Pearson bound at error probability ``alpha``."""
    seen = _counts(successes, trials, alpha)
    return np.where(seen == trials, 1.0, special.betainccinv(seen + 1, np.maximum(trials - seen, 1), alpha))


def _counts(successes: npt.ArrayLike, trials: int, alpha: float) -> npt.NDArray[Any]:
    seen = np.asarray(successes)
    if trials < 1 or seen.min(initial=0) < 0 or seen.max(initial=0) > trials:
        raise ValueError(f"successes must lie between 0 and trials, and trials be at least 1; trials is {trials}")
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha must lie between 0 and 1, both excluded; it is {alpha}")
    return seen
