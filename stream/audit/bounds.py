"""What confidence bounds on probabilities say about ε."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stream.accounting.binomial import Floats, at_least, at_most


def epsilon_at_least(
    likely: npt.ArrayLike,
    unlikely: npt.ArrayLike,
    trials: int,
    *,
    delta: float,
    alpha: float,
) -> Floats:
    """A lower bound on ε from how often an event was seen under either of two neighbouring data sets.

    Every (ε, δ)-differentially private mechanism has P(E | D) ≤ e^ε P(E | D′) + δ. With each probability bounded at
    ``alpha``/2, ln((p − δ) / p′) is above the truth with probability at most ``alpha``. It is 0 where nothing was shown.

    Args:
        likely: how many of ``trials`` runs on D had the event; a number or an array.
        unlikely: how many of ``trials`` runs on D′ had it.
        trials: runs on each data set.
        delta: the δ that is claimed.
        alpha: the probability allowed for a bound above the truth.
    """
    excess = at_least(likely, trials, alpha / 2) - delta
    ratio = np.maximum(excess, 0.0) / at_most(unlikely, trials, alpha / 2)
    return np.log(np.maximum(ratio, 1.0))
