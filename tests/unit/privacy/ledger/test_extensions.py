"""Extensions grant the further charged answers that an ε pays for, cost as much as these, and lose no more privacy."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from schemas import Calibration, Extension, Extensions, StreamSpec
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import (
    DELTA_UNITS,
    EPSILON_UNITS,
    PARTS_PER_CHARGE,
    Cost,
    charged_answers,
    exact_decimal,
    extension_cost,
    grant_cost,
    realised_cost,
    stream_cost,
)
from stream.privacy.composition.losses import losses
from stream.privacy.composition.pure_rounds import optimal_delta, optimal_round_epsilon
from stream.privacy.planning.inverse_plans import MAX_EXTENSIONS, extension_price, plan_extension
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration, plan_calibrations
from stream.privacy.planning.promises import extended_beta
from tests.builders import parse_spec

ASKED = "0" * 64
"""The digest of a request."""
TABLE = SourceFacts(universe=120, sizes=(60, 2), rows=1000, disjoint=True)
SPARSE: dict[str, Any] = {"kind": "above_threshold", "threshold": 0.0, "cutoff": 5}
NUMBERS: dict[str, Any] = {"kind": "numeric_sparse", "threshold": 0.0, "cutoff": 4, "monotone": True}
LAPLACE: dict[str, Any] = {"kind": "laplace", "answers": 20}
CHOICES: dict[str, Any] = {"kind": "noisy_max", "answers": 20}
PMW: dict[str, Any] = {"kind": "pmw", "attributes": ["age", "sex"]}
WORST: dict[str, Any] = {"kind": "pmw", "attributes": ["age", "sex"], "worst_case": True}
CASES: list[tuple[dict[str, Any], float, str]] = [
    (SPARSE, 0.0, "best"),
    (SPARSE, 0.0, "textbook"),
    ({**SPARSE, "cutoff": 200}, 1e-6, "best"),
    (NUMBERS, 0.0, "best"),
    (LAPLACE, 0.0, "best"),
    (CHOICES, 1e-6, "best"),
    ({"kind": "exponential", "answers": 3}, 0.0, "best"),
    (PMW, 0.0, "best"),
    (WORST, 0.0, "best"),
    ({"kind": "sparse_pmw", "attributes": ["age", "sex"], "updates": 9}, 0.0, "best"),
]


def plan(
    mechanism: dict[str, Any], delta: float = 0.0, calibration: str = "best"
) -> tuple[StreamSpec, Calibration]:
    spec = parse_spec(**mechanism, delta=delta, calibration=calibration)
    return spec, choose_calibration(spec, TABLE)


@pytest.mark.parametrize(("mechanism", "delta", "calibration"), CASES)
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0])
def test_extension_grants_all_answers_that_epsilon_pays_for(
    mechanism: dict[str, Any], delta: float, calibration: str, epsilon: float
) -> None:
    """An extension grants as many answers as are paid for, and costs no more than these."""
    spec, planned = plan(mechanism, delta, calibration)
    further = losses(planned).extension_loss
    if exact_decimal(epsilon) < further:
        with pytest.raises(
            PlanError,
            match=r"epsilon: .* pays for no further charged answer, because each costs [0-9]+(\.[0-9]{1,6})?; give at least",
        ):
            plan_extension(spec, planned, (), ASKED, epsilon, 0.0)
        return
    extension = plan_extension(spec, planned, (), ASKED, epsilon, 0.0)
    assert extension.answers * further <= exact_decimal(epsilon) < (extension.answers + 1) * further
    cost = extension_cost(planned, "pure", extension, planned.cutoff)
    assert cost == Cost(math.ceil(extension.answers * further * EPSILON_UNITS))
    assert grant_cost(planned, "pure", (extension,)) == stream_cost(planned, "pure") + cost


def test_extension_with_epsilon_of_opening_doubles_answers() -> None:
    spec, planned = plan(LAPLACE)
    assert plan_extension(spec, planned, (), ASKED, 1.0, 0.0).answers == 20
    assert extension_price(spec, planned, ()) == pytest.approx(1.0 / 20)
    assert [plan_extension(spec, planned, (), ASKED, 0.1, 0.0).answers] * 3 == [2] * 3


@pytest.mark.parametrize("kind", ["histogram", "lazy_histogram", "sparse_project"])
def test_extension_is_refused_if_mechanism_is_charged_once(kind: str) -> None:
    spec, planned = plan({"kind": kind, "attributes": ["age", "sex"]})
    assert extension_price(spec, planned, ()) is None
    with pytest.raises(PlanError, match=f"{kind} is charged once"):
        plan_extension(spec, planned, (), ASKED, 1.0, 0.0)


def test_extension_is_limited_in_number_and_answers() -> None:
    """A stream is extended at most a hundred times and to a million answers."""
    spec, planned = plan(LAPLACE)
    one = plan_extension(spec, planned, (), ASKED, 0.1, 0.0)
    with pytest.raises(PlanError, match=f"{MAX_EXTENSIONS} times already"):
        plan_extension(spec, planned, (one,) * MAX_EXTENSIONS, ASKED, 0.1, 0.0)
    small = planned.model_copy(update={"epsilon_answer": 1e-4})
    with pytest.raises(PlanError, match="may give 1,000,000 in all"):
        plan_extension(spec, small, (), ASKED, 1000.0, 0.0)


@pytest.mark.parametrize(("mechanism", "delta"), [(CHOICES, 1e-6), ({**SPARSE, "cutoff": 200}, 1e-6)])
def test_extension_composes_independent_charges_with_own_delta(mechanism: dict[str, Any], delta: float) -> None:
    spec, planned = plan(mechanism, delta)
    one = float(losses(planned).extension_loss)
    plain, composed = (plan_extension(spec, planned, (), ASKED, 3.0, added) for added in (0.0, 1e-7))
    assert composed.answers > plain.answers
    assert (plain.delta, composed.delta <= exact_decimal(1e-7)) == (0.0, True)
    assert composed.epsilon <= 3.0
    assert optimal_delta(one, composed.answers, composed.epsilon) <= 1e-7
    assert optimal_delta(one, composed.answers + 1, 3.0) > 1e-7
    cost = extension_cost(planned, "pure", composed, planned.cutoff)
    assert cost == Cost(
        math.ceil(Fraction(composed.epsilon) * EPSILON_UNITS), math.ceil(Fraction(composed.delta) * DELTA_UNITS)
    )


@pytest.mark.parametrize("mechanism", [SPARSE, NUMBERS, PMW, LAPLACE])
def test_extension_ignores_delta_for_shared_threshold_and_prices(mechanism: dict[str, Any]) -> None:
    spec, planned = plan(mechanism)
    assert plan_extension(spec, planned, (), ASKED, 3.0, 1e-6) == plan_extension(
        spec, planned, (), ASKED, 3.0, 0.0
    )


def test_extension_cannot_use_delta_of_opening() -> None:
    """An extension needs its own δ: an asker who chooses between it and another stream after earlier answers exceeds the sum."""
    delta, rounds, added = 1e-6, 100, 0.5
    one = optimal_round_epsilon(1.0, delta, rounds)
    more = 1
    while optimal_delta(one, rounds + more + 1, 1.0 + added) <= delta:
        more += 1
    chance = 1.0 / (1.0 + math.exp(-one))
    before = (2 * np.arange(rounds + 1) - rounds) * one
    longer = (2 * np.arange(more + 1) - more) * one
    odds = 1.0 / (1.0 + math.exp(-added))

    def beyond(lost: Any) -> Any:
        return np.maximum(0.0, -np.expm1(np.minimum(0.0, 1.0 + added - lost)))

    extended = binom.pmf(np.arange(more + 1), more, chance) @ beyond(before + longer[:, None])
    another = odds * beyond(before + added) + (1.0 - odds) * beyond(before - added)
    first = binom.pmf(np.arange(rounds + 1), rounds, chance)
    assert first @ extended <= delta
    assert first @ another <= delta
    assert first @ np.maximum(extended, another) > 1.4 * delta


def test_extension_loss_of_monotone_query_has_no_discount() -> None:
    """A monotone query saves only on the tops that were planned."""
    spec, planned = plan(NUMBERS)
    assert losses(planned).extension_loss > losses(planned).loss_per_answer
    extension = plan_extension(spec, planned, (), ASKED, 1.0, 0.0)
    whole = Fraction(planned.epsilon_query) + Fraction(planned.epsilon_answer)  # type: ignore[union-attr]
    assert losses(planned).extension_loss == whole / planned.cutoff
    assert grant_cost(planned, "pure", (extension,)).loss >= (4 + extension.answers) * whole / 4 * EPSILON_UNITS


def test_extension_rho_includes_earlier_charges_of_one_threshold() -> None:
    """Under zCDP independent charges add up; those of one threshold count with all before."""
    spec, planned = plan(LAPLACE)
    extension = plan_extension(spec, planned, (), ASKED, 0.5, 0.0)
    each = losses(planned).extension_loss
    assert extension_cost(planned, "zcdp", extension, 20) == Cost(
        math.ceil(10 * each * EPSILON_UNITS), rho=math.ceil(10 * each**2 / 2 * EPSILON_UNITS)
    )
    spec, planned = plan(SPARSE)
    extension = plan_extension(spec, planned, (), ASKED, 0.5, 0.0)
    loss = extension.answers * losses(planned).extension_loss
    rho = (2 * losses(planned).total + loss) ** 2 / 2
    assert extension_cost(planned, "zcdp", extension, 5) == Cost(
        math.ceil(loss * EPSILON_UNITS), rho=math.ceil(rho * EPSILON_UNITS)
    )


def test_uneven_grant_costs_as_much_as_one_answer_with_all_charges() -> None:
    spec, planned = plan(LAPLACE)
    extension = plan_extension(spec, planned, (), ASKED, 0.5, 0.0)
    whole = (planned.cutoff + extension.answers) * losses(planned).extension_loss
    even, uneven = (grant_cost(planned, "zcdp", (extension,), uneven_prices=uneven) for uneven in (False, True))
    assert even.rho < whole**2 / 2 * EPSILON_UNITS <= uneven.rho
    assert even.loss == uneven.loss == math.ceil(whole * EPSILON_UNITS)
    used = realised_cost(
        planned, "zcdp", 1, 1, surplus=30 * PARTS_PER_CHARGE, extensions=(extension,), uneven_prices=True
    )
    assert used == uneven


@settings(deadline=None, max_examples=30)
@given(
    case=st.sampled_from(CASES),
    added=st.lists(st.tuples(st.sampled_from([0.3, 1.0, 2.0]), st.sampled_from([0.0, 1e-7])), max_size=3),
    accountant=st.sampled_from(["pure", "zcdp"]),
)
def test_realised_cost_with_extensions_grows_up_to_grant_cost(
    case: Any, added: list[tuple[float, float]], accountant: str
) -> None:
    spec, planned = plan(*case)
    extensions: Extensions = ()
    for epsilon, delta in added:
        if exact_decimal(epsilon) >= losses(planned).extension_loss:
            extensions += (plan_extension(spec, planned, extensions, ASKED, epsilon, delta),)
    cutoff = charged_answers(planned, extensions)
    spent = [realised_cost(planned, accountant, tops + 1, tops, 0, extensions) for tops in range(cutoff + 1)]
    assert all(before <= after for before, after in itertools.pairwise(spent))
    granted = grant_cost(planned, accountant, extensions)
    assert spent[-1] <= granted
    assert granted.loss - spent[-1].loss <= 1 + len(extensions) + EPSILON_UNITS * 1e-9
    # Extensions do not change the spent amount until their charged answers are used.
    for tops in range(planned.cutoff):
        assert spent[tops] == realised_cost(planned, accountant, tops + 1, tops)
    assert realised_cost(planned, accountant, 0, 0, 0, extensions) == Cost()


def test_extended_beta_grows_with_charged_answers() -> None:
    _, planned = plan(LAPLACE)
    assert extended_beta(planned, ()) == 0.05
    assert extended_beta(planned, (Extension(request=ASKED, answers=20, epsilon=1.0),)) == pytest.approx(0.1)
    assert extended_beta(planned, (Extension(request=ASKED, answers=500, epsilon=30.0),)) > 1.0


def test_extension_is_refused_for_gaussian_noise() -> None:
    spec = parse_spec(**PMW, delta=1e-6)
    told_with_noise, _ = plan(LAPLACE, 1e-6)
    assert losses(plan(LAPLACE, 1e-6)[1]).gaussian
    with pytest.raises(PlanError, match="Gaussian"):
        plan_extension(told_with_noise, plan(LAPLACE, 1e-6)[1], (), ASKED, 5.0, 1e-6)
    wide = SourceFacts(sizes=(10, 10, 4, 4, 17), neighbors="add-remove", rows=50_000)
    gaussian = [one for one in plan_calibrations(spec, wide) if losses(one).gaussian]
    assert gaussian
    for one in gaussian:
        with pytest.raises(PlanError, match="Gaussian noise was planned for a fixed number of charged answers"):
            plan_extension(spec, one, (), ASKED, 5.0, 1e-6)
