"""The hypothesis is exact for any division into batches; the run stops, answers and updates by the rule."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.privacy.mechanisms import multiplicative_weights
from stream.privacy.mechanisms.maximum_entropy import exponentials
from stream.privacy.mechanisms.multiplicative_weights import (
    HypothesisAnswer,
    TensorCorrection,
    TensorHypothesis,
    answer_questions,
)
from stream.privacy.planning.hypothesis_plans import RESOLUTION, guaranteed_gap, updates_for

Integers = npt.NDArray[np.int64]

FULL = 1024
CORRECTION = TensorCorrection(gap=5 * FULL, reach=3 * FULL)
SHAPE = (3, 2, 4)


@dataclass(frozen=True)
class Question:
    """A question with all entries of its vector."""

    axes: tuple[int, ...]
    vector: tuple[int, ...]

    def steps(self) -> npt.NDArray[np.int32]:
        return np.array(self.vector, dtype=np.int32)

    def over(self, shape: tuple[int, ...]) -> Question:
        """Return the same question over all axes."""
        sizes = [size if axis in self.axes else 1 for axis, size in enumerate(shape)]
        whole = np.broadcast_to(self.steps().reshape(sizes), shape).reshape(-1)
        return Question(tuple(range(len(shape))), tuple(whole.tolist()))


@st.composite
def questions(draw: st.DrawFn, shape: tuple[int, ...] = SHAPE) -> Question:
    axes = tuple(sorted(draw(st.sets(st.integers(0, len(shape) - 1)))))
    size = math.prod(shape[axis] for axis in axes)
    weights = st.sampled_from([0, FULL]) if draw(st.booleans()) else st.integers(0, FULL)
    return Question(axes, tuple(draw(st.lists(weights, min_size=size, max_size=size))))


updates = st.lists(st.tuples(questions(), st.booleans()), max_size=6)
rates = st.floats(0.005, 4.0)


def build_hypothesis(history: Sequence[tuple[Question, bool]], rate: float = 0.5) -> TensorHypothesis:
    hypothesis = TensorHypothesis(SHAPE, rate, FULL)
    for question, up in history:
        hypothesis.update(question, up=up)
    return hypothesis


def ideal(history: Sequence[tuple[Question, bool]], rate: float, question: Question) -> Decimal:
    """Return q(p̂) in steps, to 50 digits."""
    logs = np.zeros(math.prod(SHAPE), dtype=np.int64)
    for one, up in history:
        logs += one.over(SHAPE).steps() * (1 if up else -1)
    with localcontext(prec=50):
        weights = [(Decimal(rate) / FULL * int(log)).exp() for log in logs]
        mass = sum((w * q for w, q in zip(weights, question.over(SHAPE).vector, strict=True)), Decimal(0))
        return mass / sum(weights, Decimal(0))


@settings(deadline=None)
@given(updates, rates, st.lists(questions(), min_size=1, max_size=4), st.integers(1, 10**9))
def test_estimates_follow_update_rule_within_resolution(
    history: list[tuple[Question, bool]], rate: float, asked: list[Question], rows: int
) -> None:
    estimates = build_hypothesis(history, rate).estimate_answers(asked, rows)
    for estimate, question in zip(estimates.tolist(), asked, strict=True):
        exact = rows * ideal(history, rate, question)
        assert abs(estimate - exact) <= Decimal(RESOLUTION) * rows * FULL + Decimal("0.5")


@settings(deadline=None)
@given(updates, st.lists(questions(), min_size=1, max_size=8))
def test_estimate_is_independent_of_batch(history: list[tuple[Question, bool]], asked: list[Question]) -> None:
    whole = build_hypothesis(history).estimate_answers(asked, 10**6)
    hypothesis = build_hypothesis(history)
    alone = [int(hypothesis.estimate_answers([question], 10**6)[0]) for question in reversed(asked)]
    assert whole.tolist() == alone[::-1]
    assert (
        whole.tolist()
        == build_hypothesis(history).estimate_answers([q.over(SHAPE) for q in asked], 10**6).tolist()
    )


@pytest.mark.parametrize("cells", [1, 7, 24, 100])
def test_estimates_are_independent_of_block_size(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    generator = np.random.default_rng(5)
    asked = [Question((0, 1, 2), tuple(generator.integers(0, FULL + 1, 24).tolist())) for _ in range(50)]
    history = [(asked[0], True), (asked[1], False)]
    whole = build_hypothesis(history).estimate_answers(asked, 48842)
    monkeypatch.setattr(multiplicative_weights, "_BLOCK_CELLS", cells)
    monkeypatch.setattr(multiplicative_weights, "_BUFFER_CELLS", 100)
    assert build_hypothesis(history).estimate_answers(asked, 48842).tolist() == whole.tolist()


def test_uniform_hypothesis_estimates_share_of_cells() -> None:
    hypothesis = TensorHypothesis(SHAPE, 0.3, FULL)
    one_cell = Question((0, 1, 2), (FULL, *[0] * 23))
    everything = Question((), (FULL,))
    half = Question((1,), (0, FULL))
    assert hypothesis.estimate_answers([one_cell, everything, half], 24).tolist() == [FULL, 24 * FULL, 12 * FULL]


def test_update_moves_estimate_in_its_direction() -> None:
    question = Question((0,), (FULL, 0, 0))
    hypothesis = TensorHypothesis(SHAPE, 0.5, FULL)
    start = int(hypothesis.estimate_answers([question], 3000)[0])
    hypothesis.update(question, up=True)
    raised = int(hypothesis.estimate_answers([question], 3000)[0])
    hypothesis.update(question, up=False)
    assert start == 1000 * FULL
    assert raised == round(3000 * FULL * math.exp(0.5) / (math.exp(0.5) + 2))
    assert int(hypothesis.estimate_answers([question], 3000)[0]) == start


@settings(deadline=None)
@given(rates, st.lists(st.integers(-(2**30), 0), min_size=1, max_size=20))
def test_exponentials_are_exact_to_last_digits(rate: float, steps: list[int]) -> None:
    tables = exponentials(rate, FULL)
    found = tables.evaluate(np.minimum(-np.array(steps, dtype=np.int64), tables.most))
    for step, value in zip(steps, found.tolist(), strict=True):
        with localcontext(prec=40):
            exact = (Decimal(rate) / FULL * step).exp()
            if value == 0.0:
                assert exact < Decimal(-31).exp()
            else:
                assert abs(Decimal(value) / exact - 1) < Decimal(2) ** -51


def relative_entropy(truth: npt.NDArray[np.float64], hypothesis: npt.NDArray[np.float64]) -> float:
    kept = truth > 0
    return float(np.sum(truth[kept] * np.log(truth[kept] / hypothesis[kept])))


def distribution(hypothesis: TensorHypothesis) -> npt.NDArray[np.float64]:
    cells = math.prod(SHAPE)
    units = [Question((0, 1, 2), tuple(FULL * (i == j) for j in range(cells))) for i in range(cells)]
    masses: npt.NDArray[np.float64] = hypothesis.estimate_answers(units, 10**9) / (10**9 * FULL)
    return masses


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 20), min_size=24, max_size=24).filter(any),
    updates,
    questions(),
    st.floats(0.05, 1.0),
)
def test_update_lowers_relative_entropy_by_hoeffdings_lemma(
    counts: list[int], history: list[tuple[Question, bool]], question: Question, rate: float
) -> None:
    truth = np.array(counts) / sum(counts)
    vector = question.over(SHAPE).steps() / FULL
    hypothesis = build_hypothesis(history, rate)
    before = distribution(hypothesis)
    error = float(truth @ vector - before @ vector)
    hypothesis.update(question, up=error > 0)
    drop = relative_entropy(truth, before) - relative_entropy(truth, distribution(hypothesis))
    assert drop >= rate * abs(error) - rate**2 / 8 - 1e-6


@pytest.mark.parametrize("gap", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_worst_questions_need_fewer_updates_than_planned(gap: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    truth = generator.dirichlet(np.full(24, 0.2))
    paid = updates_for(math.log(24), gap)
    hypothesis = TensorHypothesis(SHAPE, 4 * gap, FULL)
    done = 0
    while True:
        difference = truth - distribution(hypothesis)
        worst = Question((0, 1, 2), tuple(np.where(difference > 0, FULL, 0).tolist()))
        if difference[difference > 0].sum() <= gap:
            break
        hypothesis.update(worst, up=True)
        done += 1
        assert done < paid


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**7), st.floats(0.0, 1.0))
def test_correction_of_any_strength_gains_least_step(gap: int, reach: int, shown: int, part: float) -> None:
    # The gain is at least η(g − η/8), where g is the true error; all numbers are in rows.
    truth = max(gap, shown - reach + part * 2 * reach)
    moved = 4 * gap * TensorCorrection(gap, reach).choose_multiple(shown)
    assert moved * (truth - moved / 8) >= 2 * gap**2 * (1 - 1e-9)


def test_choose_multiple_is_proportional_to_clear_error() -> None:
    """A doubtful error is corrected by the least step."""
    correction = TensorCorrection(gap=10, reach=20)
    assert [correction.choose_multiple(shown) for shown in (0, 10, 30, 40, 100, 1000)] == [1, 1, 1, 3, 10, 100]
    assert TensorCorrection().choose_multiple(10**9) == 1


@given(st.floats(0.01, 1.0), st.integers(2, 2**20))
def test_guaranteed_gap_inverts_updates_for(gap: float, cells: int) -> None:
    paid = updates_for(math.log(cells), gap)
    assert guaranteed_gap(math.log(cells), paid) <= gap * (1 + 1e-12)
    assert paid == 1 or guaranteed_gap(math.log(cells), paid - 1) > gap * (1 - 1e-12)


class Scripted:
    """Noise that depends only on the number of ⊤s and the place in the whole stream."""

    def __init__(self, seed: int, scale: int, offset: int = 0) -> None:
        self._seed, self._scale, self._offset = seed, scale, offset

    def _draw(self, *what: int) -> int:
        return int(np.random.default_rng([self._seed, *what]).integers(-self._scale, self._scale + 1))

    def barrier(self, tops: int) -> int:
        return self._draw(0, tops)

    def query_noise(self, tops: int, places: range) -> Integers:
        return np.array([self._draw(1, tops, self._offset + place) for place in places], dtype=np.int64)

    def answer_noise(self, tops: int, place: int) -> int:
        return self._draw(2, tops, self._offset + place)


def one_by_one(
    asked: Sequence[Question], private: Sequence[int], noise: Scripted, threshold: int, cutoff: int
) -> list[HypothesisAnswer]:
    """Apply the written rule to one question at a time."""
    hypothesis = build_hypothesis(())
    steps: list[HypothesisAnswer] = []
    tops = 0
    for place, question in enumerate(asked):
        if tops == cutoff:
            break
        estimate = int(hypothesis.estimate_answers([question], 100)[0])
        nu = int(noise.query_noise(tops, range(place, place + 1))[0])
        if abs(private[place] - estimate) + nu >= threshold + noise.barrier(tops):
            value = private[place] + noise.answer_noise(tops, place)
            times = CORRECTION.choose_multiple(abs(value - estimate))
            steps.append(HypothesisAnswer(above=True, value=value, up=value > estimate, times=times))
            for _ in range(times):
                hypothesis.update(question, up=value > estimate)
            tops += 1
        else:
            steps.append(HypothesisAnswer(above=False, value=estimate))
    return steps


cases = st.lists(st.tuples(questions(), st.integers(0, 100 * FULL)), min_size=1, max_size=90)


@settings(max_examples=25, deadline=None)
@given(cases, st.integers(0, 2**32), st.sampled_from([10, 5000, 40000]), st.integers(1, 12))
def test_answer_questions_equals_one_by_one(
    case: list[tuple[Question, int]], seed: int, threshold: int, cutoff: int
) -> None:
    asked, private = [question for question, _ in case], [value for _, value in case]
    noise = Scripted(seed, 5000)
    steps = answer_questions(
        build_hypothesis(()),
        asked,
        np.array(private, dtype=np.int64),
        noise,
        rows=100,
        threshold=threshold,
        tops=0,
        cutoff=cutoff,
        correction=CORRECTION,
    )
    assert steps == one_by_one(asked, private, noise, threshold, cutoff)


@settings(max_examples=20, deadline=None)
@given(cases, st.integers(0, 2**32), st.integers(1, 5), st.data())
def test_answer_questions_is_independent_of_batch_boundaries(
    case: list[tuple[Question, int]], seed: int, cutoff: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(case)))
    hypothesis = build_hypothesis(())
    steps: list[HypothesisAnswer] = []
    for start, part in ((0, case[:cut]), (cut, case[cut:])):
        private = np.array([value for _, value in part], dtype=np.int64)
        tops = sum(step.above for step in steps)
        steps += answer_questions(
            hypothesis,
            [question for question, _ in part],
            private,
            Scripted(seed, 5000, offset=start),
            rows=100,
            threshold=20000,
            tops=tops,
            cutoff=cutoff,
            correction=CORRECTION,
        )
    whole = one_by_one([q for q, _ in case], [v for _, v in case], Scripted(seed, 5000), 20000, cutoff)
    assert steps == whole


def test_hypothesis_of_million_cells_stays_within_gibibyte() -> None:
    shape = (2,) * 20
    generator = np.random.default_rng(1)

    @dataclass(frozen=True)
    class Written:
        seed: int
        axes: tuple[int, ...] = tuple(range(20))

        def steps(self) -> npt.NDArray[np.int32]:
            return np.random.default_rng(self.seed).integers(0, FULL + 1, 1 << 20, dtype=np.int32)

    tracemalloc.start()
    hypothesis = TensorHypothesis(shape, 0.2, FULL)
    asked = [Written(int(seed)) for seed in generator.integers(0, 2**31, 12)]
    hypothesis.update(asked[0], up=True)
    private = np.full(len(asked), 500_000 * FULL, dtype=np.int64)
    steps = answer_questions(
        hypothesis,
        asked,
        private,
        Scripted(1, 10),
        rows=10**6,
        threshold=10**6,
        tops=0,
        cutoff=3,
        correction=TensorCorrection(),
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(steps) == len(asked)
    assert peak < 2**30
    assert hypothesis.nbytes < 2**26


def test_sums_of_largest_tensor_are_exact() -> None:
    hypothesis = TensorHypothesis((1 << 20,), 0.001, FULL)
    hypothesis.update(Question((0,), (FULL, *[0] * ((1 << 20) - 1))), up=False)
    everything = Question((0,), (FULL,) * (1 << 20))
    assert Fraction(int(hypothesis.estimate_answers([everything], 10**12)[0])) == 10**12 * FULL
