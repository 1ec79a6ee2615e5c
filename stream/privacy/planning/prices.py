"""What a question costs that says how accurate its answer must be.

Its noise has ``share`` parts of the ε of one ordinary charged answer, the least whose noise keeps to the error with the part
of β that is in proportion to it. A stream's grant pays for so many parts, whatever they are spent on: where δ = 0 losses add
up in each transcript, so that adding up is a filter. All that decides is public. The proofs are in docs/proofs/laplace.md
and docs/proofs/pmw.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from schemas import AnswersCalibration, Calibration, EstimateCalibration, Laplace, Mechanism, Source, TableSource
from stream.privacy.accuracy.noise_laws import two_sided_reach
from stream.privacy.composition.costs import EPSILON_UNITS, PARTS
from stream.privacy.composition.losses import is_pure, losses
from stream.privacy.planning.answer_plans import promised_answers
from stream.privacy.planning.estimate_plans import NUMBERS_PART
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.noise_layouts import HEADROOM, LARGEST_NOISE


@dataclass(frozen=True, slots=True)
class Price:
    """The noise has ``share`` parts of an ordinary charge and keeps to ``reach`` steps; ``parts`` are charged."""

    share: int
    parts: int
    reach: int


def takes_alpha(calibration: Calibration) -> bool:
    """Whether answers of a stream may be charged otherwise than its ordinary ones: where charges add up in each transcript."""
    return isinstance(calibration, EstimateCalibration | AnswersCalibration) and is_pure(calibration)


def are_uneven(source: Source, mechanism: Mechanism, calibration: Calibration) -> bool:
    """Whether a stream's independent answers may be priced by their ε alone, so that nothing is known of their squares.

    An error may be asked of counts of a table. Where the source itself counts by ``zcdp``, `answer_price` sees to the squares.
    """
    return (
        isinstance(source, TableSource)
        and source.accountant == "pure"
        and isinstance(mechanism, Laplace)
        and takes_alpha(calibration)
    )


def epsilon_of(calibration: Calibration, parts: int) -> float:
    """The ε of so many parts, as it is shown."""
    units = math.ceil(losses(calibration).each * Fraction(parts, PARTS) * EPSILON_UNITS)
    return units / EPSILON_UNITS


def epsilon_left(calibration: Calibration, parts: int) -> float:
    """The ε of so many parts that are left, as it is shown: never more than there is."""
    return math.floor(losses(calibration).each * Fraction(parts, PARTS) * EPSILON_UNITS) / EPSILON_UNITS


def shown_price(calibration: Calibration, parts: int) -> float | None:
    """The ε of so many parts, as it is shown; None of Gaussian noise, which has no ε of its own."""
    return None if parts and has_gaussian_charges(calibration) else epsilon_of(calibration, parts)


def has_gaussian_charges(calibration: Calibration) -> bool:
    """Whether a stream's charged answers have Gaussian noise."""
    match calibration:
        case AnswersCalibration():
            return calibration.method == "gaussian"
        case EstimateCalibration():
            return calibration.noise != "laplace"
        case _:
            return False


def parts_within(calibration: Calibration, max_price: float | str) -> int:
    """The most parts that an answer may be charged at a ``max_price``, an ε or a percentage.

    A percentage is of the ε that the stream was opened with, as it adds up, or of the charges where these have none; so no
    extension changes what a question is answered.
    """
    each, total = losses(calibration).each, losses(calibration).total
    if has_gaussian_charges(calibration):
        each, total = Fraction(1), Fraction(calibration.cutoff)
    part = (
        Fraction(max_price.removesuffix("%")) / 100 * total if isinstance(max_price, str) else Fraction(max_price)
    )
    return math.floor(part / each * PARTS)


def rate_of(calibration: Calibration, share: int, width: int) -> Fraction:
    """The rate of the noise of numbers that one person moves by ``width`` steps together, or one row where each has its part of ε."""
    rows = calibration.contribution if isinstance(calibration, EstimateCalibration) else 1
    return losses(calibration).each / rows * Fraction(share, PARTS) / width


@lru_cache(maxsize=1 << 14)
def answer_price(calibration: AnswersCalibration, accountant: str, width: int, values: int, steps: int) -> Price:
    """The price of ``values`` numbers of a laplace stream, all within ±``steps``; one person moves them by ``width`` together.

    Each answer fails with a probability that leaves 1 − β over as many charges as the promise is for. Under ``zcdp`` an answer
    of f ordinary charges has f² times their ρ: charged is the larger of f and f², so that the grant's ε and ρ both hold.
    """
    promised, log_kept = promised_answers(calibration), math.log1p(-calibration.beta)

    def failure(charges: float) -> float:
        return -math.expm1(log_kept * min(1.0, charges / promised))

    share, reach = _least(float(losses(calibration).each) / width, values, failure, steps)
    parts = max(share, -(-share * share // PARTS)) if accountant == "zcdp" else share
    return Price(share, parts, reach)


@lru_cache(maxsize=1 << 14)
def estimate_price(calibration: EstimateCalibration, width: int, values: int, steps: int) -> Price:
    """The price of ``values`` numbers told by a stream with an estimate, all within ±``steps``; one row moves them by ``width``.

    β for numbers is divided among charges, whether ⊤s or these. The whole stream, ⊤s and numbers, is one pure mechanism, so
    that its ρ is that of its ε whatever the charges are.
    """

    def failure(charges: float) -> float:
        return numbers_failure(calibration, charges)

    share, reach = _least(float(rate_of(calibration, PARTS, width)), values, failure, steps)
    return Price(share, share, reach)


def count_price(mechanism: Mechanism, calibration: Calibration, alpha: float) -> Price | None:
    """The price of one count of a table's rows within ``alpha`` that nothing is known of; None where no alpha is taken."""
    if not takes_alpha(calibration):
        return None
    if isinstance(calibration, EstimateCalibration):
        return estimate_price(calibration, WEIGHT_STEPS, 1, math.floor(alpha * WEIGHT_STEPS))
    if isinstance(mechanism, Laplace) and isinstance(calibration, AnswersCalibration):
        return answer_price(calibration, "pure", calibration.sensitivity_steps, 1, math.floor(alpha))
    return None


def numbers_failure(calibration: EstimateCalibration, charges: float) -> float:
    """How likely what one answer tells may be off by more than it says, for so many ⊤s' charges."""
    return NUMBERS_PART * calibration.beta * min(1.0, charges / calibration.cutoff)


def _least(rate: float, values: int, failure: Callable[[float], float], steps: int) -> tuple[int, int]:
    """The least share whose noise keeps to ``steps``, and what it does keep to. ``rate`` is that of a whole charge.

    More of ε and more of β both bring the reach down, so that halving finds it.
    """

    def reach(share: int) -> int:
        charges = share / PARTS
        return two_sided_reach(rate * charges, values, failure(charges))

    # Noise that is so wide that it does not fit 52 binary digits is never drawn.
    low = math.ceil(HEADROOM * PARTS / (rate * LARGEST_NOISE))
    if reach(max(1, low)) <= steps:
        return max(1, low), reach(max(1, low))
    high = max(2, 2 * low)
    while reach(high) > steps:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reach(middle) > steps else (low, middle)
    return high, reach(high)
