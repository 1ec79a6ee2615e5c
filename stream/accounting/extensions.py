"""Extensions: how many further charged answers of a running stream an amount of ε pays for.

Noise, thresholds and everything else that was fixed at the opening stay as they are, so that each further charge costs what
each of the first ones does. Proofs are in docs/proofs/composition.md, "Extensions".
"""

from __future__ import annotations

import math
from fractions import Fraction

from schemas import (
    Calibration,
    Extension,
    Extensions,
    HypothesisCalibration,
    RunningCountCalibration,
    SparsePmw,
    StreamSpec,
)
from schemas.mechanisms import MAX_ANSWERS
from stream.accounting.charged import charged_answers
from stream.accounting.composition import optimal_delta, optimal_epsilon, rounded_up
from stream.accounting.costs import affordable_delta, affordable_epsilon, told
from stream.accounting.losses import are_independent, losses
from stream.accounting.methods import PlanError
from stream.accounting.prices import takes_alpha

MOST_EXTENSIONS = 100
"""So many times a stream may be extended: its definition, which lists them, stays short."""


def plan_extension(
    spec: StreamSpec, calibration: Calibration, extensions: Extensions, request: str, epsilon: float, delta: float
) -> Extension:
    """As many further charged answers as ε pays for; with δ equal and independent ones are composed optimally, by themselves.

    Raises:
        PlanError: the stream has nothing to be extended, or ε pays for none; the message says what to do.
    """
    _require_extensible(spec, calibration, extensions)
    each = losses(calibration).further
    answers = math.floor(told(epsilon) / each)
    granted, failing = rounded_up(answers * each), 0.0
    # Where answers may have prices of their own, charges are no equal rounds.
    if delta > 0.0 and are_independent(calibration) and not takes_alpha(calibration):
        one, most, most_delta = rounded_up(each), affordable_epsilon(epsilon), affordable_delta(delta)
        longest = _longest(one, most, most_delta, answers)
        if longest > answers:
            answers, failing = longest, most_delta
            granted = min(most, optimal_epsilon(one, longest, failing))
    before = charged_answers(calibration, extensions)
    if answers == 0:
        raise PlanError(
            f"epsilon: {epsilon!r} pays for no further charged answer of this stream, each of which costs "
            f"{_written_up(each)!r}; give at least as much"
        )
    if before + answers > MAX_ANSWERS:
        raise PlanError(
            f"epsilon: {epsilon:g} pays for {answers:,} further charged answers, and a stream may give {MAX_ANSWERS:,} in "
            f"all; give at most {max(0.0, float((MAX_ANSWERS - before) * each)):.6g}"
        )
    return Extension(request=request, answers=answers, epsilon=granted, delta=failing)


def _written_up(value: Fraction) -> float:
    """Return the least double whose decimal is not below the value."""
    found = rounded_up(value)
    return found if told(found) >= value else math.nextafter(found, math.inf)


def _require_extensible(spec: StreamSpec, calibration: Calibration, extensions: Extensions) -> None:
    if calibration.cutoff == 0:
        raise PlanError(
            f"stream: {spec.mechanism.kind} is charged once, for all answers there may be; nothing can be added to it, "
            "open another stream"
        )
    if isinstance(calibration, RunningCountCalibration):
        raise PlanError(
            f"stream: its noise was planned for a horizon of {calibration.steps:,} windows, all of them charged once; none can be "
            "added, open another stream"
        )
    if losses(calibration).gaussian:
        raise PlanError(
            "stream: its noise is Gaussian, planned for all of its charged answers together; none can be added, open another "
            "stream"
        )
    if len(extensions) >= MOST_EXTENSIONS:
        raise PlanError(f"stream: it was extended {MOST_EXTENSIONS} times already; open another stream")
    if (
        isinstance(spec.mechanism, SparsePmw)
        and isinstance(calibration, HypothesisCalibration)
        and calibration.places is None
    ):
        raise PlanError(
            "stream: it was opened by an earlier version, whose hypothesis has room for the updates of its opening alone; "
            "open another stream"
        )


def _longest(one: float, epsilon: float, delta: float, least: int) -> int:
    """The largest number of rounds that are together (``epsilon``, ``delta``)-DP, of which ``least`` are known to be."""

    def holds(rounds: int) -> bool:
        return optimal_delta(one, rounds, epsilon) <= delta

    low, high = least, max(1, 2 * least)
    while high <= MAX_ANSWERS and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
