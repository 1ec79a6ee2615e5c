"""Online private multiplicative weights never loses more than it claims, by exact enumeration on small universes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from schemas import HypothesisCalibration, SparseVectorCalibration
from stream.privacy.composition.losses import losses
from stream.privacy.mechanisms.above_threshold import answer_sampler, query_sampler, threshold_sampler
from stream.privacy.mechanisms.multiplicative_weights import (
    HypothesisAnswer,
    TensorCorrection,
    TensorHypothesis,
    answer_questions,
)
from stream.privacy.noise.samplers import DELTA_PER_DRAW, sampler
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS, rows_rate
from tests.privacy.exact import BITS, Exact, Law, Machine, Outcome, exponential_below, law_of

Integers = npt.NDArray[np.int64]
Rows = tuple[int, ...]

CELLS = 3
SHAPE = (CELLS,)
RATE = 0.8


@dataclass(frozen=True)
class Question:
    """A question: the counted cells; each row weighs one step."""

    inside: tuple[int, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        return (0,)

    def steps(self) -> Integers:
        return np.array(self.inside, dtype=np.int64)

    def count(self, rows: Rows) -> int:
        return sum(self.inside[row] for row in rows)


QUESTIONS = [Question(inside) for inside in ((1, 0, 0), (0, 1, 1), (0, 1, 0))]
ADAPTIVE = (0, 1, 0, 2)
"""The places in ``QUESTIONS`` of the next question; ``asked`` adds the number of updates upwards so far."""


def next_question(steps: Sequence[tuple[bool, bool]]) -> Question:
    """Return the next question of an asker who lets it depend on all earlier answers."""
    ups = sum(above and up for above, up in steps)
    return QUESTIONS[(ADAPTIVE[len(steps) % len(ADAPTIVE)] + ups) % len(QUESTIONS)]


def vector(
    epsilon: float, cutoff: int, *, fresh: bool = False, noise: Literal["one_sided", "two_sided"] = "one_sided"
) -> SparseVectorCalibration:
    """Return a sparse vector over counts in whole steps of one row, with ε divided 1 : 2 : 1 among ρ, ν and numbers."""
    each = epsilon / cutoff if fresh else epsilon
    return SparseVectorCalibration(
        method="one_sided_rounds" if fresh else noise,
        noise=noise,
        fresh_threshold=fresh,
        epsilon_threshold=each / 4,
        epsilon_query=each / 2,
        epsilon_answer=each / 4,
        shift=0,
        cutoff=cutoff,
        monotone=False,
        numbers="fresh",
        epsilon=epsilon,
        delta=0.0,
        grid=1.0,
        sensitivity_steps=1,
        expected_queries=4,
        beta=0.05,
        alpha=1.0,
    )


@dataclass(frozen=True)
class Path:
    """For each answer, whether it was ⊤, and whether it was above the hypothesis's; everything else depends on these."""

    steps: tuple[tuple[bool, bool], ...] = ()

    @property
    def tops(self) -> int:
        return sum(above for above, _ in self.steps)


class Instance:
    """The mechanism on one table, with a public number of rows and threshold."""

    def __init__(self, calibration: SparseVectorCalibration, table: Rows, rows: int, threshold: int) -> None:
        self.machine = Machine.shipped(calibration)
        self.numbers = law_of(answer_sampler(calibration))
        self.table, self.rows, self.threshold = table, rows, threshold

    def hypothesis(self, path: Path) -> TensorHypothesis:
        hypothesis = TensorHypothesis(SHAPE, RATE, 1)
        for place, (above, up) in enumerate(path.steps):
            if above:
                hypothesis.update(next_question(path.steps[:place]), up=up)
        return hypothesis

    def estimate(self, path: Path) -> int:
        return int(self.hypothesis(path).estimate_answers([next_question(path.steps)], self.rows)[0])

    def extended(self, path: Path, weights: Exact, *, above: bool) -> Exact:
        """P(ρ and the path and then ⊤ or ⊥), over the support of ρ; without the laws of the numbers."""
        error = abs(next_question(path.steps).count(self.table) - self.estimate(path))
        longer = (weights * self.machine.likelihood(Outcome(above=above), error - self.threshold)) >> BITS
        if above and self.machine.renewed == "after ⊤":
            total: Exact = (int(longer.sum()) * self.machine.prior()) >> BITS
            return total
        result: Exact = longer
        return result

    def number_law(self, path: Path, value: int) -> Fraction:
        """P(number = value) of the ⊤ after this path."""
        return self.numbers.probability(value - next_question(path.steps).count(self.table))


def number_excess(ours: Instance, theirs: Instance, path: Path, epsilon: Fraction, *, up: bool) -> Fraction:
    """Return by how much P(number and direction) exceeds e^ε times the neighbor's; only the sampler's cut tail can exceed it."""
    center, estimate = next_question(path.steps).count(ours.table), ours.estimate(path)
    factor = exponential_below(epsilon)
    values = range(center + ours.numbers.first, center + ours.numbers.last + 1)
    return sum(
        (
            max(ours.number_law(path, value) - factor * theirs.number_law(path, value), Fraction(0))
            for value in values
            if (value > estimate) == up
        ),
        Fraction(0),
    )


def tables(most: int) -> Iterator[Rows]:
    for size in range(most + 1):
        yield from combinations_with_replacement(range(CELLS), size)


def find_neighbors(table: Rows, relation: str) -> set[Rows]:
    shorter = [table[:place] + table[place + 1 :] for place in range(len(table))]
    if relation == "add-remove":
        return set(shorter)
    return {tuple(sorted((*rest, cell))) for rest in shorter for cell in range(CELLS)} - {table}


def worst_excess(
    calibration: SparseVectorCalibration, pair: tuple[Rows, Rows], rows: int, threshold: int, queries: int
) -> tuple[Fraction, float]:
    """Return Σ over paths of max(0, P − e^loss·P′) of the ⊤/⊥ part, and the largest loss of a pattern minus its charge.

    The numbers' laws multiply in: given the path they are independent of all else, and are checked by themselves.
    """
    ours, theirs = (Instance(calibration, table, rows, threshold) for table in pair)
    charge = losses(calibration)
    number = Fraction(calibration.epsilon_answer) / (1 if calibration.fresh_threshold else calibration.cutoff)
    total = Fraction(0)
    largest = -float("inf")

    def ended(path: Path, a: Exact, b: Exact) -> None:
        nonlocal total, largest
        open_loss = charge.loss_while_open if path.tops < calibration.cutoff else Fraction(0)
        allowed = charge.first_loss + path.tops * (charge.loss_per_answer - number) + open_loss
        left, right = int(a.sum()), int(b.sum())
        slack = len(a) * 8 * (len(path.steps) + 1)
        factor = exponential_below(allowed)
        total += max(Fraction(left + slack, 1 << BITS) - factor * Fraction(right, 1 << BITS), Fraction(0))
        if left > 1 << (BITS - 40):
            largest = max(largest, float(np.log(left / right)) - float(allowed))

    def walk(path: Path, a: Exact, b: Exact) -> None:
        if len(path.steps) == queries or path.tops == calibration.cutoff:
            ended(path, a, b)
            return
        for above in (False, True):
            longer_a, longer_b = ours.extended(path, a, above=above), theirs.extended(path, b, above=above)
            for up in (False, True) if above else (False,):
                walk(Path((*path.steps, (above, up))), longer_a, longer_b)

    walk(Path(), ours.machine.prior(), theirs.machine.prior())
    return total, largest


CASES: list[Any] = [
    pytest.param(relation, cutoff, fresh, noise, id=f"{relation}, c={cutoff}, {'rounds' if fresh else noise}")
    for relation in ("add-remove", "replace")
    for cutoff, fresh, noise in ((1, False, "one_sided"), (2, False, "two_sided"), (2, True, "one_sided"))
]


@pytest.mark.parametrize(("relation", "cutoff", "fresh", "noise"), CASES)
def test_pattern_of_corrections_reveals_at_most_its_charge(
    relation: str, cutoff: int, fresh: bool, noise: Literal["one_sided", "two_sided"]
) -> None:
    calibration = vector(2.0, cutoff, fresh=fresh, noise=noise)
    queries = 4 if cutoff == 1 else 3
    cut_tail = Fraction(DELTA_PER_DRAW) * (queries + cutoff) * 2**queries * 3**cutoff
    found = []
    for table in tables(2):
        for other in find_neighbors(table, relation):
            for pair in ((table, other), (other, table)):
                for rows, threshold in ((2, 1), (5, 0)):
                    excess, over = worst_excess(calibration, pair, rows, threshold, queries)
                    assert excess <= cut_tail
                    found.append(over)
    assert -0.7 < max(found) < 1e-9


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_number_and_its_direction_reveal_at_most_the_numbers_part(epsilon: float) -> None:
    calibration = vector(4 * epsilon, 1)
    slightly_less = Fraction(epsilon) * 99 / 100
    found = []
    for table in tables(2):
        for other in find_neighbors(table, "replace"):
            ours, theirs = (Instance(calibration, one, 4, 1) for one in (table, other))
            for up in (False, True):
                excess = number_excess(ours, theirs, Path(), Fraction(epsilon), up=up)
                assert excess <= Fraction(DELTA_PER_DRAW)
                found.append(number_excess(ours, theirs, Path(), slightly_less, up=up))
    assert max(found) > Fraction(1, 10**4)


def test_direction_of_the_true_number_would_reveal_it_for_certain() -> None:
    table, other = (0, 0), (0, 1)
    pair = [Instance(vector(4.0, 1), one, 5, 1) for one in (table, other)]
    directions = [next_question(()).count(one.table) > one.estimate(Path()) for one in pair]
    assert directions == [False, False]
    pair = [Instance(vector(4.0, 1), one, 4, 1) for one in (table, other)]
    directions = [next_question(()).count(one.table) > one.estimate(Path()) for one in pair]
    assert directions == [True, False]


def calibrated(rows_epsilon: float) -> HypothesisCalibration:
    inner = vector(1.0, 1)
    return HypothesisCalibration(
        method="calibrated",
        sparse_vector=inner,
        threshold=1,
        learning_rate=RATE,
        epsilon_rows=rows_epsilon,
        rows=4,
        epsilon=1.0 + rows_epsilon,
        delta=0.0,
        grid=1.0,
        sensitivity_steps=1,
        cutoff=1,
        expected_queries=4,
        beta=0.05,
        alpha=1.0,
    )


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_noisy_number_of_rows_loses_and_is_charged_its_part(epsilon: float) -> None:
    calibration = calibrated(epsilon).model_copy(update={"sensitivity_steps": WEIGHT_STEPS})
    assert losses(calibration).first_loss == Fraction(epsilon) + losses(calibration.sparse_vector).first_loss
    law = law_of(sampler("two_sided", rows_rate(calibration)))
    factor = exponential_below(Fraction(epsilon))
    for step in (-1, 1):
        excess = sum(
            max(law.probability(value) - factor * law.probability(value + step), Fraction(0))
            for value in range(law.first, law.last + 1)
        )
        assert excess <= Fraction(DELTA_PER_DRAW)


class GivenNoise:
    """Given noise: one ρ per round, and one ν and one number's noise for each place."""

    def __init__(self, rho: Sequence[int], nu: Sequence[int], numbers: Sequence[int]) -> None:
        self._rho, self._nu, self._numbers = rho, nu, numbers

    def barrier(self, tops: int) -> int:
        return self._rho[min(tops, len(self._rho) - 1)]

    def query_noise(self, tops: int, places: range) -> Integers:  # noqa: ARG002
        return np.array([self._nu[place] for place in places], dtype=np.int64)

    def answer_noise(self, tops: int, place: int) -> int:  # noqa: ARG002
        return self._numbers[place]


def small(law: Law) -> range:
    return range(law.first, law.last + 1)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("table", [(0, 0, 1), (2, 2)])
def test_shipped_run_has_the_checked_law_on_every_noise_outcome(fresh: bool, table: Rows) -> None:
    # The noise is so small that all of its outcomes can be listed.
    calibration = replace_parts(vector(1.0, 2, fresh=fresh), threshold=40.0, query=240.0, answer=40.0)
    rows, threshold, queries = 3, 1, 3
    instance = Instance(calibration, table, rows, threshold)
    rho, nu, number = (law_of(make(calibration)) for make in (threshold_sampler, query_sampler, answer_sampler))
    rounds = 2 if fresh else 1
    fixed = [next_question(((False, False),) * place) for place in range(queries)]
    private = np.array([question.count(table) for question in fixed], dtype=np.int64)
    found: dict[tuple[HypothesisAnswer, ...], Fraction] = {}
    laws = [rho] * rounds + [nu] * queries + [number] * queries
    for draws in product(*map(small, laws)):
        probability = Fraction(1)
        for law, value in zip(laws, draws, strict=True):
            probability *= law.probability(value)
        noise = GivenNoise(draws[:rounds], draws[rounds : rounds + queries], draws[rounds + queries :])
        steps = answer_questions(
            TensorHypothesis(SHAPE, RATE, 1),
            fixed,
            private,
            noise,
            rows=rows,
            threshold=threshold,
            tops=0,
            cutoff=calibration.cutoff,
            correction=TensorCorrection(),
        )
        found[tuple(steps)] = found.get(tuple(steps), Fraction(0)) + probability
    assert sum(found.values()) == 1
    assert len(found) > 4
    for transcript, probability in found.items():
        assert abs(probability - closed_form(instance, fixed, transcript)) < Fraction(1, 2**150)


def closed_form(instance: Instance, fixed: Sequence[Question], transcript: Sequence[HypothesisAnswer]) -> Fraction:
    """Return P(transcript) as the product in the proof, for questions fixed in advance."""
    hypothesis = TensorHypothesis(SHAPE, RATE, 1)
    weights = instance.machine.prior()
    numbers = Fraction(1)
    for question, step in zip(fixed, transcript, strict=False):
        estimate = int(hypothesis.estimate_answers([question], instance.rows)[0])
        count = question.count(instance.table)
        margin = abs(count - estimate) - instance.threshold
        weights = (weights * instance.machine.likelihood(Outcome(above=step.above), margin)) >> BITS
        if not step.above:
            assert step.value == estimate
            continue
        numbers *= instance.numbers.probability(step.value - count)
        assert step.up == (step.value > estimate)
        hypothesis.update(question, up=step.up)
        if instance.machine.renewed == "after ⊤":
            weights = (int(weights.sum()) * instance.machine.prior()) >> BITS
    return Fraction(int(weights.sum()), 1 << BITS) * numbers


def replace_parts(
    calibration: SparseVectorCalibration, *, threshold: float, query: float, answer: float
) -> SparseVectorCalibration:
    return calibration.model_copy(
        update={"epsilon_threshold": threshold, "epsilon_query": query, "epsilon_answer": answer}
    )
