"""Randomized response: exact probabilities, planner, and unbiased estimates of shares.

Each event is one person's category out of k; the answer is that category with probability
e^ε/(e^ε + k − 1), otherwise another one, uniformly. Proofs: docs/proofs/randomized-response.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache

from schemas import Answer, GrantRecord, RandomizedResponse, ReleaseCalibration, StreamSpec
from stream.privacy.accuracy.noise_laws import at_least, at_most
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.answer_plans import PartsMethod, equal_parts

RESPONSE_BITS = 128
"""Probabilities are integers out of 2^128, like the uniform words that are compared with them."""


@dataclass(frozen=True)
class Response:
    """The distribution of one answer, for the exact ε of an event and k categories."""

    epsilon: Fraction
    categories: int

    @cached_property
    def other(self) -> int:
        """Probability of each other category, out of 2^128.

        1/(e^ε + k − 1) rounded up: then P(own)/P(other) = 2^128/other − (k − 1) ≤ e^ε holds
        exactly.
        """
        with localcontext(prec=80):
            # Rounding e^ε down by more than all errors rounds the probability up.
            power = (Decimal(self.epsilon.numerator) / Decimal(self.epsilon.denominator)).exp()
            below = power * (1 - Decimal(10) ** -60)
            exact = Decimal(1 << RESPONSE_BITS) / (below + self.categories - 1)
            return int(exact.to_integral_value(rounding=ROUND_CEILING))

    @property
    def own(self) -> int:
        """Probability of the person's own category, out of 2^128."""
        return (1 << RESPONSE_BITS) - (self.categories - 1) * self.other

    @property
    def rates(self) -> tuple[float, float]:
        """The two probabilities (own, other) as doubles."""
        return self.own / (1 << RESPONSE_BITS), self.other / (1 << RESPONSE_BITS)

    @property
    def slope(self) -> float:
        """p − q, the difference of the two probabilities."""
        return (self.own - self.other) / (1 << RESPONSE_BITS)


response = lru_cache(maxsize=4096)(Response)
"""Returns the distribution of an answer; equal parameters share one object."""


@dataclass(frozen=True, slots=True)
class EstimatedShare:
    """One category's unbiased estimate, possibly outside [0, 1], and its interval within [0, 1]."""

    category: str
    answers: int
    estimate: float
    low: float
    high: float
    deviation: float


def candidates(spec: StreamSpec, setting: SourceFacts) -> tuple[ReleaseCalibration, ...]:
    """Return every calibration that applies: textbook, basic and, if δ > 0, optimal composition.

    The stream's (ε, δ) protects a person with up to ``contributions`` events of ε0 each.
    ``alpha`` bounds the error of every category's share after ``expected_queries`` events; in the
    textbook's calibration it is Hoeffding's bound.
    """
    mechanism = spec.mechanism
    if not isinstance(mechanism, RandomizedResponse):
        raise TypeError(f"{mechanism.kind} is not randomized response")
    parts, categories = setting.contributions, len(mechanism.categories)
    # With one event per person, δ is not used.
    found = equal_parts(spec.epsilon, spec.delta if parts > 1 else 0.0, parts)
    return tuple(_finished(spec, categories, parts, *one) for one in found)


def hoeffding_alpha(law: Response, events: int, beta: float) -> float:
    """Return Hoeffding's error bound of all shares: √(ln(2k/β)/2n) / (p − q)."""
    return math.sqrt(math.log(2.0 * law.categories / beta) / (2.0 * events)) / law.slope


def share_alpha(law: Response, events: int, beta: float) -> float:
    """Return the Chernoff error bound of all shares, for any true shares.

    The count of a category is a sum of independent trials with mean nθ, θ between q and p; each of
    its two tails beyond t·n is at most e^{−n·KL(θ ± t ‖ θ)} (Hoeffding 1963, Theorem 1). The worst
    θ and the least t are found by bisection.
    """
    own, other = law.rates
    allowed = math.log(2.0 * law.categories / beta) / events

    def holds(distance: float) -> bool:
        return all(_least_divergence(other, own, step) >= allowed for step in (distance, -distance))

    low, high = 0.0, math.sqrt(allowed / 2.0)
    while high - low > 1e-9 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high / law.slope


def estimate_shares(
    counts: Sequence[int], categories: Sequence[str], law: Response, beta: float
) -> tuple[EstimatedShare, ...]:
    """Estimate the shares of all categories from the number of answers with each, without bias.

    π̂ = (y/n − q)/(p − q). With probability 1 − ``beta`` all intervals contain the shares among the
    people who answered, and also the shares in a population from which these people were drawn
    independently: Clopper-Pearson intervals, β/k for each category. ``deviation`` is the standard
    deviation that the noise gives the estimate, if the true share is the estimated one.
    """
    events = sum(counts)
    own, other = law.rates
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
    """Clopper and Pearson's interval for the mean of independent trials, β at most 1/2.

    It also holds if the trials have different probabilities (Hoeffding 1956, Theorem 4).
    """
    return float(at_least(successes, trials, 0.5 * beta)), float(at_most(successes, trials, 0.5 * beta))


def _finished(
    spec: StreamSpec, categories: int, parts: int, method: PartsMethod, epsilon_part: float, delta: float
) -> ReleaseCalibration:
    law = response(Fraction(epsilon_part), categories)
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

    θ is in [low, high] and θ + step in [0, 1]. Relative entropy is jointly convex, and so convex
    in θ.
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


class EstimateError(ValueError):
    """Shares cannot be estimated; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Unbiased shares of all categories; all intervals hold with probability 1 − ``beta``."""

    stream: str
    events: int
    beta: float
    shares: tuple[EstimatedShare, ...]


def shares_of(grant: GrantRecord, answers: Iterable[Answer], beta: float | None = None) -> Estimate:
    """Estimate the shares from a stream's collected answers.

    Answers of other streams and halted or rejected answers are ignored; duplicates count once.
    For the meaning of the intervals see `estimate_shares`. ``beta`` defaults to the stream's.

    Raises:
        EstimateError: no randomized response, or answers are missing or contradictory.
    """
    mechanism, calibration, stream = grant.spec.mechanism, grant.calibration, grant.spec.stream
    if not isinstance(mechanism, RandomizedResponse) or not isinstance(calibration, ReleaseCalibration):
        raise EstimateError(f"stream '{stream}' runs {mechanism.kind}; estimates are for randomized_response")
    beta = grant.spec.beta if beta is None else beta
    if not 0.0 < beta < 1.0:
        raise EstimateError(f"beta: {beta:g} is no probability between 0 and 1; give one, such as 0.05")
    counts = dict.fromkeys(mechanism.categories, 0)
    seen: dict[int, str] = {}
    taken = 0
    for answer in answers:
        if answer.stream != stream or answer.index is None or answer.choice is None:
            continue
        before = seen.setdefault(answer.index, answer.choice)
        if before != answer.choice:
            raise EstimateError(
                f"answers: two differ at index {answer.index} of stream '{stream}'; give those of one installation"
            )
        if len(seen) == taken:
            continue
        taken += 1
        if answer.choice not in counts:
            raise EstimateError(f"answers: one of stream '{stream}' has a category that the stream does not have")
        counts[answer.choice] += 1
    if taken == 0:
        raise EstimateError(f"answers: none of stream '{stream}' among them; collect some first")
    law = response(Fraction(calibration.epsilon_part), len(counts))
    shares = estimate_shares(list(counts.values()), list(counts), law, beta)
    return Estimate(stream=stream, events=taken, beta=beta, shares=shares)
