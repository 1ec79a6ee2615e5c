"""The exact computation of losses reveals each broken variant: it loses more than its calibrated ε.

Each is the shipped AboveThreshold, or a published variant, with one mistake made. Lyu, Su & Li 2017 ("LSL") number the
published ones.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from schemas import SparseVectorCalibration
from stream.privacy.noise.samplers import DELTA_PER_DRAW, sampler
from tests.privacy.cases import calibrations, near, spread
from tests.privacy.exact import (
    ABOVE,
    BELOW,
    BITS,
    NO_NOISE,
    Exact,
    Law,
    Machine,
    Outcome,
    Outcomes,
    Transcript,
    WorstCase,
    find_neighbors,
    law_of,
    outcomes,
    worst_delta,
    worst_loss,
)

ONE = Fraction(1)


def discrete_laplace(scale: Fraction) -> Law:
    return law_of(sampler("two_sided", 1 / scale))


def shipped_machine(method: str, cutoff: int = 1) -> tuple[SparseVectorCalibration, Machine]:
    calibration = calibrations(cutoff)[method]
    return calibration, Machine.shipped(calibration)


def worst(machine: Machine, margins: tuple[int, ...], queries: int) -> WorstCase:
    """Return the worst case with Δ = 1, after a check that it exceeds ε = 1 far beyond any rounding."""
    law = outcomes(machine, margins, queries)
    moves = find_neighbors(margins, 1)
    found = worst_loss(law, moves, least=2.0**-30)
    assert worst_delta(law, moves, lambda _: ONE) > Fraction(1, 10**6)
    return found


def loss_of(machine: Machine, transcript: Transcript, one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Return the loss of one transcript between two streams."""
    law = outcomes(machine, {*one, *other}, len(one))
    likely, unlikely = law.probability(transcript, one), law.probability(transcript, other)
    return math.inf if unlikely == 0 else math.log(likely) - math.log(unlikely)


@pytest.mark.parametrize("m", [3, 4, 5])
def test_check_finds_compared_noise_released_as_the_answer(m: int) -> None:
    """LSL Algorithm 3: the compared value f + ν itself is released with ⊤."""
    machine = Machine(discrete_laplace(Fraction(2)), discrete_laplace(Fraction(2)), cutoff=1, released=(0,))
    transcript = (*[BELOW] * m, Outcome(above=True, value=0))
    lost = loss_of(machine, transcript, (*[0] * m, 1), (*[1] * m, 0))
    assert lost == pytest.approx((m - 1) / 2, abs=1e-9)


@pytest.mark.parametrize("method", ["textbook", "one_sided"])
def test_check_finds_shipped_query_noise_released_as_the_answer(method: str) -> None:
    calibration, machine = shipped_machine(method)
    margins = (calibration.shift, calibration.shift + 1)
    released = tuple(range(calibration.shift, calibration.shift + 4))
    assert worst(replace(machine, released=released), margins, 5).loss > 1.2


def test_check_finds_query_noise_that_ignores_the_cutoff() -> None:
    """LSL Algorithm 4, on a grid of Δ = 1; Laplace noise gives 2.19."""
    machine = Machine(discrete_laplace(Fraction(4)), discrete_laplace(Fraction(4, 3)), cutoff=2)
    lost = loss_of(machine, (BELOW, BELOW, ABOVE, ABOVE), (0, 0, 1, 1), (1, 1, 0, 0))
    assert lost > 2.0
    assert worst(machine, (-1, 0, 1), 4).loss >= lost


@pytest.mark.parametrize("method", ["two_sided", "one_sided"])
def test_check_finds_shipped_query_noise_without_the_cutoff(method: str) -> None:
    calibration, machine = shipped_machine(method, cutoff=3)
    rate = Fraction(calibration.epsilon_query) / 2
    machine = replace(machine, query=law_of(sampler(calibration.noise, rate)))
    assert worst(machine, near(calibration), 5).loss > 1.5


@pytest.mark.parametrize("method", ["textbook", "one_sided"])
def test_check_finds_missing_query_noise(method: str) -> None:
    """LSL Algorithm 5."""
    calibration, machine = shipped_machine(method)
    assert worst(replace(machine, query=NO_NOISE), near(calibration), 2).loss == math.inf


@pytest.mark.parametrize(("m", "least"), [(2, 1.5), (3, 2.4)])
def test_check_finds_query_noise_of_scale_2_without_a_cutoff(m: int, least: float) -> None:
    """LSL Algorithm 6, on a grid of Δ = 1; Laplace noise gives 2.62 for m = 3."""
    machine = Machine(discrete_laplace(Fraction(2)), discrete_laplace(Fraction(2)))
    transcript = (*[BELOW] * m, *[ABOVE] * m)
    lost = loss_of(machine, transcript, (0,) * (2 * m), (*[1] * m, *[-1] * m))
    assert lost > least


@pytest.mark.parametrize("method", ["textbook", "two_sided_shifted", "one_sided"])
def test_check_finds_a_new_threshold_for_each_query(method: str) -> None:
    calibration, machine = shipped_machine(method)
    margins = (calibration.shift + 6, calibration.shift + 7)
    assert worst(replace(machine, renewed="each query"), margins, 6).loss > 1.2


@pytest.mark.parametrize("method", ["two_sided", "two_sided_shifted", "one_sided"])
def test_check_finds_a_count_of_tops_lost_at_a_restart(method: str) -> None:
    calibration, machine = shipped_machine(method)
    margins = tuple(calibration.shift + margin for margin in (-7, -6, 6, 7))
    found = worst(replace(machine, cutoff=None), margins, 5)
    assert found.loss > 1.4
    assert sum(outcome.above for outcome in found.transcript) > calibration.cutoff


@pytest.mark.parametrize("method", ["textbook", "one_sided"])
def test_check_finds_noise_redrawn_on_redelivery(method: str) -> None:
    """One stream is delivered twice with independent noise; both answers are seen, but only the second is counted."""
    calibration, machine = shipped_machine(method)
    margins = near(calibration)
    once = outcomes(machine, margins, 3)
    moves = find_neighbors(margins, 1)
    # Only transcripts of full length: the same queries are asked in both deliveries.
    full = {transcript: table for transcript, table in once.of.items() if len(transcript) == 3}
    twice: dict[Transcript, Exact] = {(*a, *b): (full[a] * full[b]) >> BITS for a in full for b in full}
    found = worst_loss(Outcomes(twice, once.margins, 2 * once.slack), moves)
    assert found.loss == pytest.approx(2 * worst_loss(once, moves).loss)
    assert found.loss > 1.2


@pytest.mark.parametrize("method", ["textbook", "one_sided"])
def test_check_finds_the_same_noise_for_other_data(method: str) -> None:
    """One position is answered for two payloads with the same ρ and ν, so a difference of the answers reveals f."""
    calibration, machine = shipped_machine(method)
    margins = near(calibration)
    prior = machine.prior()

    def passes(margin: int) -> Exact:
        return machine.likelihood(ABOVE, margin)

    differing = [
        [int((prior * np.maximum(passes(b) - passes(a), 0)).sum() >> BITS) for b in margins] for a in margins
    ]
    law = Outcomes({(BELOW, ABOVE): np.array(differing, dtype=object)}, margins, 0)
    found = worst_loss(law, find_neighbors(margins, 1))
    assert found.loss == math.inf
    assert found.probability > 0.01


@pytest.mark.parametrize("method", ["two_sided", "one_sided"])
def test_check_finds_a_false_promise_of_monotone_queries(method: str) -> None:
    calibration = calibrations(1, monotone=True)[method]
    assert worst(Machine.shipped(calibration), spread(calibration), 3).loss > 1.3


@pytest.mark.parametrize("method", ["textbook", "one_sided"])
def test_check_finds_a_sensitivity_twice_as_declared(method: str) -> None:
    calibration, machine = shipped_machine(method)
    margins = spread(calibration.model_copy(update={"sensitivity_steps": 2}))
    found = worst_loss(outcomes(machine, margins, 4), find_neighbors(margins, 2))
    assert found.loss > 1.5


@pytest.mark.parametrize("method", ["textbook", "two_sided", "two_sided_shifted", "one_sided"])
def test_check_accepts_every_shipped_method(method: str) -> None:
    calibration, machine = shipped_machine(method)
    for margins in (near(calibration), (calibration.shift + 6, calibration.shift + 7), spread(calibration)):
        law = outcomes(machine, margins, 4)
        assert worst_loss(law, find_neighbors(margins, 1), least=2.0**-30).loss <= 1.0 + 1e-9
        assert worst_delta(law, find_neighbors(margins, 1), lambda _: ONE) <= 5 * Fraction(DELTA_PER_DRAW)
