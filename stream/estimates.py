"""From collected randomized responses to the shares of all categories."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from schemas import Answer, GrantRecord, RandomizedResponse, ReleaseCalibration
from stream.accounting.randomized_response import Share, estimate_shares, response


class EstimateError(ValueError):
    """There is nothing to estimate; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Unbiased shares of all categories; with probability 1 − ``beta`` every interval holds the true share."""

    stream: str
    events: int
    beta: float
    shares: tuple[Share, ...]


def shares_of(grant: GrantRecord, answers: Iterable[Answer], beta: float | None = None) -> Estimate:
    """The shares behind a stream's answers, as far as they have been collected.

    Answers of other streams, and those that are halted or rejected, are passed over; one that comes twice counts once.
    The intervals hold the shares among those whose answers are here, and of a population that they were drawn from
    independently. ``beta`` is the stream's own where it is not given.

    Raises:
        EstimateError: the stream is no randomized response, two answers contradict each other, or there is none.
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
