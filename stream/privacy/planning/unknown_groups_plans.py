"""Planner of unknown_groups: the least threshold, or rule of selection, for the stream's ε and δ.

Each of c answers is (ε/c, δ/c)-private; these ε and δ add up. On live topics an answer is about a window,
and a part of its δ is for the *size test*: whether the window's texts are too large. If no counts are
released, the rule of Desfontaines, Voss, Gipson & Mandayam (2022) selects texts: the probability of release
rises with the number of people as fast as (ε, δ) allows, in integers. A person changes the size of a window's
texts only by texts that no other person has. Such texts cost δ and no ε, so the size test, which is noisy,
costs no ε either. Proofs: docs/proofs/unknown-groups.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, TypeAlias

from schemas import MAX_TEXTS, StreamSpec, UnknownGroups, UnknownGroupsCalibration
from stream.optional_packages import np
from stream.privacy.accuracy.intervals import CONFIDENCE
from stream.privacy.accuracy.noise_laws import least_passing, part_failure, two_sided_reach
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.pure_rounds import optimal_round_epsilon, round_fraction_down
from stream.privacy.noise.samplers import DELTA_PER_DRAW, TwoSidedGeometric, Words, sampler, to_decimal
from stream.privacy.planning.noise_layouts import PlanError, require_fit

MOST_WINDOW_BYTES: Final = 600 * 1024
"""Maximum size of a window's texts by ``text_size``, in bytes; a record of the topic ``queries`` has room for it."""
TEXT_OVERHEAD: Final = 12
"""Bytes that the count and the lengths of a text take in a record."""
SIZE_PART: Final = Fraction(9, 10)
"""The noise rate of the size test for one text, as a part of the noise rate of a count."""
DELTA_PART: Final = Fraction(1, 16)
"""The part of δ for the case that the size test accepts a window that is too large."""


def text_size(text: bytes) -> int:
    """Return the bytes that a text, with any count, adds to the size of its window."""
    return len(text) + TEXT_OVERHEAD


def most_texts_within(most_bytes: int) -> int:
    """Return the largest number of texts, each of at least one byte, whose size is within a limit."""
    return most_bytes // (1 + TEXT_OVERHEAD)


def size_law(calibration: UnknownGroupsCalibration) -> TwoSidedGeometric:
    """Return the law of the noise of the size of a window's texts."""
    rate = Fraction(calibration.epsilon_answer) / calibration.sensitivity_steps
    return sampler("two_sided", size_rate(rate, calibration.text_bytes or 1))


def size_rate(rate: Fraction, text_bytes: int) -> Fraction:
    """Return the rate per byte of the noise of a size."""
    return rate * SIZE_PART / text_bytes


def is_too_large(calibration: UnknownGroupsCalibration, size: int, noise: int) -> bool:
    """Return True if a window with texts of this size releases none of them.

    A size above ``MOST_WINDOW_BYTES`` is always too large, because the texts are then not kept.
    """
    if calibration.most_bytes is None or calibration.size_threshold is None:
        return False
    return size > calibration.most_bytes or size + noise > calibration.size_threshold


_DIGITS: Final = 80
_ROUNDING_MARGIN: Final = 1.0 + 1e-10
"""Factor by which an interval is widened, to cover rounding errors."""
_LARGEST_EPSILON: Final = 64.0
"""If ε is larger, e^−ε is below 2⁻⁶⁰, the sampler's distance from its law, and no size test is possible."""
_LEAST_DELTA: Final = 1e-15
"""Least δ of an answer, far above the distance 2⁻⁶⁰ between the sampler's law and the ideal law."""


def plan_calibrations(spec: StreamSpec, facts: SourceFacts) -> tuple[UnknownGroupsCalibration, ...]:
    """Return the textbook's threshold and the least one, or a rule of selection; PlanError without δ.

    The textbook's threshold is m + (Δ/ε₀)·ln(m/2δ₀), from continuous noise and a union bound over a
    person's m texts (Wilson et al. 2020), or the least sound threshold for integers if this is larger.
    """
    mechanism = spec.mechanism
    if not isinstance(mechanism, UnknownGroups):
        raise TypeError(f"{mechanism.kind} has no unknown groups")
    require_delta(spec)
    epsilon = optimal_round_epsilon(spec.epsilon, 0.0, mechanism.answers)
    delta = round_fraction_down(Fraction(spec.delta) / mechanism.answers)
    if delta < _LEAST_DELTA:
        raise PlanError(
            f"delta: {spec.delta:g} is less than {_LEAST_DELTA:g} for each of {mechanism.answers:,} answers; raise "
            "delta, or lower answers"
        )
    steps, rows = facts.groups_steps, facts.contribution
    rate = Fraction(epsilon) / steps
    limits: dict[str, Any] = {}
    if facts.text_bytes is not None:
        limits = _window_limits(facts.text_bytes, steps, epsilon, Fraction(delta))
    draft = UnknownGroupsCalibration(
        method="laplace",
        epsilon_answer=epsilon,
        delta_answer=delta,
        threshold=1,
        contribution=rows,
        sensitivity_steps=steps,
        grid=facts.grid,
        cutoff=mechanism.answers,
        epsilon=spec.epsilon,
        delta=spec.delta,
        expected_queries=spec.expected_queries,
        beta=spec.beta,
        alpha=0.0,
        **limits,
    )
    if not mechanism.counts:
        return (_selection_plan(draft),)
    require_fit(steps / epsilon, ", lower answers", facts.grid)
    if limits:
        least = least_threshold(rate, rows, Fraction(delta) * (1 - DELTA_PART), SIZE_PART)
    else:
        least = least_threshold(rate, rows, Fraction(delta))
    draft = draft.model_copy(update={"threshold": least})
    reach = groups_reach(draft)
    stated = rows + math.ceil(math.log(rows / (2.0 * delta)) / float(rate))
    theorem = math.log(most_texts(draft) * min(draft.cutoff, draft.expected_queries) / draft.beta) / float(rate)
    textbook = {"method": "textbook", "threshold": max(least, stated), "alpha": max(float(reach), theorem)}
    return draft.model_copy(update=textbook), draft.model_copy(update={"alpha": float(reach)})


def require_delta(spec: StreamSpec) -> None:
    """Refuse a stream that releases private texts without δ."""
    if spec.delta <= 0.0:
        raise PlanError(
            "delta: is 0, but releasing a text costs δ, because it is private whether the text occurs; "
            "give a delta above 0, such as 1e-6"
        )


def _selection_plan(draft: UnknownGroupsCalibration) -> UnknownGroupsCalibration:
    """Return the plan that releases no counts; its α is the least number of people with a certain release."""
    draft = draft.model_copy(update={"method": "selection"})
    try:
        certain = len(rule_of(draft)) - 1
    except RuleTooLongError:
        raise PlanError(
            f"epsilon, delta: with ε {draft.epsilon_answer:.3g} and δ {draft.delta_answer:.3g} for each answer a text needs more than "
            f"{MAX_RULE:,} people to be released for certain; raise delta or epsilon, lower answers, or release counts"
        ) from None
    return draft.model_copy(update={"threshold": certain, "alpha": float(certain)})


def rule_of(calibration: UnknownGroupsCalibration) -> Rule:
    """Return the rule by which texts are released without counts.

    One person changes the numbers of people of at most ``sensitivity_steps`` texts, each by one. Each of
    these texts has an equal part of ε₀ and δ₀, the ε and δ of an answer.
    """
    texts = calibration.sensitivity_steps
    return selection_rule(Fraction(calibration.epsilon_answer) / texts, Fraction(calibration.delta_answer) / texts)


def count_law(calibration: UnknownGroupsCalibration) -> TwoSidedGeometric:
    """Return the noise of each count."""
    return sampler("two_sided", count_rate(calibration))


def count_rate(calibration: UnknownGroupsCalibration) -> Fraction:
    """Return the rate of each count's noise: ε₀/Δ, with the ε₀ of an answer and the sensitivity Δ."""
    return Fraction(calibration.epsilon_answer) / calibration.sensitivity_steps


def groups_reach(calibration: UnknownGroupsCalibration, cells: int = 1) -> int:
    """Return a bound on the errors of all texts, released or not, in all promised answers.

    Each text has ``cells`` counts: more than one if the groups also have declared attributes.
    """
    answers = min(calibration.cutoff, calibration.expected_queries)
    allowed = part_failure(calibration.beta, answers)
    return two_sided_reach(float(count_rate(calibration)), most_texts(calibration) * cells, allowed)


def most_texts(calibration: UnknownGroupsCalibration) -> int:
    """Return the largest number of texts in a table, or in a window that is not too large."""
    if calibration.most_bytes is None:
        return MAX_TEXTS
    return most_texts_within(calibration.most_bytes)


def _window_limits(max_length: int, steps: int, epsilon: float, delta: Fraction) -> dict[str, Any]:
    """Return the limits of a window's texts; PlanError if the size test has too little δ or too much noise.

    ``steps`` is the number of texts that a person changes. A window above the limit passes the test with a
    probability of at most (δ₀/16)/(1 + e^ε₀), with the ε₀ and δ₀ of an answer.
    """
    longest = max_length + TEXT_OVERHEAD

    def room_at(epsilon: float) -> int | None:
        rate = size_rate(Fraction(epsilon) / steps, longest)
        return least_room(rate, _size_test_failure(epsilon, delta), MOST_WINDOW_BYTES // 2)

    if _size_test_failure(epsilon, delta) <= Decimal(DELTA_PER_DRAW):
        raise PlanError(
            f"epsilon, delta: ε {epsilon:.3g} and δ {float(delta):.3g} for each answer leave too little δ for the test of a "
            "window's size; lower epsilon or raise delta"
        )
    if (room := room_at(epsilon)) is None:
        raise PlanError(
            f"epsilon, delta: with ε {epsilon:.3g} and δ {float(delta):.3g} for each answer and texts of up to {max_length} bytes, "
            "the noise of the test of a window's size would exceed half of the size limit; "
            + size_remedy(epsilon, room_at, "answers or the source's contribution")
        )
    return {"text_bytes": longest, "most_bytes": MOST_WINDOW_BYTES, "size_threshold": MOST_WINDOW_BYTES + 1 - room}


def _size_test_failure(epsilon: float, delta: Fraction) -> Decimal:
    """Return the probability with which the size test may fail."""
    with localcontext(prec=_DIGITS):
        return to_decimal(delta * DELTA_PART) / (1 + Decimal(epsilon).exp())


def size_remedy(epsilon: float, room_at: Callable[[float], int | None], bound: str) -> str:
    """Return the remedy if the size test has too much noise; it names a larger ε only if this helps.

    A larger ε makes the test's noise smaller, but leaves a smaller probability for its failure.
    """
    factors = (1.1**step for step in range(1, 96))
    if any(epsilon * factor < _LARGEST_EPSILON and room_at(epsilon * factor) is not None for factor in factors):
        return f"raise epsilon, lower {bound}, or declare a smaller max_length"
    return f"a larger epsilon does not help: lower {bound}, or declare a smaller max_length"


def least_room(rate: Fraction, allowed: Decimal, max_room: int) -> int | None:
    """Return the least x ≥ 1 with P(noise ≥ x) ≤ ``allowed``, the room for noise; None if it is above ``max_room``."""
    if tail_probability(rate, max_room) > allowed:
        return None
    return least_passing(lambda room: tail_probability(rate, room) <= allowed, 0, max_room)


def release_probability(rate: Fraction, rows: int, threshold: int) -> Decimal:
    """Return the largest probability with which a text that only one person has is released.

    The person has ``rows`` rows. The probability is largest if all of them have the same text, or if each
    has a different text. The sampler's distance from its law is included.
    """
    with localcontext(prec=_DIGITS):
        together = tail_probability(rate, threshold - rows)
        apart = 1 - (1 - tail_probability(rate, threshold - 1)) ** rows
        return max(together, apart)


def tail_probability(rate: Fraction, at_least: int) -> Decimal:
    """Return P(noise ≥ ``at_least``) for drawn two-sided noise, rounded up.

    For x = ``at_least`` ≥ 1 it is q^x / (1 + q) + 2⁻⁶⁰, with q = e^−rate.
    """
    with localcontext(prec=_DIGITS):
        if at_least < 1:
            return Decimal(1)
        exponent = to_decimal(rate)
        ideal = (-exponent * at_least).exp() / (1 + (-exponent).exp())
        return min(Decimal(1), ideal * (1 + Decimal(10) ** (3 - _DIGITS // 2)) + Decimal(DELTA_PER_DRAW))


@lru_cache(maxsize=1024)
def least_threshold(rate: Fraction, rows: int, delta: Fraction, share: Fraction = Fraction(0)) -> int:
    """Return the least threshold at which texts of one person are released with probability δ at most.

    The person has ``rows`` rows. Let a text that only this person has occur in a of them. Its probability p of
    release must also satisfy −ln(1 − p) ≤ rate·(a − share), so that the release costs no more ε than the a
    rows. ``share`` is the part of one row's rate that the test of a window's size uses.
    """

    def holds(threshold: int) -> bool:
        with localcontext(prec=_DIGITS):
            failing = release_probability(rate, rows, threshold)
            if failing * delta.denominator > delta.numerator:
                return False
            step, tested = to_decimal(rate), to_decimal(share)
            return all(
                -(1 - tail_probability(rate, threshold - own)).ln() <= step * (own - tested) for own in {1, rows}
            )

    return least_passing(holds, rows, 2 * rows + 1)


def rows_released_with(calibration: UnknownGroupsCalibration, chance: float) -> int:
    """Return the least number of rows with which a text is released with probability ``chance``.

    ``chance`` must be at least ½. If no counts are released, the result is a number of people.
    """
    if calibration.method == "selection":
        return int(np.searchsorted(rule_of(calibration), np.uint64(math.ceil(chance * CERTAIN))))
    rate = float(count_rate(calibration))
    # P(noise ≥ T − n) = 1 − q^(n − T + 1) / (1 + q) for n ≥ T.
    beyond = math.log(1.0 / ((1.0 - chance) * (1.0 + math.exp(-rate)))) / rate
    return calibration.threshold + max(0, math.ceil(beyond - 1.0))


def group_interval(calibration: UnknownGroupsCalibration, noisy: int) -> tuple[int, int]:
    """Return the 95 % confidence interval for the number n of rows with a released text, given its release.

    Only noisy counts of at least the threshold T are published. For all n < T, P(noisy ≥ x | noisy ≥ T) has
    the same value q^(x − T). So a noisy count near T says nothing about the lower end, which is then 1: a
    released text has at least one row.
    """
    rate, miss = float(count_rate(calibration)), (1.0 - CONFIDENCE) / 2.0
    # For n below T, the upper tail does not depend on n. From T on, q^(x − n) bounds it.
    informative = math.exp(-rate * (noisy - calibration.threshold)) < miss
    low = noisy - math.floor(math.log(1.0 / miss) / rate * _ROUNDING_MARGIN) if informative else 1
    # The condition that the text is released makes the lower tail less likely.
    above = math.floor(math.log(1.0 / (miss * (1.0 + math.exp(-rate)))) / rate * _ROUNDING_MARGIN)
    return max(1, low), noisy + max(0, above)


CERTAIN: Final = 1 << 63
"""Probabilities are integers out of this number of equally probable words."""

MAX_RULE: Final = 1 << 17
"""Maximum length of a rule: one entry for each number of people until release is certain."""

_BITS: Final = 128
_SLACK: Final = Decimal(10) ** -60

Rule: TypeAlias = Words
"""For 0, 1, 2, … people, the number of words out of ``CERTAIN`` with which their text is released."""


class RuleTooLongError(ValueError):
    """ε or δ of a text is so small that release is certain only for very many people."""


@lru_cache(maxsize=64)
def selection_rule(epsilon: Fraction, delta: Fraction) -> Rule:
    """Return the largest probabilities of release such that neighboring counts are (ε, δ)-private.

    If w words release the text of n people, then at most e^ε·w + δ words release it for n + 1 people. The
    words that do not release it have the same bound from n + 1 to n people. Both bounds hold exactly,
    because e^ε and δ are rounded down. RuleTooLongError if the rule has more than ``MAX_RULE`` entries.
    """
    factor, lost = _exponential_below(epsilon), math.floor(delta * CERTAIN)
    if lost < 1 or expected_entries(float(epsilon), float(delta)) > MAX_RULE:
        raise RuleTooLongError
    words = [0]
    while words[-1] < CERTAIN:
        if len(words) > 2 * MAX_RULE:
            raise RuleTooLongError
        last = words[-1]
        rising = (factor * last >> _BITS) + lost
        kept = max(0, CERTAIN - last - lost)
        words.append(min(rising, CERTAIN - -(-(kept << _BITS) // factor), CERTAIN))
    rule = np.array(words, dtype=np.uint64)
    rule.setflags(write=False)
    return rule


def expected_entries(epsilon: float, delta: float) -> float:
    """Estimate the number of entries of a rule: twice the number of entries up to probability ½."""
    if not (epsilon > 0.0 and delta > 0.0):
        return math.inf
    growth = math.expm1(min(epsilon, 50.0))
    half = math.log1p(growth / delta / (math.exp(min(epsilon, 50.0)) + 1.0)) / epsilon
    return min(2.0 * half + 2.0, 1.0 / delta)


def _exponential_below(epsilon: Fraction) -> int:
    """Return e^ε · 2¹²⁸, rounded down."""
    with localcontext(prec=_DIGITS):
        return int((to_decimal(epsilon).exp() * (1 - _SLACK)) * (1 << _BITS))
