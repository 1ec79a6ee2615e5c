"""The failure bound equals the failure probability against the worst asker, and a fine grid makes it no larger."""

from __future__ import annotations

import math
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.privacy.accuracy.sparse_vector_accuracy import AccuracyError, RunLayout, failure_bound, least_alpha
from stream.privacy.planning.noise_layouts import literature_split

STEPS = 1024
"""Steps per unit of sensitivity on the fine grid of the check values."""


def one_threshold_layout(
    fraction: float, cutoff: int, queries: int, *, one_sided: bool, monotone: bool = False
) -> RunLayout:
    """Return a calibration with one threshold for the whole run and ε = 1, of which the threshold gets the given fraction."""
    width = cutoff if monotone else 2 * cutoff
    return RunLayout(
        one_sided=one_sided,
        threshold_rate=fraction / STEPS,
        query_rate=(1.0 - fraction) / (width * STEPS),
        fresh_threshold=False,
        tops=cutoff,
        queries=queries,
    )


class Direct:
    """Computes probabilities as sums over the noise's definition, without the shortcuts of the tested module."""

    def __init__(self, layout: RunLayout, alpha: int, shift: int) -> None:
        self.layout, self.alpha, self.shift = layout, alpha, shift
        reach = math.ceil(45.0 / layout.threshold_rate)
        self.values = range(0 if layout.one_sided else -reach, reach)

    def mass(self, rate: float, z: int) -> float:
        if self.layout.one_sided:
            return -math.expm1(-rate) * math.exp(-rate * z) if z >= 0 else 0.0
        return math.tanh(rate / 2.0) * math.exp(-rate * abs(z))

    def low_passes(self, z: int) -> float:
        """P(ν < α + z + s)."""
        return 1.0 - self.at_least(self.alpha + z + self.shift)

    def high_passes(self, z: int) -> float:
        """P(ν >= −α + z + s)."""
        return self.at_least(-self.alpha + z + self.shift)

    @lru_cache  # noqa: B019
    def at_least(self, x: int) -> float:
        rate = self.layout.query_rate
        bottom = 0 if self.layout.one_sided else -math.ceil(60.0 / rate)
        return math.fsum(self.mass(rate, v) for v in range(max(x, bottom), math.ceil(60.0 / rate) + max(x, 0)))

    def worst_asker(self) -> float:
        """Return the failure probability against an asker who sees each ρ when it is drawn, by dynamic programming."""
        if self.layout.fresh_threshold:
            return 1.0 - self._rounds_left(self.layout.queries, self.layout.tops)
        laws = [(self.mass(self.layout.threshold_rate, z), z) for z in self.values]
        return 1.0 - math.fsum(p * self._same_threshold(z, self.layout.queries, self.layout.tops) for p, z in laws)

    @lru_cache  # noqa: B019
    def _same_threshold(self, z: int, queries: int, tops: int) -> float:
        if queries == 0 or tops == 0:
            return 1.0
        return min(
            self.low_passes(z) * self._same_threshold(z, queries - 1, tops),
            self.high_passes(z) * self._same_threshold(z, queries - 1, tops - 1),
        )

    @lru_cache  # noqa: B019
    def _rounds_left(self, queries: int, tops: int) -> float:
        if queries == 0 or tops == 0:
            return 1.0
        laws = ((self.mass(self.layout.threshold_rate, z), z) for z in self.values)
        return math.fsum(p * self._within_round(z, queries, tops) for p, z in laws)

    @lru_cache  # noqa: B019
    def _within_round(self, z: int, queries: int, tops: int) -> float:
        if queries == 0:
            return 1.0
        return min(
            self.low_passes(z) * self._within_round(z, queries - 1, tops),
            self.high_passes(z) * self._rounds_left(queries - 1, tops - 1),
        )


small_layouts = st.builds(
    RunLayout,
    one_sided=st.booleans(),
    threshold_rate=st.floats(0.3, 3.0),
    query_rate=st.floats(0.3, 3.0),
    fresh_threshold=st.just(value=False),
    tops=st.integers(1, 4),
    queries=st.integers(4, 9),
)


@given(layout=small_layouts, alpha=st.integers(1, 25), shift=st.integers(-8, 12))
@settings(deadline=None, max_examples=30)
def test_failure_bound_equals_worst_askers_success_for_one_threshold(
    layout: RunLayout, alpha: int, shift: int
) -> None:
    direct = Direct(layout, alpha, shift).worst_asker()
    assert failure_bound(layout, alpha, shift) == pytest.approx(direct, rel=1e-6, abs=1e-11)


@given(layout=small_layouts, alpha=st.integers(1, 25), shift=st.integers(-8, 12), blocks=st.integers(1, 40))
@settings(deadline=None, max_examples=30)
def test_failure_bound_is_raised_by_coarse_blocks(layout: RunLayout, alpha: int, shift: int, blocks: int) -> None:
    every_step = failure_bound(layout, alpha, shift, blocks=10**5)
    assert failure_bound(layout, alpha, shift, blocks=blocks) >= every_step * (1.0 - 1e-6)


@given(
    one_sided=st.booleans(),
    threshold_rate=st.floats(0.4, 3.0),
    query_rate=st.floats(0.4, 3.0),
    tops=st.integers(2, 3),
    queries=st.integers(3, 7),
    alpha=st.integers(1, 20),
    shift=st.integers(-5, 8),
    blocks=st.sampled_from([5, 10**5]),
)
@settings(deadline=None, max_examples=25)
def test_failure_bound_covers_askers_who_see_new_thresholds(
    *,
    one_sided: bool,
    threshold_rate: float,
    query_rate: float,
    tops: int,
    queries: int,
    alpha: int,
    shift: int,
    blocks: int,
) -> None:
    layout = RunLayout(
        one_sided=one_sided,
        threshold_rate=threshold_rate,
        query_rate=query_rate,
        fresh_threshold=True,
        tops=tops,
        queries=queries,
    )
    direct = Direct(layout, alpha, shift).worst_asker()
    assert failure_bound(layout, alpha, shift, blocks=blocks) >= direct * (1.0 - 1e-6) - 1e-11


@pytest.mark.parametrize("one_sided", [True, False])
def test_failure_bound_with_new_thresholds_is_its_stated_expectation(*, one_sided: bool) -> None:
    layout = RunLayout(
        one_sided=one_sided, threshold_rate=0.5, query_rate=0.4, fresh_threshold=True, tops=2, queries=9
    )
    alpha, shift = 11, 3
    direct = Direct(layout, alpha, shift)
    expectation = math.fsum(
        direct.mass(0.5, y)
        * direct.mass(0.5, z)
        * direct.low_passes(min(y, z)) ** 9
        * direct.high_passes(y)
        * direct.high_passes(z)
        for y in direct.values
        for z in direct.values
    )
    assert failure_bound(layout, alpha, shift) == pytest.approx(1.0 - expectation, rel=1e-6)


@pytest.mark.parametrize(
    ("cutoff", "fraction", "shift", "expected"),
    [
        (1, 0.5, 0.0, 37.7),
        (1, 0.5, 13.72, 26.8),
        (20, literature_split(40), 0.0, 402.0),
        (20, literature_split(40), 84.5, 347.0),
    ],
)
def test_least_alpha_of_two_sided_noise_has_check_values(
    cutoff: int, fraction: float, shift: float, expected: float
) -> None:
    layout = one_threshold_layout(fraction, cutoff, 1000, one_sided=False)
    assert least_alpha(layout, round(shift * STEPS), 0.05) / STEPS == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize("one_sided", [True, False])
def test_least_alpha_is_independent_of_grid_resolution(*, one_sided: bool) -> None:
    """A grid that is finer by 2^20 gives the same error."""
    coarse = one_threshold_layout(0.3, 3, 1000, one_sided=one_sided)
    fine = RunLayout(
        one_sided=one_sided,
        threshold_rate=coarse.threshold_rate / 2**20,
        query_rate=coarse.query_rate / 2**20,
        fresh_threshold=False,
        tops=3,
        queries=1000,
    )
    error = least_alpha(coarse, 10 * STEPS, 0.05)
    assert least_alpha(fine, 10 * STEPS * 2**20, 0.05) / 2**20 == pytest.approx(error, rel=1e-3)


@given(
    one_sided=st.booleans(),
    fresh=st.booleans(),
    scale=st.floats(1.0, 1e12),
    ratio=st.floats(0.1, 10.0),
    queries=st.integers(1, 10**12),
    tops=st.integers(1, 10**6),
    beta=st.floats(1e-12, 0.9),
    lean=st.floats(-2.0, 5.0),
)
@settings(deadline=None, max_examples=40)
def test_least_alpha_satisfies_beta_at_every_size(
    *,
    one_sided: bool,
    fresh: bool,
    scale: float,
    ratio: float,
    queries: int,
    tops: int,
    beta: float,
    lean: float,
) -> None:
    """The bound at α is at most β, and a smaller α fails more often."""
    layout = RunLayout(
        one_sided=one_sided,
        threshold_rate=1.0 / scale,
        query_rate=ratio / scale,
        fresh_threshold=fresh,
        tops=min(tops, queries),
        queries=queries,
    )
    shift = round(lean * scale)
    alpha = least_alpha(layout, shift, beta)
    assert failure_bound(layout, alpha, shift, blocks=8192, tail=1e-9 * beta / tops) <= beta
    less = min(alpha - 1, int(0.97 * alpha))
    assert failure_bound(layout, less, shift, blocks=8192, tail=1e-20) > 0.9 * beta or alpha == 1


def test_failure_bound_resolves_ties_at_edges_as_stated() -> None:
    """Two queries exactly at T ± α are ties."""
    # q = e^-1, one query, no block error: at T − α a run fails iff ν >= α + ρ.
    layout = RunLayout(
        one_sided=True, threshold_rate=1.0, query_rate=1.0, fresh_threshold=False, tops=1, queries=1
    )
    q = math.exp(-1.0)
    false_alarm = sum((1 - q) * q**z * q ** (4 + z) for z in range(60))
    miss = sum((1 - q) * q**z * (1.0 - q ** max(0, z - 4)) for z in range(60))
    assert failure_bound(layout, 4, 0) >= max(false_alarm, miss)


def test_least_alpha_refuses_impossible_request_with_advice() -> None:
    layout = RunLayout(
        one_sided=True, threshold_rate=1e-17, query_rate=1e-17, fresh_threshold=False, tops=1, queries=10
    )
    with pytest.raises(AccuracyError, match="coarser grid"):
        least_alpha(layout, 0, 1e-9)
