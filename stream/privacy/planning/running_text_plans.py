"""Planner of running counts of texts: the tree, the threshold, and the size test.

A running count releases texts whose noisy count reaches a threshold T. It ends when all texts together become
too large, which a noisy *size test* decides. A part of ε is for the size test, the rest for the noise of the
sums (the nodes of the counting tree in `release_plans`). ε and δ are for all windows together. Proof:
docs/proofs/unknown-groups.md, "Running counts".
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Final

from schemas import RunningCount, RunningCountCalibration, StreamSpec
from stream.privacy.accuracy.intervals import MISS_PROBABILITY, half_width
from stream.privacy.accuracy.noise_laws import least_passing, sum_tail
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.pure_rounds import round_fraction_down
from stream.privacy.noise.samplers import DELTA_PER_DRAW, TwoSidedGeometric, sampler, to_decimal
from stream.privacy.planning.noise_layouts import PlanError, require_fit
from stream.privacy.planning.release_plans import (
    CountingTree,
    draft_tree,
    dyadic_tree,
    node_law,
    node_rate,
    theorem_alpha,
    with_alpha,
)
from stream.privacy.planning.unknown_groups_plans import (
    DELTA_PART,
    MOST_WINDOW_BYTES,
    TEXT_OVERHEAD,
    least_room,
    require_delta,
    size_remedy,
)

SIZE_PART: Final = Fraction(1, 8)
"""The part of ε for the size test."""
MOST_NODES: Final = 16
"""Maximum number of nodes that an answer adds up, each with noise per text.

With more nodes the threshold would hardly be lower.
"""

_DIGITS: Final = 80
_ABOVE: Final = 1 + Decimal(10) ** -60
"""A factor that raises a decimal by more than all its rounding errors."""


def plan_calibrations(spec: StreamSpec, facts: SourceFacts) -> tuple[RunningCountCalibration, ...]:
    """Return calibrations with the papers' dyadic tree, and with the tree of the least threshold."""
    if not isinstance(spec.mechanism, RunningCount) or facts.text_bytes is None:
        raise TypeError(f"{spec.mechanism.kind} does not count texts")
    require_delta(spec)
    steps = spec.mechanism.steps
    trees = [CountingTree(steps, levels) for levels in range(1, steps.bit_length() + 1)]
    drafts = [_with_thresholds(spec, facts, tree) for tree in trees if tree.max_nodes <= MOST_NODES]
    best = min(drafts, key=lambda one: (one.threshold or 0, one.levels))
    textbook = _with_thresholds(spec, facts, dyadic_tree(steps)).model_copy(update={"method": "textbook"})
    return with_alpha(textbook, least_alpha=theorem_alpha(textbook)), with_alpha(best)


def _with_thresholds(spec: StreamSpec, facts: SourceFacts, tree: CountingTree) -> RunningCountCalibration:
    draft = _draft_at(spec.epsilon, spec, facts, tree)
    require_fit(float(1 / node_rate(draft)), ", or register a source with a smaller total")
    release_delta = _release_delta(draft, facts.contribution)
    if min(release_delta, _size_test_delta(draft) / 2 - Decimal(DELTA_PER_DRAW)) <= 0:
        raise PlanError(
            f"epsilon, delta: ε {spec.epsilon:.3g} and δ {spec.delta:.3g} leave too little δ for the release of texts over {tree.steps:,} "
            "windows; lower epsilon or raise delta"
        )

    def room_at(epsilon: float) -> int | None:
        other = _draft_at(epsilon, spec, facts, tree)
        if _release_delta(other, facts.contribution) <= 0:
            return None
        return least_room(_size_rate(other), _size_test_delta(other) / 2, MOST_WINDOW_BYTES // 4)

    if (room := room_at(spec.epsilon)) is None:
        raise PlanError(
            f"epsilon, delta: with ε {spec.epsilon:.3g}, a total of {facts.contribution:,} and texts of up to {facts.text_bytes} bytes, the "
            "noise of the test of the texts' size would exceed half of the size limit; "
            + size_remedy(spec.epsilon, room_at, "the source's total")
        )
    threshold = _least_threshold(draft, facts.contribution, release_delta)
    return draft.model_copy(
        update={"threshold": threshold, "size_threshold": MOST_WINDOW_BYTES + 1 - (2 * room - 1)}
    )


def _draft_at(epsilon: float, spec: StreamSpec, facts: SourceFacts, tree: CountingTree) -> RunningCountCalibration:
    """Return the calibration with this ε, but still without thresholds."""
    changed = spec.model_copy(update={"epsilon": epsilon})
    limits = {
        "delta": spec.delta,
        "epsilon_size": round_fraction_down(Fraction(epsilon) * SIZE_PART),
        "text_bytes": (facts.text_bytes or 0) + TEXT_OVERHEAD,
        "most_bytes": MOST_WINDOW_BYTES,
    }
    return draft_tree(changed, facts, "basic", tree).model_copy(update=limits)


def _allowed_probability(calibration: RunningCountCalibration) -> Decimal:
    """Return δ/(1 + e^ε): the probability with which texts that only one person has may be revealed."""
    with localcontext(prec=_DIGITS):
        return Decimal(calibration.delta) / (1 + Decimal(calibration.epsilon).exp()) / _ABOVE


def _size_test_delta(calibration: RunningCountCalibration) -> Decimal:
    with localcontext(prec=_DIGITS):
        return _allowed_probability(calibration) * DELTA_PART.numerator / DELTA_PART.denominator


def _release_delta(calibration: RunningCountCalibration, total_contribution: int) -> Decimal:
    with localcontext(prec=_DIGITS):
        return (
            _allowed_probability(calibration)
            - _size_test_delta(calibration)
            - sampling_distance(calibration, total_contribution)
        )


def sampling_distance(calibration: RunningCountCalibration, total_contribution: int) -> Decimal:
    """Bound the distance of the drawn noise from its ideal law, for all noise that concerns one person."""
    moved = calibration.levels * calibration.sensitivity_steps
    tested = calibration.steps + 1
    return Decimal(DELTA_PER_DRAW) * (moved + tested + total_contribution * calibration.steps)


def _least_threshold(calibration: RunningCountCalibration, total_contribution: int, allowed: Decimal) -> int:
    """Return the least T at which texts of only one person are released with probability ``allowed`` at most.

    The search uses doubles. The result is checked in exact decimals, and raised if necessary.
    """
    rate, nodes = node_rate(calibration), calibration.nodes

    def may_hold(threshold: int) -> bool:
        together, apart = (sum_tail(float(rate), nodes, threshold - own) for own in (total_contribution, 1))
        return calibration.steps * max(together, total_contribution * apart) <= float(allowed)

    threshold = least_passing(may_hold, total_contribution, 2 * total_contribution + 1)
    while release_probability(rate, nodes, total_contribution, threshold) * calibration.steps > allowed:
        threshold += 1
    return threshold


@lru_cache(maxsize=1024)
def release_probability(rate: Fraction, nodes: int, total_contribution: int, threshold: int) -> Decimal:
    """Return the largest probability with which texts that only one person has reach T in a window.

    The person has ``total_contribution`` events in all. The probability is largest if all of them have the
    same text, or if each has a different text.
    """
    with localcontext(prec=_DIGITS):
        together, apart = (sum_tail_above(rate, nodes, threshold - own) for own in (total_contribution, 1))
        return max(together, total_contribution * apart)


def sum_tail_above(rate: Fraction, nodes: int, at_least: int) -> Decimal:
    """Return P(X₁ + … + X_m ≥ ``at_least``) for m (``nodes``) two-sided draws, rounded up.

    ``at_least`` must be at least 1. The formula is the one of ``noise_laws.sum_tail``, in decimals; tails of
    negative binomial laws are computed as tails of binomial laws.
    """
    with localcontext(prec=_DIGITS):
        ratio = (-to_decimal(rate)).exp()
        rest = 1 - ratio
        found = Decimal(0)
        for used in range(1, nodes + 1):
            unused = nodes - used
            trials = at_least + unused + used - 1
            tail = sum(
                (math.comb(trials, few) * rest**few * ratio ** (trials - few) for few in range(used)), Decimal(0)
            )
            weight = math.comb(nodes + unused - 1, nodes - 1) * ratio**unused / (1 + ratio) ** (nodes + unused)
            found += weight * tail
        return min(Decimal(1), found * _ABOVE)


def running_size_law(calibration: RunningCountCalibration) -> TwoSidedGeometric:
    """Return the law of the noise of the size test: of each window's size and of the size limit."""
    return sampler("two_sided", _size_rate(calibration))


def _size_rate(calibration: RunningCountCalibration) -> Fraction:
    moved = calibration.sensitivity_steps * (calibration.text_bytes or 1)
    return Fraction(calibration.epsilon_size) / (2 * moved)


def texts_are_too_large(calibration: RunningCountCalibration, size: int, noise: int, limit_noise: int) -> bool:
    """Return True if a running count must end because its texts are too large."""
    threshold, most = calibration.size_threshold or 0, calibration.most_bytes or 0
    return size + noise > threshold + limit_noise or size > most


def text_interval(calibration: RunningCountCalibration, nodes: int, noisy: int) -> tuple[int, int]:
    """Return a confidence interval for the count of a released text, given that it is released.

    If the noisy count is near T or below it, the lower end is 1, because the text may have been released by
    its noise alone.
    """
    law, threshold = node_law(calibration), calibration.threshold or 1
    low = noisy - half_width(law, nodes, MISS_PROBABILITY / 2)
    return (low if low > threshold else 1), max(1, noisy + half_width(law, nodes))


def count_released_with(calibration: RunningCountCalibration, chance: float) -> int:
    """Return a true count at which a text is released with probability ``chance`` or more.

    ``chance`` must be at least ½.
    """
    law = node_law(calibration)
    beyond = half_width(law, calibration.nodes, 2.0 * (1.0 - chance)) if chance > 0.5 else 0
    return (calibration.threshold or 1) + beyond
