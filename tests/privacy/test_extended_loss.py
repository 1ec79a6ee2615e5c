"""A sparse vector that continues after its cutoff loses no more than the charges of its opening and its extension, by enumeration."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Literal

import pytest

from schemas import Extension, SparseVectorCalibration
from stream.privacy.composition.costs import EPSILON_UNITS, realised_cost
from stream.privacy.composition.losses import losses
from stream.privacy.composition.pure_rounds import round_fraction_up
from tests.privacy.cases import calibrations, moves_of, near
from tests.privacy.exact import Machine, Transcript, outcomes, worst_delta
from tests.privacy.numeric_losses import cut_tail, window

Numbers = Literal["none", "fresh", "gap"]


def extended(calibration: SparseVectorCalibration, added: int) -> Machine:
    """Return the shipped machine; it stops after so many more ⊤s than its noise was planned for."""
    released = () if calibration.numbers == "none" else window(calibration)
    machine = Machine.shipped(calibration, released=released)
    return replace(machine, cutoff=calibration.cutoff + added)


def worst_excess(calibration: SparseVectorCalibration, queries: int, price: Fraction) -> Fraction:
    """Return the largest δ of losses above the charges, with up to one ⊤ more than planned, which has a given price."""
    extension = Extension(request="0" * 64, answers=1, epsilon=round_fraction_up(price))

    def charged(transcript: Transcript) -> Fraction:
        tops = sum(outcome.above for outcome in transcript)
        if tops <= calibration.cutoff:
            cost = realised_cost(calibration, "pure", len(transcript), tops, 0, (extension,))
            return Fraction(cost.loss, EPSILON_UNITS)
        full = realised_cost(calibration, "pure", len(transcript), calibration.cutoff)
        return Fraction(full.loss, EPSILON_UNITS) + price

    law = outcomes(extended(calibration, 1), near(calibration), queries)
    return max(worst_delta(law, moves, charged) for moves in moves_of(calibration, law.margins))


@pytest.mark.parametrize("numbers", ["none", "fresh", "gap"])
@pytest.mark.parametrize(
    ("method", "cutoff", "epsilon", "monotone"),
    [
        ("one_sided", 1, 1.0, False),
        ("one_sided", 1, 1.0, True),
        ("two_sided", 2, 2.0, False),
        ("one_sided", 2, 2.0, True),
        ("textbook", 1, 1.0, False),
    ],
)
def test_extended_sparse_vector_loses_at_most_its_charges(
    method: str, cutoff: int, epsilon: float, monotone: bool, numbers: Numbers
) -> None:
    calibration = calibrations(cutoff, epsilon=epsilon, monotone=monotone, numbers=numbers)[method]
    assert worst_excess(calibration, 3, losses(calibration).extension_loss) <= 2 * cut_tail(calibration, 4)


def test_extension_of_monotone_numbers_costs_more_than_planned_ones() -> None:
    calibration = calibrations(1, epsilon=2.0, monotone=True, numbers="fresh")["one_sided"]
    assert losses(calibration).loss_per_answer < losses(calibration).extension_loss
    assert worst_excess(calibration, 3, losses(calibration).loss_per_answer) > 1e-6
    assert worst_excess(calibration, 3, losses(calibration).extension_loss) <= 2 * cut_tail(calibration, 4)
