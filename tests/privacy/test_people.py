"""Whole people are added to and removed from small tables: their moves, and the exact loss of these moves with the shipped noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest

from schemas import (
    AnswersCalibration,
    EstimateCalibration,
    HypothesisCalibration,
    ReleaseCalibration,
    SparseVectorCalibration,
)
from sotto import Driver
from stream.privacy.accuracy.release_accuracy import release_law
from stream.privacy.composition.gaussian_losses import gaussian_rho
from stream.privacy.composition.losses import losses
from stream.privacy.mechanisms.above_threshold import query_sampler, threshold_sampler
from stream.privacy.mechanisms.releases import matrix_seed, project
from stream.privacy.mechanisms.selection import score_noise, selection_rate
from stream.privacy.noise.samplers import DELTA_PER_DRAW, sampler
from stream.privacy.planning.answer_plans import alpha_for, answer_law
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS, rows_rate
from stream.privacy.planning.plans import noise_rate
from stream.privacy.planning.warm_starts import marginal_law, number_law, warm_start_law
from stream.tables.columns_table import PrivateTable
from stream.tables.predicates import parse
from tests import builders
from tests.privacy import people_variants as variants
from tests.privacy.audit_variants import Variant, broken
from tests.privacy.exact import Machine, exponential_below, law_of, outcomes, worst_delta
from tests.privacy.moved_numbers import worst
from tests.privacy.service import KEY

CONTRIBUTION = 2
VALUES = 2
OUTSIDE = 9
ROWS = [own for size in range(1, 5) for own in combinations_with_replacement(range(VALUES), size)]
"""All sets of up to four rows that one person may have. One set includes a row that the domain's rule leaves out."""
OTHERS = [(), *product(ROWS, ROWS[2::7]), *[((0, 0, 1, 1),) * number for number in (4, 5, 6)]]
"""The rows of the other people, or none."""

Moves = dict[str, tuple[int, ...]]


def source_of_visits(neighbors: str = "add-remove", contribution: int = CONTRIBUTION) -> dict[str, Any]:
    return builders.source(
        "visits",
        "table",
        neighbors=neighbors,
        epsilon=1000.0,
        delta=0.1,
        path="-",
        person="who",
        contribution=contribution,
        attributes={"x": {"kind": "integers", "minimum": 0, "maximum": VALUES - 1, "outside": "reject"}},
    )


def columns(people: Sequence[tuple[int, ...]]) -> dict[str, list[object]]:
    named = [(f"p{number}", value) for number, own in enumerate(people) for value in own]
    # The added or removed person is first in the file.
    named = sorted(named, key=lambda row: row[0] != f"p{len(people) - 1}")
    return {"who": [who for who, _ in named], "x": [value for _, value in named]}


def numbers(people: Sequence[tuple[int, ...]]) -> Moves:
    """Return all numbers that mechanisms compute from a table."""
    source = builders.parse_source(source_of_visits())
    table = PrivateTable.load(source, columns(people), bytes(range(32)))
    everyone, one = parse("TRUE", source.attributes), parse("x = 1", source.attributes)
    return {
        "rows": (table.private_row_count,),
        "count": (table.count(one),),
        "all": (table.count(everyone),),
        "people": (table.people_count(one),),
        "everybody": (table.people_count(everyone),),
        "sum": (table.total("x", everyone),),
        "groups": tuple(table.group_counts(["x"], everyone).tolist()),
        "cells": tuple(table.cell_counts(["x"], [(0,), (1,)]).tolist()),
        "projection": tuple(
            project(matrix_seed("0" * 32), np.stack(list(table.private_codes.values()), 1), 4).tolist()
        ),
    }


@cache
def moves_of_an_added_person() -> dict[str, frozenset[tuple[int, ...]]]:
    """Return how far a person who is added with all rows moves each number, over all small tables."""
    return _moves_of_an_added_person()


def _moves_of_an_added_person() -> dict[str, frozenset[tuple[int, ...]]]:
    found: dict[str, set[tuple[int, ...]]] = {}
    for others in OTHERS:
        before = numbers(others) if others else None
        for own in [*ROWS, (OUTSIDE,)]:
            for name, values in numbers([*others, own]).items():
                base = (0,) * len(values) if before is None else before[name]
                moved = tuple(one - two for one, two in zip(values, base, strict=True))
                found.setdefault(name, set()).add(moved)
    return {name: frozenset(seen) for name, seen in found.items()}


def moves() -> dict[str, frozenset[tuple[int, ...]]]:
    """Return how far an added or removed person moves a number."""
    return {
        name: seen | {tuple(-step for step in one) for one in seen}
        for name, seen in moves_of_an_added_person().items()
    }


def replaced(name: str) -> frozenset[tuple[int, ...]]:
    """Return how far replacing one person with another moves a number."""
    both = product(moves_of_an_added_person()[name], repeat=2)
    return frozenset(tuple(a - b for a, b in zip(one, two, strict=True)) for one, two in both)


def opened(mechanism: dict[str, Any], neighbors: str = "add-remove", **spec: Any) -> tuple[Driver, Any]:
    driver = builders.installation(
        builders.stream("s", "visits", mechanism=mechanism, **{"expected_queries": 4, **spec}),
        sources=[source_of_visits(neighbors)],
        rows={"visits": columns([(0, 1), (1,), (1, 1, 0)])},
        key=KEY,
    )
    return driver, driver.grant("visits", "s").calibration


def test_person_moves_counts_by_the_contribution_and_people_by_one() -> None:
    found = {name: max(sum(map(abs, moved)) for moved in seen) for name, seen in moves().items()}
    assert found == {
        "rows": 2,
        "count": 2,
        "all": 2,
        "people": 1,
        "everybody": 1,
        "sum": 2,
        "groups": 2,
        "cells": 2,
        "projection": 8,
    }
    # All of a person's rows may be in one cell, and a person moves all groups in the same direction.
    assert max(sum(step * step for step in moved) for moved in moves()["groups"]) == CONTRIBUTION**2
    assert all(min(moved) >= 0 or max(moved) <= 0 for moved in moves()["groups"])
    assert max(sum(map(abs, moved)) for moved in replaced("groups")) == 2 * CONTRIBUTION


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_laplace_answers_lose_exactly_their_epsilon(neighbors: str) -> None:
    driver, calibration = opened({"kind": "laplace", "answers": 4}, neighbors, epsilon=4.0)
    assert isinstance(calibration, AnswersCalibration)
    seen = moves() if neighbors == "add-remove" else {name: replaced(name) for name in moves()}
    groups = CONTRIBUTION * (2 if neighbors == "replace" else 1)
    asked = [
        ({"where": "x = 1"}, "count", CONTRIBUTION, 1),
        ({"people": True, "where": "x = 1"}, "people", 1, 1),
        ({"sum": "x"}, "sum", CONTRIBUTION, 1),
        ({"group_by": ["x"]}, "groups", groups, 2),
    ]
    for question, name, width, values in asked:
        answer = driver.ask("s", **question)  # type: ignore[arg-type]
        # The promise shows the width of the noise.
        assert answer.alpha == alpha_for(calibration, width, values)
        lost = worst(answer_law(calibration, width, 1), seen[name])
        assert lost == pytest.approx(1.0, rel=1e-6)


def test_gaussian_noise_fits_the_largest_norm() -> None:
    """Its loss counts every group that moves."""
    _, calibration = opened({"kind": "laplace", "answers": 200}, delta=1e-6)
    assert (calibration.method, calibration.moved) == ("gaussian", 2)
    norm = max(sum(step * step for step in moved) for moved in moves()["groups"])
    law = answer_law(calibration, CONTRIBUTION, 1)
    variance = Fraction(calibration.deviation) ** 2 * CONTRIBUTION**2
    assert law == answer_law(calibration, CONTRIBUTION, 1)
    assert 200 * norm / variance <= 2 * gaussian_rho(losses(calibration).gaussian)
    assert sum(one.count for one in losses(calibration).gaussian) == 200 * 2


@pytest.mark.parametrize(
    ("mechanism", "name"),
    [
        ({"kind": "histogram", "attributes": ["x"]}, "groups"),
        ({"kind": "lazy_histogram", "attributes": ["x"]}, "cells"),
        ({"kind": "sparse_project", "attributes": ["x"], "projections": 4}, "projection"),
    ],
)
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_releases_lose_exactly_their_epsilon(mechanism: dict[str, Any], name: str, neighbors: str) -> None:
    _, calibration = opened(mechanism, neighbors)
    assert isinstance(calibration, ReleaseCalibration)
    seen = moves()[name] if neighbors == "add-remove" else replaced(name)
    assert worst(release_law(calibration), seen) == pytest.approx(1.0, rel=1e-6)


def test_gaussian_release_fits_all_divisions_of_a_persons_rows() -> None:
    """They may be in one cell or in many."""
    for neighbors, cells in (("add-remove", 1), ("replace", 2)):
        calibration = ReleaseCalibration(
            method="gaussian",
            parts=1,
            epsilon_part=0.0,
            epsilon=1.0,
            delta=1e-6,
            grid=1.0,
            sensitivity_steps=CONTRIBUTION * cells,
            moved=CONTRIBUTION * cells,
            contribution=CONTRIBUTION,
            deviation=10.0,
            cutoff=0,
            expected_queries=1,
            beta=0.1,
            alpha=1.0,
        )
        seen = moves()["groups"] if neighbors == "add-remove" else replaced("groups")
        noise = losses(calibration).gaussian
        assert sum(one.precision for one in noise) == Fraction(
            max(sum(m * m for m in moved) for moved in seen), 100
        )
        assert sum(one.count for one in noise) == CONTRIBUTION * cells


@pytest.mark.parametrize(
    ("fields", "name"), [({}, "count"), ({"monotone": True}, "count"), ({"people": True}, "people")]
)
@pytest.mark.parametrize("kind", ["above_threshold", "numeric_sparse"])
def test_sparse_vectors_are_private_for_whole_people(kind: str, fields: dict[str, Any], name: str) -> None:
    _, calibration = opened({"kind": kind, "threshold": 1.0, **fields})
    assert isinstance(calibration, SparseVectorCalibration)
    [reach] = {max(abs(step) for (step,) in moves()[name])}
    assert calibration.sensitivity_steps == reach
    margins = range(calibration.shift - 1, calibration.shift + reach + 1)
    steps = {step for (step,) in moves()[name]} | {0}
    either = [sorted(step for step in steps if step >= 0), sorted(step for step in steps if step <= 0)]
    for allowed in either if fields.get("monotone") else [sorted(steps)]:
        within = [(one, one + step) for one in margins for step in allowed if one + step in margins]
        machine = Machine.shipped(calibration, range(-1, 3) if kind == "numeric_sparse" else ())
        found = outcomes(machine, margins, 3)
        assert worst_delta(found, within, lambda _: Fraction(1)) <= Fraction(40 * DELTA_PER_DRAW)
        # The loss is nearly all of ε: noise for one row alone would lose more.
        assert worst_delta(found, within, lambda _: Fraction(1, 2)) > Fraction(1, 1000)


@pytest.mark.parametrize("kind", ["noisy_max", "exponential"])
def test_choices_fit_the_largest_move_of_a_score(kind: str) -> None:
    for fields, name in (({}, "count"), ({"people": True}, "people")):
        _, calibration = opened({"kind": kind, **fields})
        assert isinstance(calibration, AnswersCalibration)
        reach = max(abs(step) for (step,) in moves()[name])
        # Permute-and-flip and the exponential mechanism lose 2·rate for each step that a score moves.
        rate = -selection_rate(calibration) if kind == "exponential" else None
        law = score_noise(calibration) if kind == "noisy_max" else None
        if law is not None:
            exact = law_of(law)
            lost = 2 * reach * math.log(exact.probability(0) / exact.probability(1))
            assert lost == pytest.approx(1.0, rel=1e-6)
        else:
            assert rate is not None
            assert 2 * reach * abs(float(rate)) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("kind", ["pmw", "sparse_pmw"])
def test_hypotheses_fit_whole_people_in_every_part(kind: str, neighbors: str) -> None:
    mechanism = {"kind": kind, "attributes": ["x"], "rows": 100, "updates": 2}
    if kind == "pmw":
        mechanism["worst_case"] = True
    _, calibration = opened(mechanism, neighbors)
    assert isinstance(calibration, HypothesisCalibration)
    seen = moves() if neighbors == "add-remove" else {name: replaced(name) for name in moves()}
    assert calibration.epsilon_rows > 0.0, "how many rows there are is private, whatever neighbors are"
    rows = worst(sampler("two_sided", rows_rate(calibration)), seen["rows"])
    assert rows == pytest.approx(calibration.epsilon_rows, rel=1e-6)
    _fits(calibration.sparse_vector, max(abs(step) for (step,) in seen["count"]) * WEIGHT_STEPS)
    assert losses(calibration).total <= Fraction(1)


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_estimate_divides_each_part_among_a_persons_rows(neighbors: str) -> None:
    driver, calibration = opened({"kind": "pmw", "attributes": ["x"], "updates": 3}, neighbors)
    assert isinstance(calibration, EstimateCalibration)
    assert calibration.contribution == CONTRIBUTION
    seen = moves() if neighbors == "add-remove" else {name: replaced(name) for name in moves()}
    rows = Fraction(calibration.epsilon_rows)
    parts = losses(calibration)
    assert rows > 0
    lost = {
        "opening": worst(warm_start_law(calibration), seen["groups"]) * calibration.starts,
        "top": worst(marginal_law(calibration, numbered=False), seen["groups"]),
        "numbered": worst(marginal_law(calibration, numbered=True), seen["groups"])
        + worst(number_law(calibration, 1), seen["count"]),
    }
    inner = calibration.sparse_vector
    assert lost["opening"] == pytest.approx(
        CONTRIBUTION * calibration.starts * calibration.epsilon_start, rel=1e-6
    )
    for name in ("top", "numbered"):
        assert lost[name] == pytest.approx(CONTRIBUTION * inner.epsilon_answer / inner.cutoff, rel=1e-6)
    # A price is the loss of the numbers that it pays for.
    assert float(noise_rate(calibration, 1 << 20, 1)) * CONTRIBUTION == pytest.approx(
        float(parts.loss_per_answer), rel=1e-12
    )
    # The comparisons: steps of one row, times the number of rows.
    thresholds = float(Fraction(inner.epsilon_threshold)) / WEIGHT_STEPS
    moved = max(abs(step) for (step,) in seen["count"]) * WEIGHT_STEPS
    assert threshold_sampler(inner).rate == pytest.approx(thresholds)  # type: ignore[union-attr]
    assert moved * thresholds <= CONTRIBUTION * inner.epsilon_threshold * (1 + 1e-12)
    assert parts.total <= Fraction(1)
    assert float(parts.total) == pytest.approx(1.0, rel=1e-9)
    spent = driver.ask("s", where="x = 1").spent
    assert spent is not None
    assert spent.epsilon <= 1.0


def _fits(calibration: SparseVectorCalibration, moved: int) -> None:
    assert calibration.sensitivity_steps == moved
    exponential_below(Fraction(1))
    assert query_sampler(calibration) != query_sampler(calibration.model_copy(update={"sensitivity_steps": 1}))


BROKEN: list[tuple[Variant, str]] = [
    (variants.no_bound, "count"),
    (variants.chosen_by_order_across_people, "groups"),
    (variants.hashed_without_the_person, "groups"),
    (variants.bound_after_the_filter, "groups"),
]


@pytest.mark.parametrize(("variant", "name"), BROKEN, ids=[variant.__name__ for variant, _ in BROKEN])
def test_every_wrong_bound_loses_more_than_epsilon(variant: Variant, name: str) -> None:
    _, calibration = opened({"kind": "laplace"})
    law = answer_law(calibration, CONTRIBUTION, 1)
    with broken(variant):
        found = _moves_of_an_added_person()
    assert worst(law, found[name]) > 1.4
