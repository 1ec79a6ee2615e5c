"""The exact privacy loss of Laplace answers, numbers and vectors, and that published answers follow the stated law."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import opendp.prelude as dp
import pytest
from scipy.stats import chi2

from stream.privacy.noise.samplers import DELTA_PER_DRAW, sampler
from tests.builders import installation, source, stream
from tests.privacy.chance import follows
from tests.privacy.exact import law_of
from tests.privacy.losses import excess

FALSE_ALARM = 1e-9
"""The probability that the comparison with another library's unseeded draws fails although nothing is wrong."""


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(0.5, 1), (1.0, 3), (3.0, 2)])
def test_move_within_the_sensitivity_costs_at_most_epsilon(epsilon: float, sensitivity: int) -> None:
    law = law_of(sampler("two_sided", Fraction(epsilon) / sensitivity))
    allowed = Fraction((1.0 + math.exp(epsilon)) * DELTA_PER_DRAW)
    for moved in range(-sensitivity, sensitivity + 1):
        assert excess(law, moved, epsilon) <= allowed
    # One step more loses too much, by far more than the cut tail.
    assert excess(law, sensitivity + 1, epsilon) > Fraction(1, 100)


@pytest.mark.parametrize(("values", "moves"), [(3, (1, 1, 1)), (3, (-1, 1, -1)), (2, (1, 1)), (4, (0, 1, 0, -1))])
def test_vector_costs_epsilon_if_its_noise_fits_all_its_moves(values: int, moves: tuple[int, ...]) -> None:
    """All trusted values move, but only one or two groups, so the rate is ε divided by the sum of the moves."""
    assert len(moves) == values
    total = sum(abs(move) for move in moves)
    law = law_of(sampler("two_sided", Fraction(1, total)))
    # The draws are independent, so the largest ratio of two probabilities is the product of each draw's largest.
    worst = math.prod(max(law.probability(x) / law.probability(x - m) for x in range(-4, 5)) for m in moves)
    assert math.log(worst) == pytest.approx(1.0, abs=1e-12)


def test_published_answers_follow_the_exact_law() -> None:
    draws = 4000
    driver = installation(
        stream("numbers", kind="laplace", mechanism={"answers": draws}, epsilon=1000.0),
        sources=[source(epsilon=1000.0, sensitivity=2.0)],
    )
    answers = driver.ask_many({"id": str(n), "stream": "numbers", "value": 17.0} for n in range(draws))
    noise = np.array([round((answer.estimate or 0.0) - 17.0) for answer in answers], dtype=np.int64)
    grant_share = Fraction(answers[0].spent.epsilon) if answers[0].spent else Fraction(0)
    assert grant_share == Fraction(0.25)
    assert follows(noise, law_of(sampler("two_sided", Fraction(1, 8))))


def alike(ours: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]) -> bool:
    """Return χ² of two samples of equal size; values beyond ±4 standard deviations are one cell."""
    edge = int(4 * np.std(ours))
    one, other = (np.bincount(np.clip(x, -edge, edge) + edge, minlength=2 * edge + 1) for x in (ours, theirs))
    both = one + other
    kept = both >= 50
    statistic = float(np.sum((one - other)[kept] ** 2 / both[kept]))
    return bool(chi2.sf(statistic, int(np.sum(kept))) >= FALSE_ALARM)


def uniform_words(rows: int, count: int) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(7).integers(0, 2**64, size=(rows, count), dtype=np.uint64)


@pytest.mark.parametrize("scale", [1, 3, 10])
def test_laplace_noise_is_that_of_another_implementation(scale: int) -> None:
    dp.enable_features("contrib")
    draws = 40000
    law = sampler("two_sided", Fraction(1, scale))
    ours = law.draw(uniform_words(draws, law.words), lambda _: np.zeros(law.words, dtype=np.uint64))
    space = dp.vector_domain(dp.atom_domain(T="i32")), dp.l1_distance(T="i32")
    oracle = dp.m.make_laplace(*space, scale=float(scale))
    assert oracle.map(1) == pytest.approx(1 / scale)  # type: ignore[no-untyped-call]
    theirs = np.array(oracle([0] * draws), dtype=np.int64)
    assert alike(ours, theirs)
    assert not alike(ours, theirs * 2)
