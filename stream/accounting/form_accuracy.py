"""How far off answers of one form are, by a plan of the stream that gives them: from public facts alone.

It is what an answer's own ``alpha`` says, wherever that follows from them. A quotient of two private numbers carries an error that falls with the lower
one: of shares where the number of rows is private, and of means, the error times that number is told. An answer carries as much over its noisy lower
number, less that number's own error, at most (docs/proofs/laplace.md, docs/proofs/pmw.md).
"""

from __future__ import annotations

from schemas import (
    AnswersCalibration,
    Calibration,
    EstimateCalibration,
    Histogram,
    HypothesisCalibration,
    Laplace,
    Mechanism,
    ReleaseCalibration,
)
from stream.accounting import estimates, hypotheses
from stream.accounting.answers import alpha_for, answer_law
from stream.accounting.estimate_laws import marginal_law
from stream.accounting.inverse import promised_alpha
from stream.accounting.laws import sum_alpha
from stream.accounting.measured import Bounds
from stream.accounting.release_accuracy import histogram_alpha
from stream.accounting.wanted import UNKNOWN_RANGE, Summed, Wanted, groups_of

_BOTH = 2
"""The numbers of a quotient, which share an answer's ε, so that each has twice the noise."""


def form_alpha(calibration: Calibration, mechanism: Mechanism, wanted: Wanted) -> float:
    """The error of each answer to a question of the form; the largest, if it may be about several attributes.

    In rows; of a share in shares where the number of rows is public and given; of sums and means in what their attributes are measured in.
    Groups and means are over all rows. Of windows that are each counted by themselves the number so far adds up all.
    """
    match wanted.form:
        case "fraction":
            error = _shared(calibration, mechanism, wanted)
            return error / max(1, wanted.setting.rows or 1) if wanted.shares else error
        case "sum":
            return max(_sum(calibration, wanted, one) for one in wanted.summed or (UNKNOWN_RANGE,))
        case "mean":
            return max(_mean(calibration, wanted, one) for one in wanted.summed or (UNKNOWN_RANGE,))
        case "running" if isinstance(calibration, AnswersCalibration):
            law = answer_law(calibration, calibration.sensitivity_steps, 1)
            sums = wanted.queries * (wanted.setting.universe or 1)
            return sum_alpha(law, wanted.queries, sums, calibration.beta, whole=True) * calibration.grid
        case "groups" if isinstance(calibration, EstimateCalibration):
            law, groups = marginal_law(calibration, numbered=False), groups_of(wanted).most
            return max(promised_alpha(calibration), Bounds(calibration).fresh(law, groups, 1, whole=True))
        case _:
            return _counted(calibration, mechanism, wanted)


def of_rows(alpha: float, wanted: Wanted) -> float:
    """An error of the form as that of a count which says as much: a constant's is half of the rows."""
    if wanted.form == "fraction":
        return alpha * (wanted.setting.rows or 1) if wanted.shares else alpha
    if wanted.form in {"sum", "mean"}:
        return alpha / max(1, *(one.range for one in wanted.summed or (UNKNOWN_RANGE,)))
    return alpha


def _counted(calibration: Calibration, mechanism: Mechanism, wanted: Wanted) -> float:
    """A histogram promises its cells, and a count adds cells up: up to all of them, a group those of the attributes that it is not of."""
    if not isinstance(mechanism, Histogram) or not isinstance(calibration, ReleaseCalibration):
        return promised_alpha(calibration)
    universe = wanted.setting.universe or 1
    if wanted.form == "groups":
        cells = groups_of(wanted).cells
        return histogram_alpha(calibration, universe, cells, universe // cells)
    few = wanted.form == "cells"
    cells = min(wanted.fields.get("sparsity") or 1, universe) if few else universe
    return histogram_alpha(calibration, universe, cells, whole=not few)


def _shared(calibration: Calibration, mechanism: Mechanism, wanted: Wanted) -> float:
    """The error of a share times the number of rows."""
    setting = wanted.setting
    if isinstance(mechanism, Laplace) and isinstance(calibration, AnswersCalibration) and not setting.rows_public:
        # (t + r)/(b − r) − t/b = r(1 + t/b)/(b − r), and no share is above 1.
        return 2.0 * alpha_for(calibration, _BOTH * setting.contribution, _BOTH, _BOTH)
    error = _counted(calibration, mechanism, wanted)
    if isinstance(calibration, EstimateCalibration):
        return error + estimates.rows_reach(calibration)
    return error + (hypotheses.rows_reach(calibration) if isinstance(calibration, HypothesisCalibration) else 0)


def _sum(calibration: Calibration, wanted: Wanted, summed: Summed) -> float:
    width = max(1, summed.moves)
    if isinstance(calibration, AnswersCalibration):
        return alpha_for(calibration, wanted.setting.contribution * width, 1)
    return promised_alpha(calibration) * width


def _mean(calibration: Calibration, wanted: Wanted, summed: Summed) -> float:
    """The error of a mean over all rows times their number."""
    rows, width = wanted.setting.contribution, max(1, summed.range)
    if isinstance(calibration, AnswersCalibration):
        top = alpha_for(calibration, _BOTH * rows * max(1, summed.centred), _BOTH, _BOTH)
        bottom = alpha_for(calibration, _BOTH * rows, _BOTH, _BOTH)
        # As of a share; the mean is no further from the middle of the range than its larger half.
        return top + (summed.range - summed.range // 2) * bottom
    told = width * promised_alpha(calibration)
    if not isinstance(calibration, EstimateCalibration):
        return told
    # What a ⊤ measures for a mean is the marginal of its attribute, two sums over all of whose values are told.
    cells = summed.range + 1 if wanted.summed else max(wanted.setting.sizes or (wanted.setting.universe or 1,))
    fresh = Bounds(calibration).fresh(marginal_law(calibration, numbered=False), _BOTH, cells, whole=False)
    return max(told, 2.0 * width * fresh)
