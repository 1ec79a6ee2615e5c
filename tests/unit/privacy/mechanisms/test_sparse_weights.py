"""The sparse hypothesis equals the dense one, with time and memory that do not depend on the universe."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from stream.privacy.mechanisms.multiplicative_weights import (
    CellQuestion,
    SparseCorrection,
    SparseHypothesis,
    TensorCorrection,
)
from stream.privacy.planning.hypothesis_plans import count_cells

RESOLUTION = 1024
ROWS = 100_000


@st.composite
def questions(draw: st.DrawFn, universe: int = 12) -> CellQuestion:
    weights = draw(
        st.dictionaries(st.integers(0, universe - 1), st.integers(1, RESOLUTION), min_size=1, max_size=universe)
    )
    cells = sorted(weights)
    return CellQuestion(tuple((cell,) for cell in cells), tuple(weights[cell] for cell in cells))


def dense_mass(
    universe: int, rate: float, updates: list[tuple[CellQuestion, bool]], question: CellQuestion
) -> float:
    """Return Σ q(x)·p̂(x) in steps, computed with the weight of every cell."""
    logs = [0.0] * universe
    for asked, up in updates:
        for (cell,), step in zip(asked.cells, asked.steps, strict=True):
            logs[cell] += (rate if up else -rate) * step / RESOLUTION
    weights = [math.exp(log - max(logs)) for log in logs]
    asked_for = zip(question.cells, question.steps, strict=True)
    return sum(step * weights[cell] for (cell,), step in asked_for) / sum(weights)


@given(
    st.lists(st.tuples(questions(), st.booleans()), max_size=12),
    questions(),
    st.floats(1e-3, 4.0),
    st.sampled_from([12, 13, 50]),
)
@settings(max_examples=75, deadline=None)
def test_sparse_estimates_equal_dense_weights(
    updates: list[tuple[CellQuestion, bool]], question: CellQuestion, rate: float, universe: int
) -> None:
    hypothesis = SparseHypothesis(universe, rate, RESOLUTION)
    for asked, up in updates:
        hypothesis.update(asked, up=up)
    [estimate] = hypothesis.estimate_answers([question], ROWS).tolist()
    assert abs(estimate - ROWS * dense_mass(universe, rate, updates, question)) <= 0.5 + 1e-4


@given(st.lists(st.tuples(questions(), st.booleans()), max_size=6), st.lists(questions(), min_size=2, max_size=5))
@settings(deadline=None)
def test_sparse_estimate_depends_on_updates_and_question_only(
    updates: list[tuple[CellQuestion, bool]], asked: list[CellQuestion]
) -> None:
    first, second = SparseHypothesis(20, 0.5, RESOLUTION), SparseHypothesis(20, 0.5, RESOLUTION)
    for question, up in updates:
        first.update(question, up=up)
        first.estimate_answers(asked, ROWS)
        second.update(question, up=up)
    together = first.estimate_answers(asked, ROWS).tolist()
    assert together == [int(second.estimate_answers([question], ROWS)[0]) for question in reversed(asked)][::-1]


def test_sparse_update_is_undone_by_its_reverse() -> None:
    hypothesis = SparseHypothesis(1 << 60, 0.3, RESOLUTION)
    question = CellQuestion(((1,), (5,)), (1024, 100))
    hypothesis.update(question, up=True)
    hypothesis.update(question, up=False)
    whole = CellQuestion(((1,), (7,)), (1024, 1024))
    assert hypothesis.estimate_answers([whole], 1 << 50).tolist() == [round(2 * 1024 * Fraction(1, 1 << 10))]


def test_sparse_hypothesis_learns_heavy_cell_of_any_universe() -> None:
    universe = (1 << 20) ** 64
    hypothesis = SparseHypothesis(universe, 1.0, RESOLUTION)
    cell = CellQuestion(((3,) * 64,), (RESOLUTION,))
    other = CellQuestion(((4,) * 64,), (RESOLUTION,))
    needed = math.ceil(math.log(universe))
    shares = []
    for _ in range(needed + 40):
        hypothesis.update(cell, up=True)
        shares.append(int(hypothesis.estimate_answers([cell], ROWS)[0]) / (ROWS * RESOLUTION))
    assert shares == sorted(shares)
    assert shares[needed - 20] < 1e-6
    assert shares[-1] == pytest.approx(1.0)
    assert hypothesis.estimate_answers([other], ROWS).tolist() == [0]


def test_sparse_estimates_of_distant_weights_add_up() -> None:
    cells = [CellQuestion(((cell,),), (RESOLUTION,)) for cell in range(4)]
    hypothesis = SparseHypothesis(4, 4.0, RESOLUTION)
    for _ in range(500):
        for cell in cells:
            hypothesis.update(cell, up=False)
    hypothesis.update(cells[0], up=True)
    estimates = hypothesis.estimate_answers(cells, ROWS).tolist()
    assert sum(estimates) == pytest.approx(ROWS * RESOLUTION, abs=4)
    assert estimates[0] / estimates[1] == pytest.approx(math.exp(4.0), rel=1e-6)


def test_sparse_memory_grows_with_named_cells_only() -> None:
    small, large = SparseHypothesis(10, 1.0, RESOLUTION), SparseHypothesis(1 << 200, 1.0, RESOLUTION)
    assert small.nbytes == large.nbytes
    large.update(CellQuestion(((1,), (2,)), (1, 1)), up=True)
    large.update(CellQuestion(((2,), (3,)), (1, 1)), up=True)
    assert large.nbytes - small.nbytes == 3 * small.nbytes


def test_sparse_corrections_stay_below_bound_in_any_universe() -> None:
    """The worst asker knows the table, and asks any question that errs by more than γ in a chosen direction."""
    sparsity, updates = 2, 60
    gap = math.sqrt(math.log(count_cells(1 << 60, sparsity, updates, ROWS)) / (2.0 * updates))
    truth: dict[tuple[int, ...], float] = {(cell,): share for cell, share in enumerate((0.45, 0.35, 0.15, 0.05))}
    hypothesis = SparseHypothesis(count_cells(1 << 60, sparsity, updates, ROWS), 4.0 * gap, RESOLUTION)
    asked = [CellQuestion(((cell,),), (RESOLUTION,)) for cell in range(2 * updates)]
    asked += [CellQuestion(((cell,), (cell + 1,)), (RESOLUTION, RESOLUTION)) for cell in range(2 * updates)]
    values = [sum(truth.get(cell, 0.0) for cell in question.cells) for question in asked]
    corrections = 0
    while True:
        estimates = hypothesis.estimate_answers(asked, ROWS) / (ROWS * RESOLUTION)
        errors = [value - estimate for value, estimate in zip(values, estimates.tolist(), strict=True)]
        worst = max(range(len(asked)), key=lambda place: abs(errors[place]))
        if abs(errors[worst]) <= gap:
            break
        hypothesis.update(asked[worst], up=errors[worst] > 0.0)
        corrections += 1
        assert corrections < updates
    assert corrections > 0


@given(
    share=st.floats(1e-6, 1.0 - 1e-6),
    estimate=st.integers(1, ROWS * RESOLUTION - 1),
    gap=st.floats(1e-3, 0.3),
    noise=st.floats(-1.0, 1.0),
    reach=st.integers(0, ROWS * RESOLUTION // 10),
)
@settings(deadline=None)
def test_aimed_correction_gains_as_much_as_bound_requires(
    share: float, estimate: int, gap: float, noise: float, reach: int
) -> None:
    whole = ROWS * RESOLUTION
    before = estimate / whole
    assume(abs(share - before) >= gap)
    shown = round((share - before) * whole + noise * reach)
    assume(shown != 0 and (shown > 0) == (share > before))
    rate = 4.0 * gap
    times = SparseCorrection(math.floor(gap * whole), reach + 1, whole, whole, rate).choose_multiple(
        shown, estimate
    )
    step = math.copysign(times * rate, share - before)
    # The smallest gain of a q with q(p̂) = before: by convexity, that of a question of whole cells.
    gained = step * share - math.log1p(before * math.expm1(step))
    assert gained >= 2.0 * gap * gap * (1.0 - 1e-3)


def test_aimed_correction_reaches_heavy_question_at_once() -> None:
    named = tuple((cell,) for cell in range(200))
    question = CellQuestion(named, (RESOLUTION,) * 200)
    hypothesis = SparseHypothesis(count_cells(1 << 60, 200, 3, ROWS), 0.004, RESOLUTION)
    before = int(hypothesis.estimate_answers([question], ROWS)[0])
    assert before <= RESOLUTION  # one row at most
    truth = 3 * ROWS * RESOLUTION // 10
    aim = SparseCorrection(100 * RESOLUTION, 4 * RESOLUTION, ROWS * RESOLUTION, ROWS * RESOLUTION, 0.004)
    hypothesis.update(question, up=True, times=aim.choose_multiple(truth - before, before))
    after = int(hypothesis.estimate_answers([question], ROWS)[0])
    assert abs(after - truth) <= 4 * RESOLUTION + 0.004 * truth
    hypothesis.update(question, up=False, times=aim.choose_multiple(before - after, after))
    assert hypothesis.estimate_answers([question], ROWS)[0] <= 0.01 * truth
    strongest = TensorCorrection(100 * RESOLUTION, 4 * RESOLUTION).choose_multiple(truth)
    slower = SparseHypothesis(count_cells(1 << 60, 200, 3, ROWS), 0.004, RESOLUTION)
    slower.update(question, up=True, times=strongest)
    assert slower.estimate_answers([question], ROWS)[0] < 0.1 * truth


@pytest.mark.parametrize(("universe", "expected"), [(27_200, 27_200), (1 << 60, 16 * 48_842), (17, 17)])
def test_sparse_unnamed_cells_have_uniform_share_or_one_row(universe: int, expected: int) -> None:
    assert count_cells(universe, 16, 100, 48_842) == expected
    fresh = SparseHypothesis(expected, 0.5, RESOLUTION)
    one = CellQuestion(((1,),), (RESOLUTION,))
    assert fresh.estimate_answers([one], 48_842)[0] == round(48_842 * RESOLUTION / expected)
