"""Quantiles and variances from the numbers that an estimate answers.

Quantiles are functions of cumulative counts, and variances of three sums. They are post-processing
of published numbers, so the sparse vector's decision on these numbers covers them
(docs/proofs/quantiles.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stream.privacy.accuracy.intervals import MISS
from stream.privacy.accuracy.rank_accuracy import located
from stream.privacy.mechanisms.estimate_questions import Ranks, Spreads
from stream.privacy.mechanisms.spreads import NUMBERS, variance_of
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.worker.families.family import Reply
from stream.worker.families.statistics import Found, Statistic


def statistic_of(
    asked: Statistic, question: Ranks | Spreads, numbers: Sequence[int], reach: float | None, beta: float
) -> Reply:
    """Return the answer; each of ``numbers`` is wrong by ``reach`` rows at most.

    The bounds hold together with probability 1 − ``beta``, so they give intervals unless ``beta``
    is larger than an interval's failure.
    """
    if isinstance(question, Spreads):
        found, alpha = _variances(asked, question, numbers, reach or 0.0)
    else:
        found, alpha = _quantiles(asked, numbers, reach or 0.0)
    if reach is None or beta > MISS:
        found = [Found(one.estimate) for one in found]
    return asked.reply(found, charged=False, basis="hypothesis", alpha=None if reach is None else alpha)


def _quantiles(asked: Statistic, numbers: Sequence[int], reach: float) -> tuple[list[Found], float]:
    rows = np.array(numbers, dtype=np.float64).reshape(asked.groups, asked.values.size) / WEIGHT_STEPS
    edges = np.arange(asked.size + 1, dtype=np.int64)
    # A misfit P − q·N has the errors of a count and of q times another one.
    bounds = [(1.0 + float(part)) * reach for part in asked.parts]
    found: list[Found] = []
    for cumulated in rows[:, asked.first : asked.end]:
        # Counts that were moved apart keep their bounds if they are put in order.
        below = np.maximum.accumulate(np.concatenate([np.zeros(1), cumulated]))
        total = float(below[-1])
        found += asked.of_codes(
            [
                located(edges, below - float(part) * total, np.full(len(edges), bound))
                for part, bound in zip(asked.parts, bounds, strict=True)
            ]
        )
    return found, max(bounds)


def _variances(
    asked: Statistic, question: Spreads, numbers: Sequence[int], reach: float
) -> tuple[list[Found], float]:
    reaches = [reach * most for most in question.moves]
    found = []
    alpha = 0.0
    for start in range(0, len(numbers), NUMBERS):
        told = [float(number) for number in numbers[start : start + NUMBERS]]
        variance, low, high = variance_of(told, reaches, asked.size)
        one = asked.of_variance(variance, low, high)
        alpha = max(alpha, asked.alpha_of_variance(one, low, high))
        found.append(one)
    return found, alpha
