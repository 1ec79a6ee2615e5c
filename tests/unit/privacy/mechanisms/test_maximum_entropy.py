"""The maximum-entropy estimate is correct for known results, always has the same bits, and is the optimum of its objective."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest
from blake3 import blake3

from stream.privacy.mechanisms import maximum_entropy
from stream.privacy.mechanisms.maximum_entropy import (
    NoisyMarginal,
    average_equal_axes,
    fit_distribution,
    move_to_product,
    ordered_sum,
    sum_to_axes,
)

Floats = npt.NDArray[np.float64]
SHAPE = (7, 3, 5)


def table(seed: int = 0, shape: tuple[int, ...] = SHAPE, rows: int = 5000) -> Floats:
    """Return counts in whole numbers, computed with Python's own arithmetic only."""
    state, cells = seed + 1, []
    for _ in range(math.prod(shape)):
        state = (state * 1103515245 + 12345) % (1 << 31)
        cells.append(1 + (state >> 16) % 97)
    total = sum(cells)
    found: Floats = np.array([cell * rows // total for cell in cells], dtype=np.float64)
    return found.reshape(shape)


def marginal(counts: Floats, axes: tuple[int, ...], variance: float = 1.0) -> NoisyMarginal:
    others = tuple(axis for axis in range(counts.ndim) if axis not in axes)
    return NoisyMarginal(axes, counts.sum(axis=others), variance)


def shares(shape: tuple[int, ...], marginals: list[NoisyMarginal], rows: int) -> Floats:
    found = fit_distribution(shape, marginals, rows)
    share: Floats = found / found.sum()
    return share


def test_fit_without_measurements_is_uniform() -> None:
    assert np.unique(fit_distribution(SHAPE, [], 100)).size == 1


def test_fit_of_single_axes_is_product() -> None:
    counts = table()
    rows = int(counts.sum())
    ones = [marginal(counts, (axis,)) for axis in range(3)]
    product = np.ones(SHAPE)
    for axis in range(3):
        along = [SHAPE[axis] if other == axis else 1 for other in range(3)]
        product = product * (ones[axis].counts / rows).reshape(along)
    assert np.abs(shares(SHAPE, ones, rows) - product).max() < 1e-4


def test_fit_of_overlapping_pairs_has_largest_entropy() -> None:
    counts = table()
    rows = int(counts.sum())
    left, right = marginal(counts, (0, 1), 1e-4), marginal(counts, (1, 2), 1e-4)
    middle = counts.sum(axis=(0, 2))
    known = left.counts[:, :, None] * right.counts[None, :, :] / middle[None, :, None]
    assert np.abs(shares(SHAPE, [left, right], rows) * rows - known).max() < 0.05 * known.max()


def test_fit_with_small_noise_keeps_all_marginals() -> None:
    counts = table()
    rows = int(counts.sum())
    pairs = [marginal(counts, axes, 1.0) for axes in combinations(range(3), 2)]
    found = shares(SHAPE, pairs, rows) * rows
    for one in pairs:
        assert np.abs(marginal(found, one.axes).counts - one.counts).max() < 3.0


def test_fit_meets_optimality_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    # One marginal: ln(p/p₀) = θ + constant with θ = (y − n·p)/τ, for any noise.
    monkeypatch.setattr(maximum_entropy, "count_fit_steps", lambda _: 3000)
    counts = table(shape=(6, 4))
    noise = np.array([[(7 * row + 5 * column) % 11 - 5.0 for column in range(4)] for row in range(6)])
    one = NoisyMarginal((0, 1), counts + 8.0 * noise, 100.0)
    rows = int(counts.sum())
    found = shares((6, 4), [one], rows)
    base = np.maximum(one.counts.sum(axis=1), 5.0)[:, None] * np.maximum(one.counts.sum(axis=0), 5.0)[None, :]
    theta = (one.counts - rows * found) / (0.5 * 10.0)
    gap = np.log(found / base) - theta
    assert np.ptp(gap) < 1e-2


def test_fit_of_negative_and_conflicting_counts_is_distribution() -> None:
    counts = table(shape=(8, 8), rows=60)
    low = NoisyMarginal((0, 1), counts - 40.0, 900.0)
    high = NoisyMarginal((0,), counts.sum(axis=1) + 300.0, 900.0)
    found = fit_distribution((8, 8), [high, low], 60)
    assert found.min() >= 0
    assert abs(int(found.sum()) - (1 << 42)) < 64


@pytest.mark.parametrize(
    ("shape", "digest"),
    [
        ((7, 3, 5), "88561d80f6abde90d0840f5e9fbaaaff"),
        ((40, 2, 9, 3), "78a4875b5e23033bea33e58e77cbbf21"),
        ((130, 111), "af8e211730f7acdc3c3099900b5b81c5"),
    ],
)
def test_fit_has_same_bits_as_recorded(shape: tuple[int, ...], digest: str) -> None:
    counts = table(3, shape)
    pairs = [marginal(counts, axes, 9.0) for axes in combinations(range(len(shape)), 2)]
    singles = [marginal(counts + 1.0, (axis,), 90.0) for axis in range(len(shape))]
    found = fit_distribution(shape, average_equal_axes([*pairs, *singles]), int(counts.sum()))
    assert blake3(np.ascontiguousarray(found, dtype="<i8").tobytes()).hexdigest()[:32] == digest


def test_fit_handles_attributes_that_determine_each_other() -> None:
    """Six attributes are functions of a single one; each pair is measured with noise of ± 24 rows."""
    plan = np.random.default_rng(1).choice(12, 20_000, p=np.arange(1, 13) / 78)
    columns = [
        np.random.default_rng(2).integers(0, 16, 20_000),
        plan // 3,
        plan % 2,
        plan // 2,
        plan % 8,
        plan // 6,
    ]
    shape = (16, 4, 2, 6, 8, 2)
    noise = np.random.default_rng(3)
    pairs, errors = [], []
    for x, y in combinations(range(6), 2):
        exact = np.zeros((shape[x], shape[y]))
        np.add.at(exact, (columns[x], columns[y]), 1.0)
        pairs.append((NoisyMarginal((x, y), exact + noise.laplace(0.0, 24.0, exact.shape), 2 * 24.0**2), exact))
    found = shares(shape, [one for one, _ in pairs], 20_000) * 20_000
    for one, exact in pairs:
        others = tuple(axis for axis in range(6) if axis not in one.axes)
        errors.append(np.abs(found.sum(axis=others) - exact).ravel())
    assert float(np.concatenate(errors).mean()) < 24.0


def test_fit_is_independent_of_memory_order_of_axes() -> None:
    counts = table(5)
    one = marginal(counts, (0, 2), 4.0)
    turned = NoisyMarginal((0, 2), np.asfortranarray(one.counts), 4.0)
    assert np.array_equal(fit_distribution(SHAPE, [one], 900), fit_distribution(SHAPE, [turned], 900))


def test_average_equal_axes_weights_by_precision() -> None:
    some, more = NoisyMarginal((0,), np.array([10.0, 0.0]), 1.0), NoisyMarginal((0,), np.array([20.0, 8.0]), 3.0)
    [found] = average_equal_axes([some, more])
    assert found.counts.tolist() == [12.5, 2.0]
    assert found.variance == pytest.approx(0.75)


def test_sum_to_axes_adds_up_variances() -> None:
    one = NoisyMarginal((0, 1, 2), table(), 2.0)
    found = sum_to_axes(one, (1,))
    assert np.array_equal(found.counts, table().sum(axis=(0, 2)))
    assert found.variance == 2.0 * 35


def test_ordered_sum_adds_by_halves() -> None:
    values = np.array([1e16, 1.0, -1e16, 1.0, 1.0])
    assert ordered_sum(values) == ((1e16 + -1e16) + 1.0) + (1.0 + 1.0)
    assert ordered_sum(np.zeros(0)) == 0.0


@pytest.mark.parametrize(("factor", "kept"), [(0.0, 0.0), (20.0, 1.0)])
def test_move_to_product_replaces_marginal_explained_by_noise(factor: float, kept: float) -> None:
    """Cells that alternate by σ around the product have the square sum of noise; twenty times this sum is not noise."""
    singles = [NoisyMarginal((axis,), np.full(6, 600.0), 100.0) for axis in range(2)]
    signs = np.where(np.add.outer(np.arange(6), np.arange(6)) % 2, 1.0, -1.0)
    one = NoisyMarginal((2, 4), 100.0 + 10.0 * (1.0 + factor) * signs, 100.0)
    found = move_to_product(one, singles, "laplace")
    assert (found.axes, found.variance) == (one.axes, one.variance)
    assert np.abs(found.counts - (100.0 + kept * (one.counts - 100.0))).max() < 1e-9


def test_move_to_product_moves_uncertain_marginal_in_part() -> None:
    singles = [NoisyMarginal((axis,), np.full(6, 600.0), 100.0) for axis in range(2)]
    signs = np.where(np.add.outer(np.arange(6), np.arange(6)) % 2, 1.0, -1.0)
    squares = 36 + 1.5 * math.sqrt(5 * 36)
    one = NoisyMarginal((0, 1), 100.0 + 10.0 * math.sqrt(squares / 36) * signs, 100.0)
    found = move_to_product(one, singles, "laplace")
    assert np.abs((found.counts - 100.0) / (one.counts - 100.0) - 0.5).max() < 1e-9
