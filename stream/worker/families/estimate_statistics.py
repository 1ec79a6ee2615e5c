"""Quantiles and variances from the numbers that an estimate answers.

Quantiles are functions of cumulative counts, and variances of three sums. They are post-processing
of published numbers, so the sparse vector's decision on these numbers covers them
(docs/proofs/quantiles.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stream.privacy.accuracy.intervals import MISS
from stream.privacy.accuracy.rank_accuracy import locate_quantile
from stream.privacy.mechanisms.estimate_questions import Ranks, Spreads
from stream.privacy.mechanisms.spreads import NUMBERS, variance_of
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.worker.families.family import Reply
from stream.worker.families.statistics import Statistic, StatisticNumber


def statistic_reply(
    statistic: Statistic, question: Ranks | Spreads, numbers: Sequence[int], reach: float | None, beta: float
) -> Reply:
    """Return the answer; each of ``numbers`` is wrong by at most ``reach`` rows (None: unknown).

    All bounds hold together with probability 1 − ``beta``. So they give confidence intervals, unless
    ``beta`` is larger than the probability with which an interval may miss.
    """
    if isinstance(question, Spreads):
        found, alpha = _variances(statistic, question, numbers, reach or 0.0)
    else:
        found, alpha = _quantiles(statistic, numbers, reach or 0.0)
    if reach is None or beta > MISS:
        found = [StatisticNumber(one.estimate) for one in found]
    return statistic.reply(found, charged=False, basis="hypothesis", alpha=None if reach is None else alpha)


def _quantiles(statistic: Statistic, numbers: Sequence[int], reach: float) -> tuple[list[StatisticNumber], float]:
    rows = np.array(numbers, dtype=np.float64).reshape(statistic.groups, statistic.values.size) / WEIGHT_STEPS
    edges = np.arange(statistic.size + 1, dtype=np.int64)
    # For the quantile q, P − q·N (P rows at or below a value, N in all) has the error of one count plus
    # q times that of another.
    bounds = [(1.0 + float(part)) * reach for part in statistic.parts]
    found: list[StatisticNumber] = []
    for cumulated in rows[:, statistic.first : statistic.end]:
        # Noisy cumulative counts keep their error bounds if they are made non-decreasing.
        below = np.maximum.accumulate(np.concatenate([np.zeros(1), cumulated]))
        total = float(below[-1])
        found += statistic.numbers_of_quantiles(
            [
                locate_quantile(edges, below - float(part) * total, np.full(len(edges), bound))
                for part, bound in zip(statistic.parts, bounds, strict=True)
            ]
        )
    return found, max(bounds)


def _variances(
    statistic: Statistic, question: Spreads, numbers: Sequence[int], reach: float
) -> tuple[list[StatisticNumber], float]:
    reaches = [reach * most for most in question.moves]
    found = []
    alpha = 0.0
    for start in range(0, len(numbers), NUMBERS):
        group_numbers = [float(number) for number in numbers[start : start + NUMBERS]]
        variance, low, high = variance_of(group_numbers, reaches, statistic.size)
        one = statistic.number_of_variance(variance, low, high)
        alpha = max(alpha, statistic.alpha_of_variance(one, low, high))
        found.append(one)
    return found, alpha
