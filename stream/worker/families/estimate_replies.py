"""Replies of streams with an estimate: numbers, error bounds, confidence intervals and prices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from schemas import INDEPENDENCE, EstimateCalibration, Interval, Measurement
from stream.privacy.accuracy.intervals import NoisyNumber, clip_interval
from stream.privacy.accuracy.rate_intervals import ratio_interval, share_bounds_of_rows
from stream.privacy.mechanisms.estimate_questions import (
    CellGroups,
    MeanQuestion,
    Ranks,
    Rates,
    ShareQuestion,
    Spreads,
)
from stream.privacy.mechanisms.estimator import EstimateAnswer, Estimator
from stream.privacy.noise.samplers import sampler
from stream.privacy.planning.hypothesis_plans import rows_rate
from stream.privacy.planning.plans import first_price, shown_price
from stream.processing.dead_letters import PRICE, Rejection
from stream.worker.families.estimate_reader import QuestionReader, ReadQuestion
from stream.worker.families.family import Reply, price_refusal
from stream.worker.families.statistics import (
    NoisyRate,
    build_rates_reply,
    keep_largest_groups,
    share_alpha,
    share_interval,
    statistic_reply,
)

_TYPICAL_FORMS: Final = ("count", "fraction", "groups")
_BASIS_OF_KIND: Final = {
    "settled": "measured",
    "above": "noisy",
    "priced": "noisy",
    "below": "hypothesis",
    "unpromised": "hypothesis",
}

CHARGED_KINDS: Final = ("above", "priced")


@dataclass(frozen=True, slots=True)
class EstimateState:
    """The state of a stream; ``rows`` is the public or noisy row count."""

    incarnation: str
    reader: QuestionReader
    estimator: Estimator
    rows: int


def build_reply(
    calibration: EstimateCalibration,
    current: EstimateState,
    read: ReadQuestion,
    answer: EstimateAnswer,
    update: Measurement | None,
) -> Reply:
    """Build the reply with an answer of the estimator; ``update`` is the record of its measurement."""
    basis = _BASIS_OF_KIND[answer.kind]
    if not answer.is_covered and (calibration.marks_guesses or calibration.warm_start == "workload"):
        basis = INDEPENDENCE
    charged = answer.kind in CHARGED_KINDS
    question = read.question
    if isinstance(question, ShareQuestion) and len(answer.numbers) == 1:
        # The ⊤ has published only the count.
        question = question.counted
    if read.statistic is not None and isinstance(question, Ranks | Spreads):
        reach = None if answer.error_bounds is None else max(answer.error_bounds)
        reply = statistic_reply(read.statistic, question, answer.numbers, reach, calibration.beta)
        return replace(reply, charged=charged, basis=basis, update=update)
    if isinstance(question, MeanQuestion):
        estimate, alpha = _mean_and_error(question, answer)
        interval = _mean_interval(question, answer)
        return Reply(
            charged=charged,
            estimate=_convert_to_unit(read, estimate),
            basis=basis,
            alpha=None if alpha is None else _convert_to_unit(read, alpha),
            update=update,
            interval=None if interval is None else _convert_interval_to_unit(read, interval),
        )
    scale = question.width / question.unit
    alpha = None if answer.error_bounds is None else _convert_to_unit(read, max(answer.error_bounds) * scale)
    numbers = tuple(_convert_to_unit(read, number / question.unit) for number in answer.numbers)
    typical = _typical_error(current, read, answer)
    if typical is not None and alpha is not None:
        typical = min(typical, alpha)
    fields: dict[str, Any] = {"charged": charged, "basis": basis, "update": update, "typical_error": typical}
    if isinstance(question, Rates):
        fields |= {"grouped": read.grouped, "excluded": question.excluded_groups}
        return _rates_of_groups(numbers, alpha, answer.rates, **fields)
    intervals = _intervals(calibration, current, read, answer)
    if isinstance(question, CellGroups):
        reply = Reply(estimates=numbers, alpha=alpha, intervals=intervals, **fields)
        return reply if read.top is None else keep_largest_groups(reply, read.top)
    estimate = numbers[0]
    if read.form == "fraction":
        alpha = None if alpha is None else share_alpha(calibration, current.rows, estimate, alpha)
        estimate /= current.rows
    interval = None if intervals is None else intervals[0]
    return Reply(estimate=estimate, alpha=alpha, interval=interval, **fields)


def _typical_error(current: EstimateState, read: ReadQuestion, answer: EstimateAnswer) -> float | None:
    question = read.question.counted if isinstance(read.question, ShareQuestion) else read.question
    if answer.error_scale is None or read.form not in _TYPICAL_FORMS or not question.full_weights:
        return None
    cells = math.prod(current.estimator.sizes[axis] for axis in question.axes)
    estimates = [number / question.unit for number in answer.numbers]
    found = answer.error_scale.error_of_sums(question.summed_cells / cells, estimates, current.rows)
    return (found / current.rows if read.form == "fraction" else found) or None


def _convert_to_unit(read: ReadQuestion, steps: float) -> float:
    """Convert a number of steps to the summed attribute's unit."""
    return steps if read.unit == 1 else steps / float(1 / read.unit)


def _convert_interval_to_unit(read: ReadQuestion, interval: Interval) -> Interval:
    return _convert_to_unit(read, interval[0]), _convert_to_unit(read, interval[1])


def _intervals(
    calibration: EstimateCalibration, current: EstimateState, read: ReadQuestion, answer: EstimateAnswer
) -> tuple[Interval, ...] | None:
    """Return the confidence intervals of measured numbers, within their public limits.

    Each interval contains the published number; the ends of a count's interval are whole rows.
    """
    if answer.intervals is None:
        return None
    unit = read.question.unit
    if read.form == "fraction" and calibration.epsilon_rows > 0.0 and answer.noise is not None:
        [(low, high)], [number] = answer.intervals, answer.numbers
        rows = NoisyNumber(current.rows, sampler("two_sided", rows_rate(calibration)))
        [(first, last)] = answer.rates or (share_bounds_of_rows((low + high) / 2, answer.noise, rows, unit),)
        share = number / unit / current.rows
        return ((min(first, share), max(last, share)),)
    intervals = [
        (min(low, number) / unit, max(high, number) / unit)
        for (low, high), number in zip(answer.intervals, answer.numbers, strict=True)
    ]
    if read.form == "fraction":
        return tuple(share_interval(calibration, current.rows, one) for one in intervals)
    if read.form not in {"count", "groups"}:
        return tuple(_convert_interval_to_unit(read, one) for one in intervals)
    most = None if calibration.epsilon_rows > 0.0 else float(current.rows)
    return tuple(
        clip_interval((float(math.floor(low)), float(math.ceil(high))), 0.0, most) for low, high in intervals
    )


def _rates_of_groups(
    numbers: Sequence[float], reach: float | None, intervals: Sequence[Interval] | None, **fields: Any
) -> Reply:
    """Return the rates of all groups; if the counts have no error bound, the answer has no ``alpha``."""
    groups = len(numbers) // 2
    ends: Sequence[Interval | None] = intervals or [None] * groups
    pairs = zip(numbers[:groups], numbers[groups:], ends, strict=True)
    rates = [NoisyRate(hits, misses, reach or 0.0, interval) for hits, misses, interval in pairs]
    reply = build_rates_reply(rates, **fields)
    return reply if reach is not None else replace(reply, alpha=None)


def add_price(
    calibration: EstimateCalibration, reply: Reply, answer: EstimateAnswer, alpha: float, *, first: bool
) -> Reply:
    """Add the price and the error bound; rounding must not raise the bound above the requested error."""
    kept = alpha if reply.alpha is None else min(reply.alpha, alpha)
    price = (first_price if first else shown_price)(calibration, answer.charged_parts)
    return replace(reply, alpha=kept, parts=answer.charged_parts, price=price)


def refuse_price(
    calibration: EstimateCalibration, answer: EstimateAnswer, left: int, alpha: float | None
) -> Reply:
    """Build the refusal of a question whose requested error the grant cannot pay."""
    if answer.charged_parts:
        return price_refusal(calibration, answer.charged_parts, left, alpha=alpha is not None)
    refusal = Rejection(
        PRICE,
        f"alpha: no published number is that exact, and with delta above 0 none can be bought; ask with an alpha of at least "
        f"{calibration.alpha:.6g} rows, or open a stream with delta 0",
    )
    return Reply(charged=False, refusal=refusal)


def _mean_interval(question: MeanQuestion, answer: EstimateAnswer) -> Interval | None:
    """Return a measured mean's confidence interval: all r for which |sum − r·rows| is within the noise."""
    if answer.intervals is None:
        return None
    (low, high), count, most = answer.intervals[0], answer.numbers[1] / question.rows.unit, float(question.range)
    ends = (low / count, high / count) if count > 0.0 else (0.0, most)
    first, last = clip_interval(ends, 0.0, most)
    return question.minimum + first, question.minimum + last


def _mean_and_error(question: MeanQuestion, answer: EstimateAnswer) -> tuple[float, float | None]:
    bounds = (0.0, float(question.range))
    total, count = answer.numbers[0], answer.numbers[1] / question.rows.unit
    if answer.kind == "above" and answer.error_bounds is not None:
        reach = answer.error_bounds[0]
        estimate, alpha = ratio_interval((float(total), reach * max(1, question.range)), (count, reach), bounds)
        return question.minimum + estimate, alpha
    estimate = question.mean(answer.numbers)
    if answer.error_bounds is None:
        return estimate, None
    above = estimate - question.minimum
    worst = max(above, question.range - above)
    sure = count - answer.error_bounds[0]
    return estimate, min(worst, question.range * answer.error_bounds[0] / sure) if sure > 0.0 else worst
