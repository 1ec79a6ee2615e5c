"""Curves of a plan's error: their points and their values."""

from __future__ import annotations

from functools import partial

import pytest

from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.inverse_plans import VariedParameter, error_curve, variations
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import plan_calibrations
from tests.builders import parse_spec

spec = partial(parse_spec, "above_threshold", cutoff=3, epsilon=0.3)


def test_what_was_asked_for_is_one_of_the_places() -> None:
    at = dict(variations(spec(), VariedParameter.EPSILON, 12))
    assert at[0.3] == spec()
    assert [min(at), max(at)] == pytest.approx([0.03, 3.0])
    assert list(at) == sorted(at)
    cutoffs = [value for value, _ in variations(spec(cutoff=7), VariedParameter.CUTOFF, 5)]
    assert 7.0 in cutoffs
    assert (cutoffs[0], cutoffs[-1]) == (1.0, 70.0)


def test_a_curve_holds_what_the_planner_says_at_each_place() -> None:
    points = list(error_curve(spec(), SourceFacts(), VariedParameter.EPSILON, 4))
    for point in points:
        assert point.calibrations == plan_calibrations(spec(epsilon=point.value), SourceFacts())
    errors = [min(one.alpha for one in point.calibrations) for point in points]
    assert errors == sorted(errors, reverse=True)


def test_no_place_is_planned_before_it_is_asked_for() -> None:
    made = error_curve(spec(), SourceFacts(), VariedParameter.EPSILON, 1001)
    assert next(made).value == pytest.approx(0.03)


def test_what_is_charged_once_has_no_cutoff_to_vary() -> None:
    once = parse_spec("histogram", epsilon=0.3)
    with pytest.raises(PlanError, match="charged once"):
        next(error_curve(once, SourceFacts(), VariedParameter.CUTOFF))


def test_a_cutoff_that_nobody_gave_is_varied_around_ten() -> None:
    free = parse_spec("pmw", epsilon=0.3)
    assert [value for value, _ in variations(free, VariedParameter.CUTOFF, 3)] == [1.0, 10.0, 100.0]
