"""Inverse planners: the ε, charged answers or rows for a requested error.

Each inverse planner searches with the ordinary planner, so a plan with its result keeps to the requested
error. The relative difference of the result from the best value is at most ``TOLERANCE``. The module also
computes the error curves of a plan, and the charged answers for which the ε of an extension pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pydantic import BaseModel

from schemas import (
    Calibration,
    Extension,
    Extensions,
    RandomizedResponse,
    RunningCountCalibration,
    StreamSpec,
    UnknownGroupsCalibration,
)
from schemas.mechanisms import MAX_ANSWERS
from stream.formatting import format_error_bound
from stream.optional_packages import np
from stream.privacy.accuracy.noise_laws import least_passing
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import affordable_delta, affordable_epsilon, charged_answers, exact_decimal
from stream.privacy.composition.losses import has_independent_answers, losses, takes_alpha
from stream.privacy.composition.pure_rounds import optimal_delta, optimal_epsilon, round_fraction_up
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration, plan_calibrations, promised_alpha

CUTOFF_FIELDS: Final = ("cutoff", "answers", "updates")
"""Names of the fields for the cutoff of a mechanism: its number of ⊤s, noisy answers or updates."""
ANSWER_CUTOFF_FIELDS: Final = frozenset({"cutoff", "answers"})
"""The cutoff fields that count single answers."""


def cutoff_field(kind: str, model: type[BaseModel], *, standing: bool) -> str | None:
    """Return the name of the cutoff field; None for a mechanism that is charged once.

    A histogram over a table is charged once. In a ``standing`` stream a histogram is charged for each window.
    """
    if kind == "histogram" and not standing:
        return None
    return next((name for name in CUTOFF_FIELDS if name in model.model_fields), None)


TOLERANCE = 1e-3
"""Largest relative difference between a result and the best value."""

LEAST_EPSILON, LARGEST_EPSILON = 1e-6, 1000.0
LARGEST_ROWS = 10**12

_FIRST_ROWS = 10_000
_UNBOUNDED_DISTANCE = math.log(64.0)
"""The search treats an infinite error as 64 times ``alpha``, and an error of 0 as a 64th of it."""


def needed_epsilon(
    spec: StreamSpec, facts: SourceFacts, alpha: float, measure: Callable[[Calibration], float] = promised_alpha
) -> float:
    """Return the least ε (within ``TOLERANCE``) at which the error is at most ``alpha``.

    The search starts at ``spec.epsilon``. ``alpha`` is in the unit of the answers; for randomized response
    it is a share. ``measure`` returns the error of a calibration that is compared with ``alpha``.

    Raises:
        PlanError: no ε up to 1000 is enough, or the specification has no plan at all.
    """
    require_alpha(alpha)

    def error_at(epsilon: float) -> float:
        return _error_or_infinity(spec.model_copy(update={"epsilon": epsilon}), facts, measure)

    boundary = _find_boundary(error_at, alpha, spec.epsilon, (LEAST_EPSILON, LARGEST_EPSILON), integral=False)
    if boundary is None:
        least = measure(choose_calibration(spec.model_copy(update={"epsilon": LARGEST_EPSILON}), facts))
        raise PlanError(
            f"alpha: even epsilon = {LARGEST_EPSILON:g} leaves an error of {least:.4g}; ask for a larger alpha, a "
            "finer grid or fewer charged answers"
        )
    return boundary[1]


def largest_cutoff(spec: StreamSpec, facts: SourceFacts, alpha: float) -> int:
    """Return the most charged answers (within ``TOLERANCE``) at which the error is at most ``alpha``.

    The charged answers are the ⊤s of above_threshold and numeric_sparse, and all answers of laplace, noisy_max and
    exponential. The result is at most ``MAX_ANSWERS``; the cutoff in ``spec`` is ignored.

    Raises:
        PlanError: even a single answer has a larger error, or the mechanism does not charge single answers.
    """
    require_alpha(alpha)

    def error_at(cutoff: float) -> float:
        return _error_or_infinity(_with_cutoff(spec, int(cutoff)), facts)

    boundary = _find_boundary(error_at, alpha, 1, (1, MAX_ANSWERS), integral=True, rising=True)
    if boundary is None:
        return MAX_ANSWERS
    if boundary[1] == 1:
        least = promised_alpha(choose_calibration(_with_cutoff(spec, 1), facts))
        raise PlanError(
            f"alpha: a single charged answer already has an error of {least:.4g}; ask for a larger alpha or raise epsilon"
        )
    return int(boundary[0])


def needed_rows(spec: StreamSpec, facts: SourceFacts, alpha_fraction: float) -> int:
    """Return the least number of rows (within ``TOLERANCE``) for a relative error.

    The error is at most ``alpha_fraction`` of the rows. For randomized response, whose error is
    already a share, the result is the number of events. ``facts.rows`` is ignored.

    Raises:
        PlanError: no number of rows up to 10^12 is enough, or the specification has no plan at all.
    """
    require_alpha(alpha_fraction)

    def error_at(rows: float) -> float:
        if isinstance(spec.mechanism, RandomizedResponse):
            return _error_or_infinity(spec.model_copy(update={"expected_queries": int(rows)}), facts)
        return _error_or_infinity(spec, replace(facts, rows=int(rows))) / rows

    boundary = _find_boundary(error_at, alpha_fraction, _FIRST_ROWS, (1, LARGEST_ROWS), integral=True)
    if boundary is None:
        choose_calibration(spec, replace(facts, rows=LARGEST_ROWS))
        raise PlanError(
            f"alpha: no table of up to 10^12 rows has an error of {alpha_fraction:g} of its rows; ask for a larger "
            "fraction or raise epsilon"
        )
    return int(boundary[1])


def require_alpha(alpha: float) -> None:
    """Raise PlanError unless ``alpha`` is a positive finite number."""
    if not 0.0 < alpha < math.inf:
        raise PlanError(f"alpha: must be a positive finite number, not {alpha:g}")


def _error_or_infinity(
    spec: StreamSpec, facts: SourceFacts, measure: Callable[[Calibration], float] = promised_alpha
) -> float:
    try:
        return measure(choose_calibration(spec, facts))
    except PlanError:
        return math.inf


def _with_cutoff(spec: StreamSpec, cutoff: int) -> StreamSpec:
    mechanism = spec.mechanism
    field = cutoff_field(mechanism.kind, type(mechanism), standing=spec.standing is not None)
    if field not in ANSWER_CUTOFF_FIELDS:
        raise PlanError(
            f"mechanism.kind: {mechanism.kind} does not charge single answers, so their number cannot be "
            "planned; ask for the epsilon that it needs"
        )
    return spec.model_copy(update={"mechanism": mechanism.model_copy(update={field: cutoff})})


def _find_boundary(
    error_at: Callable[[float], float],
    alpha: float,
    start: float,
    bounds: tuple[float, float],
    *,
    integral: bool,
    rising: bool = False,
) -> tuple[float, float] | None:
    """Return two neighboring points, of which only the second is past the boundary.

    A point is past the boundary if its error is at most ``alpha``; for ``rising`` errors, if it is above ``alpha``.
    Return None if no point is past the boundary, and the least point twice if all points are. Errors are nearly powers
    of the parameter, so the search extrapolates the next point in logarithms; every third step bisects instead.
    """
    least, largest = bounds
    below: float | None = None
    above: float | None = None
    point, slope = min(max(start, least), largest), 1.0
    before: tuple[float, float] | None = None
    iteration = 0
    while True:
        iteration += 1
        error = error_at(point)
        past = error > alpha if rising else error <= alpha
        distance = abs(math.log(error / alpha)) if 0.0 < error < math.inf else _UNBOUNDED_DISTANCE
        below, above = (below, point) if past else (point, above)
        if above == least:
            return least, least
        if below == largest:
            return None
        if below is not None and above is not None and above - below <= max(int(integral), TOLERANCE * below):
            return below, above
        signed_distance = -distance if past else distance
        if before is not None and before[0] != math.log(point) and distance < _UNBOUNDED_DISTANCE:
            measured = (before[1] - signed_distance) / (math.log(point) - before[0])
            slope = min(max(measured, 0.1), 4.0)
        before = (math.log(point), signed_distance)
        # The next point should be on the other side, so the step is slightly too long.
        guess = point * math.exp(signed_distance / slope + math.copysign(0.4 * TOLERANCE, signed_distance))
        low, high = below or least, above or largest
        if below is not None and above is not None and (iteration % 3 == 0 or not low < guess < high):
            guess = math.sqrt(low * high)
        point = min(max(guess, least), largest)
        if integral:
            point = min(max(round(point), low + (below is not None)), high - (above is not None))


CURVE_POINTS: Final = 25
"""Default number of points of a curve."""


class VariedParameter(StrEnum):
    """The parameter that a curve varies."""

    EPSILON = "epsilon"
    CUTOFF = "cutoff"


@dataclass(frozen=True, slots=True)
class PlanPoint:
    """The calibrations at one ε or one cutoff; there are none if no calibration fits."""

    value: float
    calibrations: tuple[Calibration, ...]


def error_curve(
    spec: StreamSpec,
    facts: SourceFacts,
    against: VariedParameter,
    points: int = CURVE_POINTS,
    start: int = 0,
) -> Iterator[PlanPoint]:
    """Yield the calibrations at about ``points`` values of ε or of the cutoff, including the given value.

    ε varies from a tenth to ten times the given ε, the cutoff from 1 to ten times the given cutoff. Each
    plan is computed when the iterator reaches it. Values before ``start`` are skipped.

    Raises:
        PlanError: the cutoff should vary, but the mechanism is charged once and has no cutoff.
    """
    for value, varied in varied_specs(spec, against, points)[start:]:
        try:
            calibrations = plan_calibrations(varied, facts)
        except PlanError:
            calibrations = ()
        yield PlanPoint(value, calibrations)


def varied_specs(
    spec: StreamSpec, against: VariedParameter, points: int = CURVE_POINTS
) -> list[tuple[float, StreamSpec]]:
    """Return the varied specifications of a curve, each with its value, in order."""
    if against is VariedParameter.EPSILON:
        factors = np.geomspace(1.0, 10.0, points // 2 + 1)[1:].tolist()
        values = [
            *(spec.epsilon / value for value in reversed(factors)),
            spec.epsilon,
            *(spec.epsilon * value for value in factors),
        ]
        return [(value, spec.model_copy(update={"epsilon": value})) for value in values]
    mechanism = spec.mechanism
    name = cutoff_field(mechanism.kind, type(mechanism), standing=spec.standing is not None)
    if name is None:
        raise PlanError(f"cutoff: {mechanism.kind} is charged once; vary epsilon")
    given = getattr(mechanism, name)
    cutoffs = {round(value) for value in np.geomspace(1, min(10 * (given or 10), MAX_ANSWERS), points)}
    return [
        (float(value), spec.model_copy(update={"mechanism": mechanism.model_copy(update={name: value})}))
        for value in sorted(cutoffs | ({given} if given else set()))
    ]


MAX_EXTENSIONS = 100
"""Maximum number of extensions of a stream, because its definition lists them all."""


def plan_extension(
    spec: StreamSpec, calibration: Calibration, extensions: Extensions, request: str, epsilon: float, delta: float
) -> Extension:
    """Return the largest extension that ``epsilon`` pays for.

    With δ, the charges of the extension are composed optimally if they are equal and independent; charges
    before the extension are not part of this composition.

    Raises:
        PlanError: the stream cannot be extended, or ε pays for no answer.
    """
    _require_extensible(spec, calibration, extensions)
    each = losses(calibration).extension_loss
    answers = math.floor(exact_decimal(epsilon) / each)
    granted, granted_delta = round_fraction_up(answers * each), 0.0
    # If questions may have their own prices, charges are not equal rounds.
    if delta > 0.0 and has_independent_answers(calibration) and not takes_alpha(calibration):
        each_rounded = round_fraction_up(each)
        most_epsilon, most_delta = affordable_epsilon(epsilon), affordable_delta(delta)
        longest = _most_answers(each_rounded, most_epsilon, most_delta, answers)
        if longest > answers:
            answers, granted_delta = longest, most_delta
            granted = min(most_epsilon, optimal_epsilon(each_rounded, longest, granted_delta))
    before = charged_answers(calibration, extensions)
    if answers == 0:
        price = round_fraction_up(each)
        if exact_decimal(price) < each:
            price = math.nextafter(price, math.inf)
        raise PlanError(
            f"epsilon: {epsilon!r} pays for no further charged answer, because each costs {format_error_bound(price)}; give at "
            "least as much"
        )
    if before + answers > MAX_ANSWERS:
        raise PlanError(
            f"epsilon: {epsilon:g} pays for {answers:,} further charged answers, and a stream may give {MAX_ANSWERS:,} in "
            f"all; give at most {max(0.0, float((MAX_ANSWERS - before) * each)):.6g}"
        )
    return Extension(request=request, answers=answers, epsilon=granted, delta=granted_delta)


def extension_price(spec: StreamSpec, calibration: Calibration, extensions: Extensions) -> float | None:
    """Return the ε of each answer of an extension, rounded up; None if the stream cannot be extended."""
    try:
        _require_extensible(spec, calibration, extensions)
    except PlanError:
        return None
    return round_fraction_up(losses(calibration).extension_loss)


def _require_extensible(spec: StreamSpec, calibration: Calibration, extensions: Extensions) -> None:
    if calibration.cutoff == 0:
        raise PlanError(
            f"stream: {spec.mechanism.kind} is charged once for all of its answers, so it cannot be extended; open another "
            "stream"
        )
    if isinstance(calibration, RunningCountCalibration):
        raise PlanError(
            f"stream: its noise was planned for exactly {calibration.steps:,} windows, which are charged once, so it cannot be "
            "extended; open another stream"
        )
    if isinstance(calibration, UnknownGroupsCalibration):
        raise PlanError(
            "stream: unknown_groups has a δ for each answer, planned for all of its answers together; none can be added, open another "
            "stream"
        )
    if losses(calibration).gaussian:
        raise PlanError(
            "stream: its Gaussian noise was planned for a fixed number of charged answers, so it cannot be extended; open "
            "another stream"
        )
    if len(extensions) >= MAX_EXTENSIONS:
        raise PlanError(f"stream: it was extended {MAX_EXTENSIONS} times already; open another stream")


def _most_answers(charge_epsilon: float, epsilon: float, delta: float, least: int) -> int:
    def exceeds(rounds: int) -> bool:
        return rounds > 2 * MAX_ANSWERS or optimal_delta(charge_epsilon, rounds, epsilon) > delta

    return least_passing(exceeds, least, max(1, 2 * least)) - 1
