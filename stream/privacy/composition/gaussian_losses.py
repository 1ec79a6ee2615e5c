"""Composition of discrete Gaussian noise: ρ and (ε, δ) of adaptively chosen measurements.

If one person changes a number by Δ, and its noise is N_ℤ(0, σ²), then the number has the *precision*
π = Δ²/σ² and is π/2-zCDP. For N numbers with precisions πᵢ, let c = Σπᵢ/2 and
v = Σπᵢ(1 + T/(σᵢ² − T)). For every T below all variances, docs/proofs/composition.md proves

    δ(ε) ≤ (1 + η)^N · [e^{v/2 − c} Φ((v − c − ε)/√v) − e^ε Φ(−(c + ε)/√v)],    η = 2Σ_{j≥1}
    e^{−2π²Tj²},

With T = η = 0, the right side is the δ of continuous Gaussian noise. The bound is computed in decimal
arithmetic and rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal, getcontext, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from stream.optional_packages import optimize, special
from stream.privacy.noise.samplers import to_decimal

LEAST_VARIANCE: Final = 3
"""Noise of a smaller variance is not composed, because T/(σ² − T) would be too loose."""
SMOOTHINGS: Final = (
    (Fraction(1, 4), Decimal("0.0144")),
    (Fraction(1, 2), Decimal("1.04e-4")),
    (Fraction(1), Decimal("5.4e-9")),
    (Fraction(3, 2), Decimal("3e-13")),
)
"""Values of T, each with an upper bound of its η. The value with the smallest bound on δ is used."""

_DIGITS: Final = 60
_MARGIN: Final = 1 + Decimal("1e-25")
"""A factor that raises δ by more than all rounding errors."""
_MAX_TAIL_DEVIATIONS: Final = 60.0
"""If z is larger, Φ(−z) is replaced by its bound e^{−z²/2}."""
TWO_PI: Final = Decimal("6.28318530717958647692528676655900576839433879875021164194988918461563281257241799726")
_FIRST_MARGIN: Final = 1e-10
_LEAST_RELATIVE_DIFFERENCE: Final = 1e-16
"""Largest relative difference of two numbers that doubles cannot separate."""
_LARGEST_LOG: Final = 60.0


@dataclass(frozen=True, slots=True)
class GaussianNumbers:
    """``count`` numbers, each with noise of this ``variance`` and ℓ₂ sensitivity √``squared_sensitivity``.

    If a person changes several numbers together, the joint sensitivity may be given for one of them; the
    others then have ``squared_sensitivity`` 0.
    """

    count: int
    squared_sensitivity: int
    variance: Fraction

    @property
    def precision(self) -> Fraction:
        """Δ²/σ² of all numbers together."""
        return self.count * self.squared_sensitivity / self.variance


def gaussian_rho(numbers: Sequence[GaussianNumbers]) -> Fraction:
    """Return ρ, half the total precision (Canonne, Kamath & Steinke 2020, Theorem 4)."""
    return sum((part.precision for part in numbers), Fraction(0)) / 2


def gaussian_delta(numbers: Sequence[GaussianNumbers], epsilon: Fraction) -> float:
    """Return a δ, rounded up, at which adaptive measurements are (``epsilon``, δ)-DP; 1 if none is known."""
    if not numbers:
        return 0.0
    if epsilon < 0 or any(part.variance < LEAST_VARIANCE for part in numbers):
        return 1.0
    return min(_bound_delta(numbers, epsilon, *smoothing) for smoothing in SMOOTHINGS)


def _bound_delta(
    numbers: Sequence[GaussianNumbers], epsilon: Fraction, smoothing: Fraction, ripple: Decimal
) -> float:
    half = gaussian_rho(numbers)
    spread = sum((part.precision * (1 + smoothing / (part.variance - smoothing)) for part in numbers), Fraction(0))
    farther = float(half + epsilon) / math.sqrt(spread)
    # Both terms are nearly equal if noise is wide.
    digits = _DIGITS + max(0, -math.floor(math.log10(spread)))
    with localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN)):
        c, v, e = to_decimal(half), to_decimal(spread), to_decimal(epsilon)
        root = v.sqrt()
        nearer, further = (c + e - v) / root, (c + e) / root
        if farther > _MAX_TAIL_DEVIATIONS:
            found = (v / 2 - c - nearer * nearer / 2).exp() if nearer > 0 else Decimal(1)
        else:
            found = (v / 2 - c).exp() * _upper_tail(nearer) - e.exp() * _upper_tail(further)
        found *= (ripple * sum(part.count for part in numbers)).exp() * _MARGIN
        return round_up(min(found, Decimal(1)))


def least_noise_factor(shape: Sequence[GaussianNumbers], epsilon: Fraction, delta: Fraction) -> float:
    """Return nearly the least factor by which ``widen_noise`` makes the noise (ε, δ)-DP.

    The factor is infinite if ε or δ is not above 0.
    """
    if epsilon <= 0 or delta <= 0:
        return math.inf
    precision, wanted = float(2 * gaussian_rho(shape)), math.log(delta)

    def excess(log_factor: float) -> float:
        return _rough_log_delta(shape, precision, float(epsilon), math.exp(log_factor)) - wanted

    low = 0.5 * math.log(float(max(LEAST_VARIANCE / part.variance for part in shape)))
    found = math.exp(low if excess(low) <= 0.0 else optimize.brentq(excess, low, low + _LARGEST_LOG, xtol=1e-12))
    margin = _FIRST_MARGIN
    while gaussian_delta(widen_noise(shape, sound := found * (1.0 + margin)), epsilon) > delta:
        margin *= 4.0
    return sound


@lru_cache(maxsize=4096)
def rough_epsilon(precision: float, delta: float) -> float:
    """Return the ε of continuous Gaussian noise at δ: an approximation for the search of plans."""
    half, root = 0.5 * precision, math.sqrt(precision)

    def excess(epsilon: float) -> float:
        first = float(special.log_ndtr((half - epsilon) / root))
        second = epsilon + float(special.log_ndtr(-(half + epsilon) / root))
        return _log_difference(first, second) - math.log(delta)

    # If ε is larger, even the first term is below δ.
    high = half + root * math.sqrt(-2.0 * math.log(delta))
    return 0.0 if excess(0.0) <= 0.0 else float(optimize.brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-12))


def widen_noise(shape: Sequence[GaussianNumbers], factor: float) -> tuple[GaussianNumbers, ...]:
    """Return the same measurements with all deviations multiplied by ``factor``."""
    squared = Fraction(factor) ** 2
    return tuple(GaussianNumbers(part.count, part.squared_sensitivity, part.variance * squared) for part in shape)


def _rough_log_delta(shape: Sequence[GaussianNumbers], precision: float, epsilon: float, factor: float) -> float:
    squared = factor * factor
    c = 0.5 * precision / squared
    count = sum(part.count for part in shape)
    best = math.inf
    for smoothing, ripple in SMOOTHINGS:
        smoothing_part = float(smoothing)
        v = 0.0
        for part in shape:
            variance = float(part.variance) * squared
            v += (
                part.count
                * part.squared_sensitivity
                / variance
                * (1.0 + smoothing_part / (variance - smoothing_part))
            )
        root = math.sqrt(v)
        first = 0.5 * v - c + float(special.log_ndtr((v - c - epsilon) / root))
        second = epsilon + float(special.log_ndtr(-(c + epsilon) / root))
        best = min(best, _log_difference(first, second) + float(ripple) * count)
    return best


def _log_difference(first: float, second: float) -> float:
    """Return ln(e^first − e^second) for first ≥ second; a relative difference below 10⁻¹⁶ counts as 10⁻¹⁶."""
    return first + math.log(max(-math.expm1(min(second - first, 0.0)), _LEAST_RELATIVE_DIFFERENCE))


def _upper_tail(z: Decimal) -> Decimal:
    if z < 0:
        return 1 - _upper_tail(-z)
    density = (-z * z / 2).exp() / TWO_PI.sqrt()
    if z < 1:
        return Decimal("0.5") - density * _odd_series(z)
    digits = getcontext().prec
    terms = math.ceil((digits * math.log(10.0) / float(z)) ** 2 / 8.0) + _DIGITS
    near = Decimal(10) ** (5 - digits)
    # Convergents alternate around the limit, so that two neighbors bound the error.
    while abs(_mills_convergent(z, terms) - (further := _mills_convergent(z, terms + 1))) > near * further:
        terms *= 2
    return density * further


def _odd_series(z: Decimal) -> Decimal:
    """Return z + z³/3 + z⁵/15 + …, for z below 1."""
    term = total = z
    odd = 1
    while total + term != total:
        odd += 2
        term = term * z * z / odd
        total += term
    return total


def _mills_convergent(z: Decimal, terms: int) -> Decimal:
    """Return a convergent of (1 − Φ(z))/φ(z) = 1/(z + 1/(z + 2/(z + 3/(z + …)))) (Laplace)."""
    value = z
    for number in range(terms, 0, -1):
        value = z + number / value
    return 1 / value


def round_up(value: Decimal) -> float:
    """Return the least double that is not below a decimal."""
    nearest = float(value)
    return math.nextafter(nearest, math.inf) if Decimal(nearest) < value else nearest


_ORDER_DIGITS = 80
_SLACK = Decimal("1e-40")
"""More than all rounding errors: values are below 10^25, with 80 digits each."""
_COARSE_STEPS = 120
_FINE_STEPS = 60
_LARGEST_ORDER_LOG = 60.0


@lru_cache(maxsize=4096)
def largest_rho(epsilon: Fraction, delta: Fraction) -> Fraction:
    """Return the largest ρ at which ρ-zCDP implies (ε, δ)-DP; 0 < δ < 1.

    The result is rounded down by less than 10⁻¹⁸.
    """
    with localcontext(prec=_ORDER_DIGITS):
        rho = _maximize(lambda term, order, given: (given + term) / order, epsilon, delta) - _SLACK
        return Fraction(max(rho, Decimal(0)).quantize(Decimal("1e-30"), rounding=ROUND_FLOOR))


@lru_cache(maxsize=4096)
def least_epsilon(rho: Fraction, delta: Fraction) -> Fraction:
    """Return the least ε at which ρ-zCDP implies (ε, δ)-DP; 0 < δ < 1.

    The result is rounded up by less than 10⁻¹⁸.
    """
    if rho == 0:
        return Fraction(0)
    with localcontext(prec=_ORDER_DIGITS):
        epsilon = _SLACK - _maximize(lambda term, order, given: term - given * order, rho, delta)
        return Fraction(max(epsilon, Decimal(0)).quantize(Decimal("1e-30"), rounding=ROUND_CEILING))


def _maximize(combine: Callable[[Any, Any, Any], Any], given: Fraction, delta: Fraction) -> Decimal:
    """Return the maximum of combine(L/(α − 1), α, ``given``) over the Rényi order α > 1.

    L is the result of ``_log_terms``. The maximum is located in doubles (``rough``), then in decimals
    (``exact``). The function is unimodal, because for fixed ρ, ln δ is convex in α.
    """
    rough_given, rough_log = float(given), math.log(delta.numerator) - math.log(delta.denominator)
    exact_given, exact_log = to_decimal(given), to_decimal(delta).ln()

    def rough(log_order: float) -> float:
        above_one = math.exp(log_order)
        value: float = combine(_rough_log_terms(above_one, rough_log) / above_one, 1.0 + above_one, rough_given)
        return value

    def exact(above_one: Decimal) -> Decimal:
        value: Decimal = combine(_log_terms(above_one, exact_log) / above_one, 1 + above_one, exact_given)
        return value

    low, high = -_LARGEST_ORDER_LOG, _LARGEST_ORDER_LOG
    for _ in range(_COARSE_STEPS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        low, high = (first, high) if rough(first) < rough(second) else (low, second)
    # Doubles locate a maximum with only half of their digits.
    center = Decimal(math.exp((low + high) / 2))
    left, right = center * Decimal("0.999"), center * Decimal("1.001")
    best = exact(center)
    for _ in range(_FINE_STEPS):
        third = (right - left) / 3
        at_first, at_second = exact(left + third), exact(right - third)
        best = max(best, at_first, at_second)
        if at_first < at_second:
            left += third
        else:
            right -= third
    return best


def _rough_log_terms(above_one: float, log_delta: float) -> float:
    """Return ln δ + ln(α−1) − α ln(1 − 1/α) in doubles."""
    order = 1.0 + above_one
    return log_delta + math.log(above_one) + order * math.log1p(1.0 / above_one)


def _log_terms(above_one: Decimal, log_delta: Decimal) -> Decimal:
    """Return ln δ + ln(α−1) − α ln(1 − 1/α), where 1 − 1/α = (α−1)/α."""
    order = 1 + above_one
    log_above_one = above_one.ln()
    return log_delta + log_above_one + order * (order.ln() - log_above_one)
