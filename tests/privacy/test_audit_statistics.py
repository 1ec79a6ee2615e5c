"""The audit's arithmetic: bounds with known values, and false alarms no more frequent than stated."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from stream.dev.audit_cases import AnswerContent, Case, Side, Transcript
from stream.dev.auditor import judge
from stream.dev.event_search import epsilon_at_least
from stream.privacy.accuracy.noise_laws import clopper_pearson_lower, clopper_pearson_upper
from tests.privacy.chance import at_most as likely_at_most

ABOVE, BELOW = AnswerContent("above"), AnswerContent("below")


@pytest.mark.parametrize("alpha", [0.025, 0.05, 1e-6])
def test_bounds_without_a_success_or_failure_have_a_closed_form(alpha: float) -> None:
    for trials in (1, 10, 5000):
        root = math.exp(math.log(alpha) / trials)
        assert clopper_pearson_lower(0, trials, alpha) == 0.0
        assert clopper_pearson_upper(0, trials, alpha) == pytest.approx(1 - root, rel=1e-9)
        assert clopper_pearson_lower(trials, trials, alpha) == pytest.approx(root, rel=1e-9)
        assert clopper_pearson_upper(trials, trials, alpha) == 1.0


def test_bounds_have_the_values_of_published_tables() -> None:
    """The reference is the 95 % intervals of Clopper & Pearson's chart and of later tables."""
    assert clopper_pearson_lower(10, 100, 0.025) == pytest.approx(0.0490, abs=5e-5)
    assert clopper_pearson_upper(10, 100, 0.025) == pytest.approx(0.1762, abs=5e-5)
    assert clopper_pearson_lower(4, 20, 0.025) == pytest.approx(0.0573, abs=5e-5)
    assert clopper_pearson_upper(4, 20, 0.025) == pytest.approx(0.4366, abs=5e-5)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3000), st.data(), st.floats(1e-9, 0.4))
def test_bounds_are_those_of_the_exact_binomial_test(trials: int, data: st.DataObject, alpha: float) -> None:
    successes = data.draw(st.integers(0, trials))
    interval = binomtest(successes, trials).proportion_ci(confidence_level=1 - 2 * alpha, method="exact")
    assert clopper_pearson_lower(successes, trials, alpha) == pytest.approx(interval.low, rel=1e-5, abs=1e-12)
    assert clopper_pearson_upper(successes, trials, alpha) == pytest.approx(interval.high, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 0.05])
def test_bound_exceeds_the_true_epsilon_as_rarely_as_stated(epsilon: float, delta: float) -> None:
    """Summed over all outcomes, for an event whose probabilities reach (ε, δ) exactly."""
    trials, alpha = 150, 0.1
    counts = np.arange(trials + 1)
    for unlikely in (0.01, 0.04, 0.2):
        likely = math.exp(epsilon) * unlikely + delta
        if likely > 1:
            continue
        above = (
            epsilon_at_least(counts[:, None], counts[None, :], trials, delta=delta, error_probability=alpha)
            > epsilon
        )
        weights = np.outer(binom.pmf(counts, trials, likely), binom.pmf(counts, trials, unlikely))
        assert weights[above].sum() <= alpha


def test_bound_is_zero_without_evidence_and_grows_with_it() -> None:
    assert epsilon_at_least(0, 10, 100, delta=0.0, error_probability=0.05) == 0.0
    assert epsilon_at_least(50, 50, 100, delta=0.0, error_probability=0.05) == 0.0
    bounds = [epsilon_at_least(n // 2, n // 10, n, delta=0.0, error_probability=0.05) for n in (100, 1000, 10**6)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(math.log(5), abs=0.01)
    assert epsilon_at_least(500, 100, 1000, delta=0.2, error_probability=0.05) < bounds[1]


def case(epsilon: float) -> Case:
    """Return a case whose runs the tests make up."""
    return Case("made up", {"kind": "made_up"}, {}, (Side([{}]), Side([{}])), {"epsilon": epsilon})


def flips(generator: np.random.Generator, runs: int, chances: list[float]) -> list[Transcript]:
    """Return transcripts of independent answers, each ⊤ with its given probability."""
    drawn = generator.random((runs, len(chances))) < np.array(chances)
    return [tuple(ABOVE if one else BELOW for one in row) for row in drawn]


def test_loss_of_exactly_epsilon_is_flagged_as_rarely_as_stated() -> None:
    """In a randomized response of two bits, one transcript of four has the whole ε, and the search must find it."""
    generator = np.random.default_rng(7)
    epsilon, alpha, audits = 1.0, 0.1, 60
    truth = math.exp(epsilon / 2) / (1 + math.exp(epsilon / 2))
    flagged, bounds = 0, []
    for _ in range(audits):
        samples = (flips(generator, 400, [truth] * 2), flips(generator, 400, [1 - truth] * 2))
        bound = judge(case(epsilon), samples, alpha)[-1]
        bounds.append(bound)
        flagged += bound > epsilon
    assert likely_at_most(flagged, audits, alpha)
    assert np.median(bounds) > 0.5 * epsilon


def test_search_finds_a_loss_spread_over_many_answers() -> None:
    """Hardly a transcript of 60 answers occurs twice, but the number of ⊤s distinguishes the data sets."""
    generator = np.random.default_rng(8)
    samples = (flips(generator, 2000, [0.6] * 60), flips(generator, 2000, [0.4] * 60))
    assert judge(case(2.0), samples, 1e-6)[-1] > 2.0


def test_search_finds_one_number_among_many() -> None:
    generator = np.random.default_rng(9)

    def releases(shift: int) -> list[Transcript]:
        noise = generator.geometric(0.2, (3000, 40)) - generator.geometric(0.2, (3000, 40))
        noise[:, 17] += shift
        return [(AnswerContent("answer", tuple(row)),) for row in noise.tolist()]

    event, likely, unlikely, trials, bound = judge(case(1.0), (releases(0), releases(6)), 1e-6)
    assert bound > 0.5
    assert likely > unlikely
    assert trials == 1500
    # These neighbors have the same law, so nothing can be found.
    assert judge(case(1.0), (releases(0), releases(0)), 1e-6)[-1] == 0.0
    assert event.label


def test_sides_must_ask_the_same_number_of_queries() -> None:
    with pytest.raises(ValueError, match="sides"):
        Case("uneven", {"kind": "made_up"}, {}, (Side([{}]), Side([{}, {}])))
