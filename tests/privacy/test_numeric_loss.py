"""The shipped NumericSparse, including its numbers, never loses more than it claims, by exact enumeration.

Fresh numbers and gaps within a window are distinguished exactly; a number beyond the window counts as the window's end.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import pytest

from schemas import SparseVectorCalibration
from stream.privacy.composition.costs import EPSILON_UNITS, realised_cost
from stream.privacy.composition.losses import is_pure, losses
from stream.privacy.composition.pure_rounds import optimal_delta
from stream.privacy.noise.samplers import sampler
from tests.privacy.cases import calibrations, moves_of, near
from tests.privacy.exact import Machine, Outcomes, Transcript, law_of, outcomes, worst_delta, worst_loss
from tests.privacy.numeric_losses import cut_tail, window

Numbers = Literal["fresh", "gap"]

PURE = ("textbook", "two_sided", "two_sided_shifted", "one_sided")
BOTH = pytest.mark.parametrize("numbers", ["fresh", "gap"])


def shipped_machine(calibration: SparseVectorCalibration) -> Machine:
    return Machine.shipped(calibration, released=window(calibration))


def worst(calibration: SparseVectorCalibration, machine: Machine, queries: int) -> float:
    """Return the largest loss of any transcript, over all neighbors near the threshold."""
    law = outcomes(machine, near(calibration), queries)
    return max(worst_loss(law, moves, least=2.0**-30).loss for moves in moves_of(calibration, law.margins))


def charge_of(calibration: SparseVectorCalibration, transcript: Transcript) -> Fraction:
    tops = sum(outcome.above for outcome in transcript)
    charge = Fraction(realised_cost(calibration, "pure", len(transcript), tops).loss, EPSILON_UNITS)
    assert charge <= Fraction(calibration.epsilon)
    return charge


@BOTH
@pytest.mark.parametrize(
    ("cutoff", "epsilon", "monotone", "steps", "queries"),
    [
        (1, 1.0, False, 1, 3),
        (1, 2.0, False, 2, 3),
        (1, 1.0, True, 1, 3),
        (2, 2.0, False, 1, 3),
        (2, 2.0, True, 1, 3),
        (3, 3.0, False, 1, 3),
    ],
)
@pytest.mark.parametrize("method", PURE)
def test_asker_learns_at_most_the_charge_from_numbers_too(
    method: str, cutoff: int, epsilon: float, monotone: bool, steps: int, queries: int, numbers: Numbers
) -> None:
    calibration = calibrations(cutoff, epsilon=epsilon, monotone=monotone, steps=steps, numbers=numbers)[method]
    assert is_pure(calibration)
    law = outcomes(shipped_machine(calibration), near(calibration), queries)
    for moves in moves_of(calibration, law.margins):
        delta = worst_delta(law, moves, lambda transcript: charge_of(calibration, transcript))
        assert delta <= cut_tail(calibration, queries)


@BOTH
@pytest.mark.parametrize("monotone", [False, True])
def test_rounds_keep_epsilon_and_delta_with_numbers_too(numbers: Numbers, monotone: bool) -> None:
    epsilon, delta = 2.0, 0.1
    found = calibrations(2, epsilon=epsilon, delta=delta, monotone=monotone, numbers=numbers)
    calibration = found["one_sided_rounds"]
    [(rounds, round_epsilon)] = losses(calibration).pure_parts
    assert rounds == 2
    assert optimal_delta(math.nextafter(float(round_epsilon), math.inf), 2, epsilon) <= delta * (1 + 1e-9)
    # Two rounds of ⊥⊤: a round loses all of its ε0 only if it has a ⊥.
    law = outcomes(shipped_machine(calibration), near(calibration), 4)
    lost = max(
        worst_delta(law, moves, lambda _: Fraction(epsilon)) for moves in moves_of(calibration, law.margins)
    )
    assert lost <= Fraction(delta) + cut_tail(calibration, 4)
    assert lost > delta / 50


@BOTH
@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("cutoff", [1, 2])
def test_one_sided_noise_with_numbers_uses_up_epsilon_exactly(
    cutoff: int, monotone: bool, numbers: Numbers
) -> None:
    calibration = calibrations(cutoff, epsilon=2.0, monotone=monotone, numbers=numbers)["one_sided"]
    assert worst(calibration, shipped_machine(calibration), cutoff + 1) == pytest.approx(2.0, abs=1e-9)


@pytest.mark.parametrize("cutoff", [1, 2])
def test_fresh_numbers_and_monotone_queries_are_not_lost_together(cutoff: int) -> None:
    """Together the parts exceed ε, but no transcript loses both."""
    calibration = calibrations(cutoff, epsilon=2.0, monotone=True, numbers="fresh")["one_sided"]
    parts = calibration.epsilon_threshold + calibration.epsilon_query + calibration.epsilon_answer
    assert parts > 2.5
    [moves] = moves_of(calibration.model_copy(update={"monotone": False}), near(calibration))
    law = outcomes(shipped_machine(calibration), near(calibration), cutoff + 1)
    assert worst_loss(law, moves).loss > 2.5, "the promise of monotone queries is needed"


def test_gap_costs_nothing_beside_its_top() -> None:
    calibration = calibrations(2, epsilon=2.0, numbers="gap")["one_sided"]
    bare = replace(shipped_machine(calibration), released=())
    assert worst(calibration, shipped_machine(calibration), 3) == pytest.approx(
        worst(calibration, bare, 3), abs=1e-9
    )


@BOTH
def test_outcomes_with_numbers_are_counted_once(numbers: Numbers) -> None:
    calibration = calibrations(2, epsilon=2.0, numbers=numbers)["two_sided_shifted"]
    law: Outcomes = outcomes(shipped_machine(calibration), near(calibration), 3)
    asked = [calibration.shift + margin for margin in (0, 1, -1)]
    total = Fraction(sum(law.probability(transcript, asked) for transcript in law.of), 1 << 192)
    assert 1 - Fraction(len(law.of) * law.slack, 1 << 192) <= total <= 1


@pytest.mark.parametrize("method", PURE)
def test_check_finds_query_noise_reused_as_the_number(method: str) -> None:
    calibration = calibrations(1, numbers="fresh")[method]
    released = tuple(range(calibration.shift - 2, calibration.shift + 5))
    reused = replace(shipped_machine(calibration), numbers="compared", released=released)
    margins = (calibration.shift, calibration.shift + 1)
    law = outcomes(reused, margins, 6)
    [moves] = moves_of(calibration, margins)
    assert worst_loss(law, moves).loss > 1.2
    assert worst_delta(law, moves, lambda _: Fraction(1)) > 1e-6


def test_check_finds_one_sided_noise_on_fresh_numbers() -> None:
    """It rules neighbors out."""
    calibration = calibrations(1, numbers="fresh")["one_sided"]
    rate = Fraction(calibration.epsilon_answer)
    one_sided = replace(shipped_machine(calibration), answer=law_of(sampler("one_sided", rate)))
    assert worst(calibration, one_sided, 2) == math.inf


def test_check_finds_fresh_numbers_without_their_charge() -> None:
    """They lose their part in addition to ε."""
    calibration = calibrations(1)["one_sided"]
    unpaid = replace(
        Machine.shipped(calibration),
        numbers="fresh",
        released=tuple(range(calibration.shift - 1, calibration.shift + 3)),
        answer=law_of(sampler("two_sided", Fraction(1, 3))),
    )
    assert worst(calibration, unpaid, 2) == pytest.approx(1.0 + 1.0 / 3.0, abs=1e-9)


def test_check_finds_a_gap_without_the_cutoff_in_its_scale() -> None:
    calibration = calibrations(2, epsilon=2.0, numbers="gap")["one_sided"]
    rate = Fraction(calibration.epsilon_query) / 2
    narrow = replace(shipped_machine(calibration), query=law_of(sampler("one_sided", rate)))
    assert worst(calibration, narrow, 3) > 2.5
