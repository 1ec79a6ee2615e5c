"""Randomized response: exact probabilities, planner, and unbiased estimates of shares.

Each event has one person's category, one of k. The answer is this category with probability e^ε/(e^ε + k − 1),
otherwise one of the other categories, each with the same probability. Proofs: docs/proofs/randomized-response.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache

from schemas import Answer, GrantRecord, RandomizedResponse, ReleaseCalibration, StreamSpec
from stream.privacy.accuracy.noise_laws import clopper_pearson_lower, clopper_pearson_upper
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.noise.samplers import to_decimal
from stream.privacy.planning.answer_plans import PartsMethod, equal_parts

RESPONSE_BITS = 128
"""Probabilities are integers out of 2^128, as are the uniform words that are compared with them."""


@dataclass(frozen=True)
class ResponseLaw:
    """The distribution of one answer, for the exact ε of an event and the number k of categories."""

    epsilon: Fraction
    categories: int

    @cached_property
    def other_weight(self) -> int:
        """Probability of each other category, out of 2^128: 1/(e^ε + k − 1), rounded up.

        Because of the rounding up, P(own)/P(other) = 2^128/``other_weight`` − (k − 1) is at most e^ε, exactly.
        """
        with localcontext(prec=80):
            # e^ε is lowered by more than all rounding errors together, so that the result is never too small.
            power_rounded_down = to_decimal(self.epsilon).exp() * (1 - Decimal(10) ** -60)
            exact = Decimal(1 << RESPONSE_BITS) / (power_rounded_down + self.categories - 1)
            return int(exact.to_integral_value(rounding=ROUND_CEILING))

    @property
    def own_weight(self) -> int:
        """Probability of the person's own category, out of 2^128."""
        return (1 << RESPONSE_BITS) - (self.categories - 1) * self.other_weight

    @property
    def probabilities(self) -> tuple[float, float]:
        """The probabilities of the own and of each other category, as doubles."""
        return self.own_weight / (1 << RESPONSE_BITS), self.other_weight / (1 << RESPONSE_BITS)

    @property
    def slope(self) -> float:
        """By how much the probability of an answer grows if its share grows from 0 to 1."""
        return (self.own_weight - self.other_weight) / (1 << RESPONSE_BITS)


response_law = lru_cache(maxsize=4096)(ResponseLaw)
"""Returns the distribution of an answer; equal parameters share one object."""


@dataclass(frozen=True, slots=True)
class EstimatedShare:
    """One category's share: an unbiased estimate, which may be outside [0, 1], and its interval."""

    category: str
    answers: int
    estimate: float
    low: float
    high: float
    deviation: float


def plan_calibrations(spec: StreamSpec, facts: SourceFacts) -> tuple[ReleaseCalibration, ...]:
    """Return the calibrations of textbook, basic and, if δ > 0, optimal composition.

    The stream's (ε, δ) protects a person with up to ``facts.records_per_person`` events, each of which is
    ε0-private. ``alpha`` bounds the error of every category's share after ``expected_queries`` events. In
    the textbook's calibration it is Hoeffding's bound.
    """
    mechanism = spec.mechanism
    if not isinstance(mechanism, RandomizedResponse):
        raise TypeError(f"{mechanism.kind} is not randomized response")
    events_per_person, categories = facts.records_per_person, len(mechanism.categories)
    # If a person has one event, δ is not used.
    compositions = equal_parts(spec.epsilon, spec.delta if events_per_person > 1 else 0.0, events_per_person)
    return tuple(
        _make_calibration(spec, categories, events_per_person, *composition) for composition in compositions
    )


def hoeffding_alpha(law: ResponseLaw, events: int, beta: float) -> float:
    """Return Hoeffding's error bound of all k shares after n events: √(ln(2k/β)/2n) / slope."""
    return math.sqrt(math.log(2.0 * law.categories / beta) / (2.0 * events)) / law.slope


def share_alpha(law: ResponseLaw, events: int, beta: float) -> float:
    """Return the Chernoff error bound of all shares, for any true shares.

    The count of a category in n events is a sum of independent trials with mean nθ, where θ is between the two
    probabilities of the law. The probability that the count is above n(θ + t) is at most e^{−n·KL(θ + t ‖ θ)}, and
    likewise below n(θ − t) (Hoeffding 1963, Theorem 1). A search finds the worst θ and the least t.
    """
    own, other = law.probabilities
    allowed = math.log(2.0 * law.categories / beta) / events

    def holds(distance: float) -> bool:
        return all(_least_divergence(other, own, step) >= allowed for step in (distance, -distance))

    low, high = 0.0, math.sqrt(allowed / 2.0)
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high / law.slope


def estimate_shares(
    counts: Sequence[int], categories: Sequence[str], law: ResponseLaw, beta: float
) -> tuple[EstimatedShare, ...]:
    """Estimate each category's share without bias, from the number of answers that name it.

    If y of n answers name a category, its estimate is (y/n − q)/(p − q), where p is the probability of a person's own
    category and q the probability of each other category. The intervals are Clopper-Pearson intervals with β/k for each
    of the k categories. With probability 1 − ``beta`` all of them contain the shares among the people who answered, and
    also the shares in a population from which these people were drawn independently. ``deviation`` is the standard
    deviation that the noise gives the estimate, if the true share equals the estimate.
    """
    events = sum(counts)
    own, other = law.probabilities
    slope = law.slope
    shares = []
    for category, count in zip(categories, counts, strict=True):
        estimate = (count / events - other) / slope
        low, high = ((end - other) / slope for end in binomial_interval(count, events, beta / len(categories)))
        inside = min(max(estimate, 0.0), 1.0)
        variance = inside * own * (1.0 - own) + (1.0 - inside) * other * (1.0 - other)
        shares.append(
            EstimatedShare(
                category=category,
                answers=count,
                estimate=estimate,
                low=min(max(low, 0.0), 1.0),
                high=min(max(high, 0.0), 1.0),
                deviation=math.sqrt(variance / events) / slope,
            )
        )
    return tuple(shares)


def binomial_interval(successes: int, trials: int, beta: float) -> tuple[float, float]:
    """Return Clopper and Pearson's interval for the mean of independent trials; β must be at most 1/2.

    The interval also holds if the trials have different probabilities (Hoeffding 1956, Theorem 4).
    """
    return float(clopper_pearson_lower(successes, trials, 0.5 * beta)), float(
        clopper_pearson_upper(successes, trials, 0.5 * beta)
    )


def _make_calibration(
    spec: StreamSpec, categories: int, parts: int, method: PartsMethod, epsilon_part: float, delta: float
) -> ReleaseCalibration:
    law = response_law(Fraction(epsilon_part), categories)
    bound = hoeffding_alpha if method == "textbook" else share_alpha
    return ReleaseCalibration(
        method=method,
        parts=parts,
        epsilon_part=epsilon_part,
        sensitivity_steps=1,
        grid=1.0,
        cutoff=0,
        epsilon=spec.epsilon,
        delta=delta,
        expected_queries=spec.expected_queries,
        beta=spec.beta,
        alpha=bound(law, spec.expected_queries, spec.beta),
    )


def _least_divergence(low: float, high: float, step: float) -> float:
    """Return min KL(θ + step ‖ θ) over θ, rounded down; infinite if no θ is possible.

    θ is in [low, high] and θ + step in [0, 1]. Relative entropy is jointly convex in both arguments, so the
    function is convex in θ.
    """
    low, high = max(low, -step), min(high, 1.0 - step)
    if low > high:
        return math.inf
    for _ in range(200):
        third = (high - low) / 3.0
        if third <= 1e-12 * high:
            break
        if _divergence(low + third, step) <= _divergence(high - third, step):
            high -= third
        else:
            low += third
    return _divergence(0.5 * (low + high), step) * (1.0 - 1e-8)


def _divergence(theta: float, step: float) -> float:
    total = 0.0
    for weight, change in ((theta, step), (1.0 - theta, -step)):
        if weight + change > 0.0:
            total += (weight + change) * math.log1p(change / weight)
    return total


class ShareEstimateError(ValueError):
    """Shares cannot be estimated; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class ShareEstimates:
    """Unbiased shares of all categories; all intervals hold with probability 1 − ``beta``."""

    stream: str
    events: int
    beta: float
    shares: tuple[EstimatedShare, ...]


def estimate_stream_shares(
    grant: GrantRecord, answers: Iterable[Answer], beta: float | None = None
) -> ShareEstimates:
    """Estimate the shares from a stream's collected answers.

    Answers of other streams and halted or rejected answers are ignored; duplicates count once.
    For the meaning of the intervals see `estimate_shares`. ``beta`` defaults to the stream's.

    Raises:
        ShareEstimateError: the stream is not a randomized response, or answers are missing or contradictory.
    """
    mechanism, calibration, stream = grant.spec.mechanism, grant.calibration, grant.spec.stream
    if not isinstance(mechanism, RandomizedResponse) or not isinstance(calibration, ReleaseCalibration):
        raise ShareEstimateError(f"stream '{stream}' runs {mechanism.kind}; estimates are for randomized_response")
    beta = grant.spec.beta if beta is None else beta
    if not 0.0 < beta < 1.0:
        raise ShareEstimateError(f"beta: {beta:g} is not a probability between 0 and 1; give one, such as 0.05")
    counts = dict.fromkeys(mechanism.categories, 0)
    choice_by_index: dict[int, str] = {}
    counted = 0
    for answer in answers:
        if answer.stream != stream or answer.index is None or answer.choice is None:
            continue
        first_choice = choice_by_index.setdefault(answer.index, answer.choice)
        if first_choice != answer.choice:
            raise ShareEstimateError(
                f"answers: two differ at index {answer.index} of stream '{stream}'; give answers of one installation only"
            )
        if len(choice_by_index) == counted:
            continue
        counted += 1
        if answer.choice not in counts:
            raise ShareEstimateError(
                f"answers: one of stream '{stream}' has a category that the stream does not have"
            )
        counts[answer.choice] += 1
    if counted == 0:
        raise ShareEstimateError(f"answers: there is none of stream '{stream}'; collect some first")
    law = response_law(Fraction(calibration.epsilon_part), len(counts))
    shares = estimate_shares(list(counts.values()), list(counts), law, beta)
    return ShareEstimates(stream=stream, events=counted, beta=beta, shares=shares)
