"""Texts of error bounds and of budgets, and warnings about bounds that are not informative.

Each text states which numbers or decisions the bound is for, how many answers, and the probability. A promise is not
informative if the error exceeds a third of the rows or of the range of a number, or the threshold of a decision. For
laplace and histograms, the error is the half-width of a 95 % confidence interval; for other mechanisms it is α.
Warnings depend on public facts alone. A second part describes what a budget promises in each of its periods.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, assert_never

from schemas import (
    AboveThreshold,
    AnswersCalibration,
    Calibration,
    EstimateCalibration,
    Exponential,
    Extensions,
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
    RunningCountCalibration,
    Source,
    SparsePmw,
    SparseProject,
    SparseVectorCalibration,
    StreamSpec,
    UnknownGroups,
    UnknownGroupsCalibration,
    ValuesSource,
)
from schemas.queries import MAX_CANDIDATES
from stream.formatting import LARGEST_SHARE, NOT_INFORMATIVE, format_count, format_error_bound
from stream.privacy.accuracy.intervals import half_width
from stream.privacy.accuracy.noise_laws import least_passing, two_sided_reach
from stream.privacy.accuracy.release_accuracy import release_law
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.accuracy.sparse_vector_accuracy import gap_bias
from stream.privacy.composition.costs import BudgetTerms, charged_answers
from stream.privacy.composition.losses import promised_answers
from stream.privacy.planning.answer_plans import answer_law
from stream.privacy.planning.running_text_plans import count_released_with
from stream.privacy.planning.unknown_groups_plans import rows_released_with

_USEFUL_FACTOR = 10.0
"""A promise is of little use for a table with fewer rows than this many times α."""

VACUOUS = "vacuous: it says no more than the number of rows does"
"""Warning about a promise that an answer which ignores the data would keep too."""


def extended_beta(calibration: Calibration, extensions: Extensions) -> float:
    """Return the probability with which the error bound may fail for some charged answer.

    The probability grows by β with every ``cutoff`` charged answers. If it is 1 or more, no bound holds for
    all charged answers together; the bound for the first ``cutoff`` of them still holds.
    """
    if not extensions:
        return calibration.beta
    return calibration.beta * charged_answers(calibration, extensions) / calibration.cutoff


@dataclass(frozen=True, slots=True)
class Promise:
    """One error bound of a stream as text: ``before`` α ``after``, for the answers ``over``.

    All bounds of a stream hold together with ``probability``. ``warning`` is empty, or says that an
    answer that ignores the data would keep the bound too.
    """

    before: str
    alpha: float
    after: str
    over: str
    probability: float
    remark: str
    warning: str

    def __str__(self) -> str:
        """Return the promise as a sentence without a full stop."""
        text = f"{self.before}{format_error_bound(self.alpha, grouped=True)}{self.after} with probability {self.probability:g} {self.over}"
        return "; ".join(part for part in (text, self.remark, self.warning) if part)


def promises(
    spec: StreamSpec, calibration: Calibration, extensions: Extensions = (), counted: str = ""
) -> tuple[Promise, ...]:
    """Return the error bounds of a stream, from its public definition alone.

    Extensions do not change the bounds for the charged answers of the opening. But the more answers there
    are, the more probably some answer exceeds its bound. ``counted`` describes the contribution bound in rows,
    which does not apply to streams that count people; it is empty without such a bound.
    """
    opening = _opening_promises(spec, calibration)
    if counted and not getattr(spec.mechanism, "people", False):
        opening = tuple(_with_remark(promise, counted) for promise in opening)
    # If the opening pays for more answers than are promised, extensions change no promise. A sparse vector's promise
    # is for all answers, and so it ends with the expected ones; other mechanisms are promised for charged answers.
    last = {"answers": calibration.cutoff - 1, "sparse_vector": calibration.cutoff}.get(calibration.kind, 0)
    if not extensions or calibration.expected_queries <= last:
        return opening
    count, beta = charged_answers(calibration, extensions), extended_beta(calibration, extensions)
    extended = f"for its first {calibration.cutoff:,} charged answers"
    extended += f", with probability {1.0 - beta:.4g} for all {count:,}" if beta < 1.0 else f" of {count:,}"
    return tuple(_with_remark(promise, extended) for promise in opening)


def _opening_promises(spec: StreamSpec, calibration: Calibration) -> tuple[Promise, ...]:  # noqa: C901, PLR0911, PLR0912, PLR0915 - one for each mechanism
    mechanism, over = spec.mechanism, _over_first(calibration.expected_queries, "answer")
    promise = partial(_build_promise, calibration)
    match mechanism:
        case AboveThreshold() | NumericSparse():
            right = "each 'above' and 'below' is right about values further than "
            decided = promise(right, " from the threshold", over)
            if not isinstance(calibration, SparseVectorCalibration) or calibration.numbers == "none":
                return (decided,)
            lean = gap_bias(calibration) if calibration.numbers == "gap" else 0.0
            remark = ""
            if lean > 0.0:
                remark = f"of values far above the threshold they are {format_error_bound(lean, grouped=True)} too low on average"
            number = promise(
                "each number beside an 'above' is within ±", "", over, remark, calibration.answer_alpha
            )
            return decided, number
        case Laplace() | Histogram() if spec.standing is not None and spec.standing.quantile is not None:
            return (promise("each quantile's rank is within ±", " events", _over_charged(calibration)),)
        case Laplace(dimensions=dimensions):
            dimensions_text = f", of up to {dimensions:,} in an answer," if dimensions > 1 else ""
            table = "on a table: each count; numbers with a larger sensitivity carry their own alpha"
            remark = "" if spec.standing is not None else table
            return (promise(f"each number{dimensions_text} is within ±", "", _over_charged(calibration), remark),)
        case NoisyMax() | Exponential():
            before = f"each choice among up to {MAX_CANDIDATES} candidates is at most "
            remark = "fewer candidates carry a smaller alpha"
            return (promise(before, " below the best", _over_charged(calibration), remark),)
        case RandomizedResponse():
            over = _over_first(calibration.expected_queries, "event")
            return (promise("each category's estimated share is within ±", "", over),)
        case Histogram() if isinstance(calibration, AnswersCalibration):
            over = _over_first(promised_answers(calibration), "window")
            return (promise("each number of a window is within ±", "", over),)
        case Histogram():
            remark = "sums of cells carry their own alpha"
            return (promise("each cell is within ±", "", "over all cells, however often asked", remark),)
        case LazyHistogram(sparsity=sparsity) | SparseProject(sparsity=sparsity):
            worst = "for the worst table, all of its rows in one cell; each answer carries its own, which is smaller for others"
            whole = worst if isinstance(mechanism, SparseProject) else ""
            cells = f"answer about up to {sparsity:,} cells" if sparsity > 1 else "answer about a cell"
            if isinstance(calibration, ReleaseCalibration) and calibration.noise_only:
                remark = "each answer carries its whole error, which depends on the table"
                return (promise(f"the noise in each {cells} is within ±", "", over, remark),)
            return (promise(f"each {cells} is within ±", "", over, whole),)
        case RunningCount(steps=steps):
            groups = calibration.groups if isinstance(calibration, RunningCountCalibration) else 1
            over = f"over all {steps:,} windows" if steps > 1 else "over the one window"
            over += f" and {groups:,} groups" if groups > 1 else ""
            remark = "an answer made of fewer sums carries a smaller alpha"
            if isinstance(calibration, RunningCountCalibration) and calibration.threshold is not None:
                over = f"{over} and all texts"
                remark = _describe_release(partial(count_released_with, calibration), "counted so far")
            return (promise("each number so far is within ±", "", over, remark),)
        case UnknownGroups(counts=counts):
            certain = ("a text is released for certain from ", " people on")
            words = ("the count of each text is within ±", "") if counts else certain
            over, remark = _over_charged(calibration), _release_remark(spec, calibration)
            released = promise(*words, over, remark)
            return (released if counts else replace(released, probability=1.0),)
        case Pmw() if isinstance(calibration, EstimateCalibration):
            after = "" if mechanism.beyond == "end" else "later answers have no bound; "
            remark = f"{after}sums, means, shares and groups carry their own; {_for_few_rows(calibration)}"
            return (promise("each count is within ±", "", "over all answers while its measurements last", remark),)
        case Pmw(updates=updates, gap=gap, rows=rows) | SparsePmw(updates=updates, gap=gap, rows=rows):
            over += " while its updates last" if updates and gap else ""
            return (
                promise(
                    "each count is within ±", "", over, f"for a table of at most {rows:,} rows" if rows else ""
                ),
            )
        case _:
            assert_never(mechanism)


def _release_remark(spec: StreamSpec, calibration: Calibration) -> str:
    """Describe with how many rows, events or people a text is released."""
    if not isinstance(calibration, UnknownGroupsCalibration):
        return ""
    counted = "rows" if spec.standing is None else spec.standing.count
    unit = "people" if calibration.method == "selection" else counted
    return _describe_release(partial(rows_released_with, calibration), f"{unit}")


def _describe_release(released_with: Callable[[float], int], unit: str) -> str:
    """Describe with how many of a unit a text is released; ``released_with`` returns them for a probability."""
    half, mostly = released_with(0.5), released_with(0.95)
    if half == mostly:
        return f"a text with {mostly:,} {unit} is released with probability 95 % or more"
    return f"a text with {half:,} {unit} is released with probability 50 % or more, one with {mostly:,} with 95 %"


def _for_few_rows(calibration: EstimateCalibration) -> str:
    """Describe for which tables α is too large, and the better choice for them."""
    rows, smaller_alpha = _USEFUL_FACTOR * calibration.alpha, calibration.alpha / _USEFUL_FACTOR
    count = laplace_answers(calibration, smaller_alpha)
    instead = f"laplace answers {format_count(count, 'question')} within ±{format_error_bound(smaller_alpha, grouped=True)}"
    advice = instead if count else "a larger epsilon is needed"
    return f"in a table of fewer than {math.ceil(rows):,} rows this error is more than a tenth of the rows: there {advice}"


def laplace_answers(calibration: EstimateCalibration, alpha: float) -> int:
    """Return how many counts laplace answers within ``alpha`` rows, with the same ε and β."""
    rate, beta = calibration.epsilon / calibration.contribution, calibration.beta
    return least_passing(lambda count: two_sided_reach(rate / count, count, beta) > alpha, 0, 1) - 1


def is_vacuous(spec: StreamSpec, calibration: Calibration, rows: int | None) -> bool:
    """Return True if a constant answer, such as half of the public row count, keeps the promise."""
    least = least_vacuous_alpha(spec, rows)
    return least is not None and calibration.alpha >= least


def least_vacuous_alpha(spec: StreamSpec, rows: int | None) -> float | None:
    """Return the least α that a constant answer keeps; None for private row counts and for sums.

    A share is between 0 and 1, so the constant answer ½ errs by at most ½. The error of a decision or a choice is
    at most the number of rows.
    """
    if isinstance(spec.mechanism, RandomizedResponse):
        return 0.5
    sums: tuple[str, ...] = getattr(spec.mechanism, "sums", ())
    if rows is None or sums:
        return None
    if isinstance(spec.mechanism, AboveThreshold | NumericSparse | NoisyMax | Exponential):
        return float(rows)
    return 0.5 * rows


def _build_promise(
    calibration: Calibration, before: str, after: str, over: str, remark: str = "", alpha: float | None = None
) -> Promise:
    return Promise(
        before=before,
        alpha=calibration.alpha if alpha is None else alpha,
        after=after,
        over=over,
        probability=1.0 - calibration.beta,
        remark=remark,
        warning=VACUOUS if calibration.vacuous else "",
    )


def _with_remark(promise: Promise, remark: str) -> Promise:
    return replace(promise, remark="; ".join(part for part in (promise.remark, remark) if part))


def _over_charged(calibration: Calibration) -> str:
    if not isinstance(calibration, AnswersCalibration | UnknownGroupsCalibration):
        raise TypeError(f"a {calibration.kind} calibration does not charge each answer")
    return _over_first(promised_answers(calibration), "answer")


def _over_first(count: int, what: str) -> str:
    return f"over the first {count:,} {what}s" if count > 1 else f"over the first {what}"


def describe_uninformative(
    spec: StreamSpec,
    calibration: Calibration,
    facts: SourceFacts,
    source: Source | None = None,
    expected: float | None = None,
    *,
    is_chosen: bool = False,
) -> str | None:
    """Return a warning with its remedy if a promise is certainly not informative, else None.

    The error is compared with a public number of rows, a declared range, a threshold or an ``expected``
    answer. If none of these is known, the result is None. If ``auto`` has chosen the mechanism
    (``is_chosen``), the remedy does not advise it.
    """
    error, what = _describe_error(spec.mechanism, calibration)
    beyond = _describe_exceeded(spec, error, calibration.alpha, facts, source)
    if beyond is None and expected is not None and error > abs(expected):
        beyond = f"the expected answer {expected:g}"
    if beyond is None:
        return None
    shown = format_error_bound(error, grouped=True)
    return f"{NOT_INFORMATIVE}: an answer may err by {shown} ({what}), which is more than {beyond}; {_describe_remedy(spec.mechanism, is_chosen=is_chosen)}"


def _describe_error(mechanism: Mechanism, calibration: Calibration) -> tuple[float, str]:
    """Return the error of one number, and a description of this error."""
    if isinstance(mechanism, Laplace) and isinstance(calibration, AnswersCalibration):
        law = answer_law(calibration, calibration.sensitivity_steps, 1)
        return half_width(law) * calibration.grid, "the half-width of its 95 % interval"
    if isinstance(mechanism, Histogram | LazyHistogram) and isinstance(calibration, ReleaseCalibration):
        return float(half_width(release_law(calibration))), "the half-width of a cell's 95 % interval"
    return calibration.alpha, "its alpha"


def _describe_exceeded(
    spec: StreamSpec, error: float, alpha: float, facts: SourceFacts, source: Source | None
) -> str | None:
    """Describe the public number that the error exceeds; None if it exceeds none."""
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


def _describe_remedy(mechanism: Mechanism, *, is_chosen: bool) -> str:
    """Return the text of the remedy: how to lower the error of a mechanism."""
    match mechanism:
        case AboveThreshold() | NumericSparse():
            return "give a larger epsilon, a smaller cutoff or a larger threshold"
        case Laplace():
            take_auto = "" if is_chosen else "; for many questions about a table take 'auto'"
            return f"give a larger epsilon or fewer answers{take_auto}"
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


_HOUR_MS: Final = 3_600_000
_UNITS: Final = {"h": ("hour", _HOUR_MS), "d": ("day", 24 * _HOUR_MS)}


def period_length_ms(renews: str | None) -> int:
    """Return the length of a period in milliseconds; 0 if the budget does not renew."""
    return 0 if renews is None else int(renews[:-1]) * _UNITS[renews[-1]][1]


def describe_promise(terms: BudgetTerms, number: int) -> str:
    """Describe for users what a budget promises in its period ``number``."""
    if terms.renews is None:
        return "privacy is for ever: the budget never renews"
    count, (unit, _) = int(terms.renews[:-1]), _UNITS[terms.renews[-1]]
    period = f"{count} {unit}s" if count > 1 else unit
    so_far = "this is the first period"
    if number > 1:
        so_far = f"this is period {number}, so at its end they may have cost {number} times as much"
    return (
        f"privacy is per period, not for ever: every {period} a person may lose {_format_budget(terms.epsilon, terms.delta)} again, "
        f"so that k periods may cost k times as much; {so_far}"
    )


def describe_joining(source: str, population: str, number: int) -> str:
    """Describe the loss in a population's earlier periods, for a source that joins it in period ``number``."""
    return (
        f"the grants of '{source}' count from period {number} of population '{population}' on; they did not count in its earlier periods, "
        "so each of these may have cost a person that much more than the population's budget"
    )


def describe_promise_per_period(epsilon: float, delta: float, period: str) -> str:
    """Describe for users what a live topic's budget for each period promises."""
    return (
        f"{_format_budget(epsilon, delta)} for a person's events in one period of {period}; a person with events in k periods "
        "may lose k times as much"
    )


def _format_budget(epsilon: float, delta: float) -> str:
    return f"ε = {epsilon:g}" + (f", δ = {delta:g}" if delta else "")
