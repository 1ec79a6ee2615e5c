"""Warnings about promises that are not informative, from public facts alone.

A promise is not informative if the error that it allows exceeds a third of the rows or of the range
of a number, or the threshold of a decision. The error is the half-width of a 95 % confidence
interval if the mechanism has one, and α otherwise.
"""

from __future__ import annotations

from typing import Final, assert_never

from schemas import (
    AboveThreshold,
    AnswersCalibration,
    Calibration,
    Exponential,
    Histogram,
    Laplace,
    LazyHistogram,
    Mechanism,
    NoisyMax,
    NumericSparse,
    Pmw,
    RandomizedResponse,
    ReleaseCalibration,
    RunningCount,
    Source,
    SparsePmw,
    SparseProject,
    StreamSpec,
    UnknownGroups,
    ValuesSource,
)
from stream.formatting import format_error_bound
from stream.privacy.accuracy.intervals import half_width
from stream.privacy.accuracy.release_accuracy import release_law
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.answer_plans import answer_law

NOT_INFORMATIVE: Final = "not informative"
"""The words that begin each warning."""
LARGEST_SHARE: Final = 1 / 3
"""An error of a larger share of the rows, or of a range, is not informative."""


def describe_uninformative(
    spec: StreamSpec, calibration: Calibration, facts: SourceFacts, source: Source | None = None
) -> str | None:
    """Return a warning with its remedy if a promise is not informative; None if it is, or may be.

    Without a public number of rows, a declared range or a threshold, nothing is known to compare
    the error with.
    """
    error, what = _error(spec.mechanism, calibration)
    beyond = _exceeded(spec, error, calibration.alpha, facts, source)
    if beyond is None:
        return None
    shown = format_error_bound(error, grouped=True)
    return f"{NOT_INFORMATIVE}: an answer may err by {shown} ({what}), which is more than {beyond}; {_remedy(spec.mechanism)}"


def _error(mechanism: Mechanism, calibration: Calibration) -> tuple[float, str]:
    """Return the error of one number, and the figure that it is."""
    if isinstance(mechanism, Laplace) and isinstance(calibration, AnswersCalibration):
        law = answer_law(calibration, calibration.sensitivity_steps, 1)
        return half_width(law) * calibration.grid, "the half-width of its 95 % interval"
    if isinstance(mechanism, Histogram | LazyHistogram) and isinstance(calibration, ReleaseCalibration):
        return float(half_width(release_law(calibration))), "the half-width of a cell's 95 % interval"
    return calibration.alpha, "its alpha"


def _exceeded(
    spec: StreamSpec, error: float, alpha: float, facts: SourceFacts, source: Source | None
) -> str | None:
    """Return the public figure that the error exceeds, in words; None if there is none."""
    mechanism = spec.mechanism
    if isinstance(mechanism, RandomizedResponse):
        return "a third of the range of a share" if alpha > LARGEST_SHARE else None
    if isinstance(mechanism, AboveThreshold | NumericSparse) and 0.0 < abs(mechanism.threshold) < alpha:
        return f"the threshold {mechanism.threshold:g}"
    if isinstance(source, ValuesSource) and source.minimum is not None and source.maximum is not None:
        if error > LARGEST_SHARE * (source.maximum - source.minimum):
            return f"a third of the range from {source.minimum:g} to {source.maximum:g}"
        return None
    sums: tuple[str, ...] = getattr(mechanism, "sums", ())
    if facts.rows is None or sums:
        return None
    return f"a third of the {facts.rows:,} rows" if error > LARGEST_SHARE * facts.rows else None


def _remedy(mechanism: Mechanism) -> str:
    """Return what lowers the error of a mechanism."""
    match mechanism:
        case AboveThreshold() | NumericSparse():
            return "give a larger epsilon, a smaller cutoff or a larger threshold"
        case Laplace():
            return "give a larger epsilon or fewer answers; for many questions about a table take 'auto'"
        case NoisyMax() | Exponential() | UnknownGroups():
            return "give a larger epsilon or fewer answers"
        case RandomizedResponse():
            return "give a larger epsilon or fewer categories, or expect more events"
        case Pmw() | SparsePmw() | SparseProject():
            return "give a larger epsilon, or take laplace for few questions"
        case Histogram() | LazyHistogram() | RunningCount():
            return "give a larger epsilon"
        case _:
            assert_never(mechanism)
