"""The shipped AboveThreshold never loses more than it claims against any adaptive asker, by exact enumeration."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from schemas import SparseVectorCalibration
from stream.privacy.composition.costs import EPSILON_UNITS, realised_cost
from stream.privacy.composition.losses import is_pure, losses
from stream.privacy.composition.pure_rounds import optimal_delta
from stream.privacy.noise.samplers import DELTA_PER_DRAW
from tests.privacy.cases import calibrations, lowest, moves_of, near, spread
from tests.privacy.exact import Machine, Transcript, outcomes, worst_delta, worst_loss

PURE = ("textbook", "two_sided", "two_sided_shifted", "one_sided")

CASES = [
    pytest.param(cutoff, epsilon, monotone, steps, queries, margins, id=name)
    for name, cutoff, epsilon, monotone, steps, queries, margins in [
        ("c=1", 1, 1.0, False, 1, 4, spread),
        ("c=1, ε=0.5", 1, 0.5, False, 1, 4, near),
        ("c=1, six queries", 1, 2.0, False, 1, 6, near),
        ("c=1, Δ=2", 1, 2.0, False, 2, 4, spread),
        ("c=1, monotone", 1, 1.0, True, 1, 4, spread),
        ("c=1, monotone, Δ=2", 1, 2.0, True, 2, 4, near),
        ("c=2", 2, 1.0, False, 1, 3, spread),
        ("c=2, five queries", 2, 2.0, False, 1, 5, near),
        ("c=2, Δ=2", 2, 2.0, False, 2, 4, near),
        ("c=2, monotone", 2, 1.0, True, 1, 4, near),
        ("c=3", 3, 1.0, False, 1, 4, near),
        ("c=3, five queries", 3, 2.0, False, 1, 5, near),
        ("c=3, monotone", 3, 2.0, True, 1, 5, near),
    ]
]


def cut_tail(calibration: SparseVectorCalibration, queries: int) -> Fraction:
    """Return the largest amount that the sampler's cut tail adds to δ: a share for each draw."""
    rounds = calibration.cutoff if calibration.fresh_threshold else 1
    return Fraction(DELTA_PER_DRAW) * (queries + rounds)


def worst_over_relations(
    calibration: SparseVectorCalibration,
    margins: tuple[int, ...],
    queries: int,
    loss: Callable[[Transcript], Fraction],
) -> Fraction:
    law = outcomes(Machine.shipped(calibration), margins, queries)
    return max(worst_delta(law, moves, loss) for moves in moves_of(calibration, margins))


@pytest.mark.parametrize(("cutoff", "epsilon", "monotone", "steps", "queries", "margins"), CASES)
@pytest.mark.parametrize("method", PURE)
def test_asker_learns_at_most_the_charge_of_the_transcript(
    method: str,
    cutoff: int,
    epsilon: float,
    monotone: bool,
    steps: int,
    queries: int,
    margins: Callable[[SparseVectorCalibration], tuple[int, ...]],
) -> None:
    """The charge never exceeds ε."""
    calibration = calibrations(cutoff, epsilon=epsilon, monotone=monotone, steps=steps)[method]
    assert is_pure(calibration)

    def charged(transcript: Transcript) -> Fraction:
        tops = sum(outcome.above for outcome in transcript)
        charge = Fraction(realised_cost(calibration, "pure", len(transcript), tops).loss, EPSILON_UNITS)
        assert charge <= Fraction(epsilon)
        return charge

    assert worst_over_relations(calibration, margins(calibration), queries, charged) <= cut_tail(
        calibration, queries
    )


@pytest.mark.parametrize(
    ("cutoff", "epsilon", "delta", "monotone", "queries"),
    [
        (1, 1.0, 0.05, False, 4),
        (2, 1.0, 0.05, False, 5),
        (2, 2.0, 0.05, True, 5),
        (3, 1.0, 0.1, False, 5),
        (3, 2.0, 0.2, True, 5),
    ],
)
def test_rounds_keep_epsilon_and_delta_by_optimal_composition(
    cutoff: int, epsilon: float, delta: float, monotone: bool, queries: int
) -> None:
    calibration = calibrations(cutoff, epsilon=epsilon, delta=delta, monotone=monotone)["one_sided_rounds"]
    worst = worst_over_relations(calibration, near(calibration), queries, lambda _: Fraction(epsilon))
    composed = Fraction(optimal_delta(float(losses(calibration).pure_parts[0][1]), cutoff, epsilon))
    assert composed <= Fraction(delta)
    assert worst <= composed + cut_tail(calibration, queries)
    assert worst > composed / 20


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("method", PURE)
def test_loss_with_one_top_comes_near_epsilon(method: str, monotone: bool) -> None:
    calibration = calibrations(1, monotone=monotone)[method]
    law = outcomes(Machine.shipped(calibration), spread(calibration), 4)
    worst = max(worst_loss(law, moves) for moves in moves_of(calibration, law.margins))
    assert 0.9 < worst.loss < 1.0 + 1e-9


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize("cutoff", [1, 2, 3])
def test_one_sided_noise_uses_up_epsilon_exactly(cutoff: int, monotone: bool) -> None:
    calibration = calibrations(cutoff, monotone=monotone)["one_sided"]
    law = outcomes(Machine.shipped(calibration), near(calibration), cutoff + 1)
    worst = max(worst_loss(law, moves) for moves in moves_of(calibration, law.margins))
    assert worst.loss == pytest.approx(1.0, abs=1e-9)
    slightly_less = Fraction(99, 100)
    assert (
        max(worst_delta(law, moves, lambda _: slightly_less) for moves in moves_of(calibration, law.margins))
        > 1e-5
    )


def test_each_query_adds_at_most_its_part_of_the_cut_tail_to_delta() -> None:
    calibration = calibrations(1)["one_sided"]
    end = lowest(Machine.shipped(calibration))
    added = [
        worst_over_relations(calibration, (end - 1, end), queries, lambda _: Fraction(1))
        for queries in range(1, 7)
    ]
    for queries, delta in enumerate(added, start=1):
        assert 0 < delta <= queries * Fraction(DELTA_PER_DRAW)
        assert float(delta) == pytest.approx(queries * float(added[0]), rel=1e-6)


def test_every_transcript_is_counted_once() -> None:
    for calibration in calibrations(2).values():
        law = outcomes(Machine.shipped(calibration), near(calibration), 4)
        for margins in ((0, 0, 1, 1), (1, 0, 1, 0)):
            asked = [calibration.shift + margin for margin in margins]
            total = Fraction(sum(law.probability(transcript, asked) for transcript in law.of), 1 << 192)
            assert 1 - Fraction(len(law.of) * law.slack, 1 << 192) <= total <= 1
