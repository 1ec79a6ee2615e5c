"""Budgets that renew: how long a period is, what it means, and what a stream that is open at its edge has behind it.

Privacy is then per period. docs/proofs/composition.md, "Renewal", says what holds and proves it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

from schemas import AnswersCalibration, Calibration, EdgeTotals, Extensions, SparseVectorCalibration
from stream.accounting.costs import EPSILON_UNITS, NOTHING, PARTS, Cost, Terms
from stream.accounting.losses import are_independent, is_pure, lost

_HOUR_MS: Final = 3_600_000
_UNITS: Final = {"h": ("hour", _HOUR_MS), "d": ("day", 24 * _HOUR_MS)}


def length_ms(renews: str | None) -> int:
    """The length of a period in milliseconds; 0 where there is none."""
    return 0 if renews is None else int(renews[:-1]) * _UNITS[renews[-1]][1]


def meaning(terms: Terms, number: int) -> str:
    """What a budget promises in its period of that number, in plain words; where it does not renew, that it is for ever."""
    if terms.renews is None:
        return "privacy is for ever: the budget never renews"
    count, (unit, _) = int(terms.renews[:-1]), _UNITS[terms.renews[-1]]
    period = f"{count} {unit}s" if count > 1 else unit
    so_far = (
        "this is the first"
        if number == 1
        else f"this is period {number}, at whose end that may be {number} times as much"
    )
    return (
        f"privacy is per period, not for ever: every {period} a person may lose {_amount(terms.epsilon, terms.delta)} again, "
        f"so that k periods may cost k times as much; {so_far}"
    )


def meaning_of_joining(source: str, population: str, number: int) -> str:
    """State what earlier periods of a population do not bound, after a source with streams has joined in this one."""
    return (
        f"what '{source}' was granted before counts in period {number} of population '{population}'; in earlier periods it was not "
        "counted, so that each of them may have cost a person that much more than the population's budget"
    )


def behind(calibration: Calibration, accountant: str, totals: EdgeTotals, extensions: Extensions) -> Cost:
    """What of a stream's cost belongs to periods before an edge at which it had these totals, rounded down.

    Only charges whose noise is drawn for them and was published with them are done with: completed rounds and answers of
    their own, where what they cost adds up. Anything else, such as noise that later answers are made from, counts in each
    period in which the stream may answer.
    """
    if accountant != "pure" or totals.answered == 0 or any(extension.delta for extension in extensions):
        return NOTHING
    return _added_up(calibration, totals.tops * PARTS + totals.surplus)


@lru_cache(maxsize=4096)
def _added_up(calibration: Calibration, parts: int) -> Cost:
    own = isinstance(calibration, AnswersCalibration | SparseVectorCalibration) and calibration.cutoff > 0
    if not (own and are_independent(calibration) and is_pure(calibration)):
        return NOTHING
    return Cost(math.floor(lost(calibration, Fraction(parts, PARTS)) * EPSILON_UNITS))


def meaning_in_periods(epsilon: float, delta: float, period: str) -> str:
    """What the budget of each period of a live topic promises, in plain words."""
    return (
        f"{_amount(epsilon, delta)} for what a person does in one period of {period}; what a person does in k of them is protected by k times as "
        "much"
    )


def _amount(epsilon: float, delta: float) -> str:
    return f"ε = {epsilon:g}" + (f", δ = {delta:g}" if delta else "")
