"""Caches estimates for tests of exact laws, because many transcripts have equal measurements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stream.privacy.mechanisms import estimator, selection
from stream.privacy.mechanisms.maximum_entropy import NoisyMarginal, fit_distribution


@pytest.fixture
def fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache each estimate by all of its arguments."""
    known: dict[Any, npt.NDArray[np.int64]] = {}

    def recalled(shape: Sequence[int], marginals: Sequence[NoisyMarginal], rows: int) -> npt.NDArray[np.int64]:
        measured = tuple((one.axes, one.counts.shape, one.counts.tobytes(), one.variance) for one in marginals)
        key = (tuple(shape), measured, rows)
        if key not in known:
            known[key] = fit_distribution(shape, marginals, rows)
            known[key].flags.writeable = False
        return known[key]

    monkeypatch.setattr(estimator, "fit_distribution", recalled)
    monkeypatch.setattr(selection, "fit_distribution", recalled)
