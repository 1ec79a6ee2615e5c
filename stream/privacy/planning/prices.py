"""Price of a question with a requested error.

An ordinary charge is divided into ``PARTS_PER_CHARGE`` parts. A question gets ``share`` parts of ε and
as many parts of β, the fewest with which its noise keeps to the requested error. A grant pays for a
fixed number of parts, however questions divide them, because with δ = 0 the losses of all answers
add up. Prices depend on public values alone. Proofs: docs/proofs/laplace.md, docs/proofs/pmw.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial

from schemas import AnswersCalibration, Calibration, EstimateCalibration, Laplace, Mechanism, Source, TableSource
from stream.privacy.accuracy.noise_laws import two_sided_reach
from stream.privacy.composition.costs import EPSILON_UNITS, PARTS_PER_CHARGE
from stream.privacy.composition.losses import is_pure, losses
from stream.privacy.planning.answer_plans import promised_answers
from stream.privacy.planning.estimate_plans import NUMBERS_PART
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.noise_layouts import HEADROOM, LARGEST_NOISE


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a question.

    ``parts`` are charged. The noise is that of ``share`` parts of an ordinary charge's ε, and is within
    ``reach`` steps.
    """

    share: int
    parts: int
    reach: int


def takes_alpha(calibration: Calibration) -> bool:
    """Return True if a question may request an error, and so have a separate price."""
    return isinstance(calibration, EstimateCalibration | AnswersCalibration) and is_pure(calibration)


def are_uneven(source: Source, mechanism: Mechanism, calibration: Calibration) -> bool:
    """Return True if answers with independent noise may have different prices, counted in ε alone.

    This is so for laplace on a table with the accountant ``pure``. Then the only bound of the sum of
    ε², which determines ρ, is the square of the sum. With ``zcdp``, `answer_price` bounds the squares.
    """
    return (
        isinstance(source, TableSource)
        and source.accountant == "pure"
        and isinstance(mechanism, Laplace)
        and takes_alpha(calibration)
    )


def epsilon_of(calibration: Calibration, parts: int) -> float:
    """Return the displayed ε of ``parts``, rounded up."""
    units = math.ceil(losses(calibration).loss_per_answer * Fraction(parts, PARTS_PER_CHARGE) * EPSILON_UNITS)
    return units / EPSILON_UNITS


def displayed_epsilon_left(calibration: Calibration, parts: int) -> float:
    """Return the displayed ε of the remaining ``parts``, rounded down."""
    return (
        math.floor(losses(calibration).loss_per_answer * Fraction(parts, PARTS_PER_CHARGE) * EPSILON_UNITS)
        / EPSILON_UNITS
    )


def shown_price(calibration: Calibration, parts: int) -> float | None:
    """Return the displayed ε of ``parts``; None for Gaussian noise, whose charges have no ε."""
    return None if parts and has_gaussian_charges(calibration) else epsilon_of(calibration, parts)


def has_gaussian_charges(calibration: Calibration) -> bool:
    """Return True if a stream's charged answers have Gaussian noise."""
    match calibration:
        case AnswersCalibration():
            return calibration.method == "gaussian"
        case EstimateCalibration():
            return calibration.noise != "laplace"
        case _:
            return False


def parts_within(calibration: Calibration, max_price: float | str) -> int:
    """Return the most parts that an answer may cost if its price is at most ``max_price``.

    ``max_price`` is an ε or a percentage. 100 % is the ε of the stream as it was opened (by basic
    composition) or, with Gaussian noise, its number of charges; extensions do not change it.
    """
    each, total = losses(calibration).loss_per_answer, losses(calibration).total
    if has_gaussian_charges(calibration):
        each, total = Fraction(1), Fraction(calibration.cutoff)
    part = (
        Fraction(max_price.removesuffix("%")) / 100 * total if isinstance(max_price, str) else Fraction(max_price)
    )
    return math.floor(part / each * PARTS_PER_CHARGE)


def noise_rate(calibration: Calibration, share: int, width: int) -> Fraction:
    """Return the noise rate at ``share`` parts, for ℓ₁ sensitivity ``width`` per row."""
    rows = calibration.contribution if isinstance(calibration, EstimateCalibration) else 1
    return losses(calibration).loss_per_answer / rows * Fraction(share, PARTS_PER_CHARGE) / width


@lru_cache(maxsize=1 << 14)
def answer_price(calibration: AnswersCalibration, accountant: str, width: int, values: int, steps: int) -> Price:
    """Return the price of ``values`` laplace numbers within ±``steps``.

    ``width`` is the ℓ₁ sensitivity. Under ``zcdp`` an answer with f times the ε of an ordinary
    charge has f² times its ρ and is charged max(f, f²), so that ε and ρ of the grant both hold.
    """
    promised, log_kept = promised_answers(calibration), math.log1p(-calibration.beta)

    def failure(charges: float) -> float:
        return -math.expm1(log_kept * min(1.0, charges / promised))

    share, reach = _least_share(float(losses(calibration).loss_per_answer) / width, values, failure, steps)
    parts = max(share, -(-share * share // PARTS_PER_CHARGE)) if accountant == "zcdp" else share
    return Price(share, parts, reach)


@lru_cache(maxsize=1 << 14)
def estimate_price(calibration: EstimateCalibration, width: int, values: int, steps: int) -> Price:
    """Return the price of ``values`` numbers of a stream with an estimate, within ±``steps``.

    Each charge has an equal part of the β for numbers. Because the stream is one mechanism with
    δ = 0, its ρ follows from its ε, whatever the prices are.
    """
    failure = partial(numbers_failure, calibration)
    share, reach = _least_share(float(noise_rate(calibration, PARTS_PER_CHARGE, width)), values, failure, steps)
    return Price(share, share, reach)


def count_price(mechanism: Mechanism, calibration: Calibration, alpha: float) -> Price | None:
    """Return the price of one count within ``alpha``; None if questions cannot request an error."""
    if not takes_alpha(calibration):
        return None
    if isinstance(calibration, EstimateCalibration):
        return estimate_price(calibration, WEIGHT_STEPS, 1, math.floor(alpha * WEIGHT_STEPS))
    if isinstance(mechanism, Laplace) and isinstance(calibration, AnswersCalibration):
        return answer_price(calibration, "pure", calibration.sensitivity_steps, 1, math.floor(alpha))
    return None


def numbers_failure(calibration: EstimateCalibration, charges: float) -> float:
    """Return the failure probability of one answer's numbers at a price of ``charges`` ⊤s."""
    return NUMBERS_PART * calibration.beta * min(1.0, charges / calibration.cutoff)


def _least_share(rate: float, values: int, failure: Callable[[float], float], steps: int) -> tuple[int, int]:
    """Return the least share whose noise stays within ``steps``, and the reach of this noise.

    ``rate`` is the noise rate at a whole charge. The search bisects, because the reach falls as the
    share grows.
    """

    def reach(share: int) -> int:
        charges = share / PARTS_PER_CHARGE
        return two_sided_reach(rate * charges, values, failure(charges))

    # A smaller share would need noise that does not fit 52 binary digits.
    low = math.ceil(HEADROOM * PARTS_PER_CHARGE / (rate * LARGEST_NOISE))
    if reach(max(1, low)) <= steps:
        return max(1, low), reach(max(1, low))
    high = max(2, 2 * low)
    while reach(high) > steps:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reach(middle) > steps else (low, middle)
    return high, reach(high)
