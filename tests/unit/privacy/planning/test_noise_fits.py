"""The description of noise before any noise is drawn agrees with its sampler."""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas import AnswersCalibration
from stream.privacy.noise.samplers import NoiseScaleError, noise_fits
from stream.privacy.planning.answer_plans import answer_law


def calibration(method: Literal["basic", "gaussian"], scale: float) -> AnswersCalibration:
    return AnswersCalibration(
        method=method,
        epsilon_answer=1 / scale,
        deviation=scale,
        epsilon=1.0,
        delta=1e-9,
        grid=1.0,
        sensitivity_steps=1,
        cutoff=1,
        expected_queries=1,
        beta=0.05,
        alpha=1.0,
    )


@pytest.mark.parametrize("method", ["basic", "gaussian"])
@given(width=st.integers(1, 2**50), moved=st.integers(1, 4), scale=st.floats(0.01, 1e6))
@example(width=2**46, moved=1, scale=1.0)
@example(width=2**48, moved=2, scale=1.0)
@example(width=2**48 + 2**47, moved=2, scale=1.0)
def test_noise_fits_agrees_with_sampler(
    method: Literal["basic", "gaussian"], width: int, moved: int, scale: float
) -> None:
    made = calibration(method, scale)
    found = False
    with suppress(NoiseScaleError):
        answer_law(made, width, moved)
        found = True
    assert noise_fits(made, width, moved) == found
