"""Plans of multiplicative weights spend no more than ε, keep their promises, and are better than the textbook's."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import pytest

from schemas import HypothesisCalibration
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.losses import losses
from stream.privacy.composition.pure_rounds import optimal_delta
from stream.privacy.planning.hypothesis_plans import (
    RESOLUTION,
    guaranteed_gap,
    plan_calibrations,
    rows_reach,
    updates_for,
)
from stream.privacy.planning.noise_layouts import PlanError
from tests.builders import parse_spec

Neighbors = Literal["add-remove", "replace"]


@lru_cache
def all_plans(
    *,
    rows: int | None = 100_000,
    universe: int | None = 1024,
    queries: int = 10_000,
    epsilon: float = 1.0,
    delta: float = 0.0,
    beta: float = 0.05,
    neighbors: Neighbors = "replace",
    updates: int | None = None,
    gap: float | None = None,
    kind: Literal["pmw", "sparse_pmw"] = "pmw",
) -> dict[str, HypothesisCalibration]:
    """Return the calibrations, by their own method and their sparse vector's method."""
    spec = parse_spec(
        kind,
        updates=updates,
        gap=gap,
        rows=rows,
        epsilon=epsilon,
        delta=delta,
        expected_queries=queries,
        beta=beta,
    )
    facts = SourceFacts(universe=universe, rows=rows, neighbors=neighbors)
    found = plan_calibrations(spec, facts)
    return {one.method if one.method == "textbook" else one.sparse_vector.method: one for one in found}


def test_calibrated_plan_is_informative_but_textbook_is_not() -> None:
    found = all_plans(delta=1e-6)
    fractions = {name: one.alpha / one.rows for name, one in found.items()}
    assert fractions["textbook"] == pytest.approx(1.01, abs=0.01)
    assert fractions["one_sided"] == pytest.approx(0.199, abs=0.002)
    assert fractions["one_sided_rounds"] == pytest.approx(0.157, abs=0.002)


def test_plan_pays_little_for_noisy_number_of_rows() -> None:
    public, noisy = (all_plans(neighbors=relation)["one_sided"] for relation in ("replace", "add-remove"))
    assert public.epsilon_rows == 0.0
    assert 0.0 < noisy.epsilon_rows < 0.05
    assert public.alpha < noisy.alpha < 1.05 * public.alpha


DEFAULTS: dict[str, Any] = {"epsilon": 1.0, "delta": 0.0, "universe": 1024, "neighbors": "replace"}

CASES: dict[str, dict[str, Any]] = {
    "tiny": {"rows": 10, "universe": 2, "queries": 1, "epsilon": 20.0, "neighbors": "add-remove"},
    "one cell": {"rows": 1000, "universe": 1, "queries": 50, "beta": 0.5},
    "one update": {"rows": 3000, "universe": 24, "queries": 100, "updates": 1, "neighbors": "add-remove"},
    "little ε": {"epsilon": 0.05, "rows": 10**6, "neighbors": "add-remove", "delta": 1e-9},
    "much ε and δ": {"epsilon": 20.0, "delta": 1e-3, "universe": 2**20, "rows": 10**7},
    "given gap": {"gap": 0.1, "queries": 100, "neighbors": "add-remove"},
    "given gap and updates": {"gap": 0.02, "updates": 60, "rows": 50_000, "neighbors": "add-remove"},
    "given updates": {"updates": 300, "delta": 1e-6, "neighbors": "add-remove", "beta": 1e-6},
}


@pytest.mark.parametrize("case", CASES)
def test_plan_parts_stay_within_epsilon_and_delta(case: str) -> None:
    chosen = DEFAULTS | CASES[case]
    for one in all_plans(**chosen).values():
        parts = losses(one)
        if one.delta == 0.0:
            assert parts.total <= Fraction(chosen["epsilon"])
        else:
            rounds = one.sparse_vector
            whole = rounds.epsilon_threshold + rounds.epsilon_query + rounds.epsilon_answer
            rest = chosen["epsilon"] - one.epsilon_rows
            assert optimal_delta(whole, one.cutoff, rest) <= chosen["delta"] * (1 + 1e-6)
        assert (one.epsilon_rows > 0.0) == (chosen["neighbors"] == "add-remove")
        assert one.epsilon == chosen["epsilon"]


@pytest.mark.parametrize("case", CASES)
def test_plan_top_proves_error_within_updates(
    case: str,
) -> None:
    """A ⊤ proves the sign of an error that the number of updates can pay for."""
    chosen = DEFAULTS | CASES[case]
    log_universe = math.log(max(2, chosen["universe"]))
    for name, one in all_plans(**chosen).items():
        vector = one.sparse_vector
        shown = one.threshold * one.grid - vector.alpha
        if name == "textbook":
            gap = chosen.get("gap") or math.sqrt(4 * log_universe / one.cutoff)
            assert one.learning_rate == pytest.approx(gap / 2)
        else:
            gap = chosen.get("gap") or guaranteed_gap(log_universe, one.cutoff)
            assert one.learning_rate == pytest.approx(4 * gap)
        if "updates" not in chosen:
            assert one.cutoff >= log_universe / (2 * gap**2) * (1 - 1e-12)
        assert shown >= (gap + RESOLUTION) * one.rows + rows_reach(one)
        assert shown > vector.answer_alpha
        assert one.alpha >= one.threshold * one.grid + vector.alpha
        assert one.alpha >= vector.answer_alpha
        assert one.cutoff == vector.cutoff
        assert chosen.get("updates") in (None, one.cutoff)


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.25, 3.0])
def test_plan_updates_have_least_error(factor: float) -> None:
    best = all_plans(neighbors="add-remove", delta=1e-6)
    for name in ("one_sided", "one_sided_rounds"):
        other = all_plans(neighbors="add-remove", delta=1e-6, updates=round(factor * best[name].cutoff))[name]
        assert other.alpha >= 0.999 * best[name].alpha


def test_textbook_has_least_error_within_its_updates() -> None:
    one = all_plans(delta=1e-6)["textbook"]
    gap = math.sqrt(4 * math.log(1024) / one.cutoff)
    assert one.sparse_vector.alpha <= gap * one.rows
    assert one.alpha == pytest.approx(3 * gap * one.rows, rel=0.01)
    more = all_plans(delta=1e-6, updates=one.cutoff + 2)["textbook"]
    assert more.sparse_vector.alpha > math.sqrt(4 * math.log(1024) / more.cutoff) * more.rows


def test_sparse_plan_accepts_universe_of_any_size() -> None:
    found = all_plans(universe=2**500, rows=10**7, kind="sparse_pmw")["one_sided"]
    assert found.alpha < found.rows


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"rows": None, "neighbors": "add-remove"}, "mechanism.rows"),
        ({"universe": None}, "mechanism.kind"),
        ({"gap": 1e-4}, "mechanism.gap"),
        ({"universe": 2**20 + 1}, "mechanism.attributes"),
    ],
)
def test_plan_refusal_names_field_to_change(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(PlanError, match=f"^{field}: .*;"):
        all_plans(**changed)


def test_plan_relative_error_is_smaller_for_larger_table() -> None:
    fractions = [all_plans(rows=rows)["one_sided"].alpha / rows for rows in (10**4, 10**5, 10**6)]
    assert fractions == sorted(fractions, reverse=True)


def test_given_gap_and_updates_lower_error_without_guarantee() -> None:
    """With a given gap and updates α is smaller, but the updates may run out."""
    certain = all_plans(rows=50_000, neighbors="add-remove")["one_sided"]
    chosen = all_plans(rows=50_000, neighbors="add-remove", gap=0.02, updates=60)["one_sided"]
    assert chosen.alpha < 0.35 * certain.alpha
    assert chosen.cutoff < updates_for(math.log(1024), 0.02)
