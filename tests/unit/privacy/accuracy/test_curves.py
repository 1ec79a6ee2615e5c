"""Curves of a plan's error: their points and their values."""

from __future__ import annotations

from functools import partial

import pytest

from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.inverse_plans import VariedParameter, error_curve, varied_specs
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import plan_calibrations
from tests.builders import parse_spec

spec = partial(parse_spec, "above_threshold", cutoff=3, epsilon=0.3)


def test_variations_include_requested_value() -> None:
    at = dict(varied_specs(spec(), VariedParameter.EPSILON, 12))
    assert at[0.3] == spec()
    assert [min(at), max(at)] == pytest.approx([0.03, 3.0])
    assert list(at) == sorted(at)
    cutoffs = [value for value, _ in varied_specs(spec(cutoff=7), VariedParameter.CUTOFF, 5)]
    assert 7.0 in cutoffs
    assert (cutoffs[0], cutoffs[-1]) == (1.0, 70.0)


def test_error_curve_has_planners_result_at_each_point() -> None:
    points = list(error_curve(spec(), SourceFacts(), VariedParameter.EPSILON, 4))
    for point in points:
        assert point.calibrations == plan_calibrations(spec(epsilon=point.value), SourceFacts())
    errors = [min(one.alpha for one in point.calibrations) for point in points]
    assert errors == sorted(errors, reverse=True)


def test_error_curve_plans_points_lazily() -> None:
    made = error_curve(spec(), SourceFacts(), VariedParameter.EPSILON, 1001)
    assert next(made).value == pytest.approx(0.03)


def test_error_curve_refuses_cutoff_of_mechanism_charged_once() -> None:
    once = parse_spec("histogram", epsilon=0.3)
    with pytest.raises(PlanError, match="charged once"):
        next(error_curve(once, SourceFacts(), VariedParameter.CUTOFF))


def test_variations_of_omitted_cutoff_surround_ten() -> None:
    free = parse_spec("pmw", epsilon=0.3)
    assert [value for value, _ in varied_specs(free, VariedParameter.CUTOFF, 3)] == [1.0, 10.0, 100.0]
