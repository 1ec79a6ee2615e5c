"""Streams that answer from an estimate never lose more than they claim, by exact probabilities on small tables.

The shipped estimator runs on both of two neighboring tables, with the noise that makes the public transcript the same; the
probability of this noise follows from its law. A transcript has the noisy number of rows, the cells of every measured
marginal, the published numbers, and the questions with a ⊤.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import Any, ClassVar

import numpy as np
import pytest

from schemas import EstimateCalibration
from stream.privacy.composition.losses import losses
from stream.privacy.mechanisms.estimate_questions import LinearQuestion
from stream.privacy.mechanisms.estimator import Estimator
from stream.privacy.mechanisms.measurements import Axes
from stream.privacy.mechanisms.releases import TensorCells
from stream.privacy.noise.samplers import Gaussian, Symmetric, TwoSidedGeometric
from tests.privacy.pmw_transcripts import (
    CELLS,
    FLOATS,
    STEPS,
    ForcedTops,
    Integers,
    Rows,
    calibration,
    chances,
    find_neighbors,
    first_weights,
    question,
    two_sided,
)

pytestmark = pytest.mark.usefixtures("fitted_once")


QUESTIONS = (question(1, 0, 0), question(0, 1, 1), question(0, 1, 0))


@dataclass(frozen=True)
class Transcript:
    """All that is published: ``tops`` has for each question whether it was a ⊤, and cells are in the order of measurement."""

    rows: int
    tops: tuple[bool, ...]
    cells: tuple[tuple[int, ...], ...]
    numbers: tuple[int, ...]


def adaptive(tops: Sequence[bool], cells: Sequence[Sequence[int]]) -> LinearQuestion:
    """An asker whose next question depends on earlier published values."""
    return QUESTIONS[(len(tops) + sum(tops) + sum(map(sum, cells))) % len(QUESTIONS)]


@dataclass
class ForcedNoise(ForcedTops):
    """Noise with which a table gives a transcript; the noise is kept."""

    table: Integers
    transcript: Transcript
    marginals: list[tuple[Integers, Symmetric]] = field(default_factory=list)
    published: dict[int, tuple[int, Symmetric]] = field(default_factory=dict)

    def number_noise(self, tops: int, key: bytes, law: Symmetric) -> int:
        true = sum(int(count) for count, used in zip(self.table, key, strict=True) if used) * STEPS
        noise = self.transcript.numbers[tops] - true
        self.published[tops] = (noise, law)
        return noise

    def numbers_noise(self, tops: int, key: bytes, share: int, count: int, law: Symmetric) -> Integers:
        raise AssertionError((tops, key, share, count, law))

    def marginal_noise(
        self, tops: int | None, axes: Axes, cells: int, law: Symmetric, share: int | None = None
    ) -> Integers:
        assert share is None
        assert (axes, cells) == ((0,), CELLS)
        opened = len(self.transcript.cells) - sum(self.transcript.tops)
        index = 0 if tops is None else tops + opened
        noise = np.array(self.transcript.cells[index], dtype=np.int64) - self.table
        self.marginals.append((noise, law))
        return noise


class Memory:
    """A cache that keeps estimates for all tables, because estimates and keys depend only on the transcript."""

    shares: ClassVar[dict[Any, Any]] = {}

    def __init__(self, transcript: Transcript) -> None:
        self._own: dict[Any, Any] = {}
        self._transcript = transcript

    def _place(self, key: Any) -> tuple[dict[Any, Any], Any]:
        if key[0] != "shares":
            return self._own, key
        used, seen = key[-1], self._transcript
        return self.shares, (seen.rows, tuple(seen.cells[index] for index in used), seen.numbers, seen.tops, key)

    def get(self, key: Any) -> Any:
        kept, name = self._place(key)
        return kept.get(name)

    def put(self, key: Any, value: Any) -> None:
        kept, name = self._place(key)
        kept[name] = value


Drawn = list[tuple[int, Fraction]]
"""Draws of Gaussian noise, each with its variance."""


def log_likelihood(
    plan: EstimateCalibration,
    rows: Rows,
    transcript: Transcript,
    wrong: str = "",
    gaussian: Drawn | None = None,
    added: int = 0,
) -> float:
    """Return ln of the probability that the mechanism publishes the transcript for these rows, without its ``gaussian`` noise.

    It is extended by so many ⊤s as are ``added``.
    """
    table = np.bincount(rows, minlength=CELLS).astype(np.int64)
    forced = ForcedNoise(table, transcript)
    memory = Memory(transcript)
    estimator = Estimator((CELLS,), plan, transcript.rows, lambda _: TensorCells(table), forced, memory)
    estimator.extend(plan.cutoff + added)
    total = two_sided(transcript.rows - len(rows), plan.epsilon_rows) if plan.epsilon_rows else 0.0
    vector = plan.sparse_vector
    rate = vector.epsilon_query / (2 * plan.cutoff * STEPS)
    rho_rate = vector.epsilon_threshold / STEPS
    weights = first_weights(rho_rate)
    opened = len(transcript.cells) - sum(transcript.tops)
    for place, top in enumerate(transcript.tops):
        seen = transcript.cells[: opened + sum(transcript.tops[:place])]
        one = adaptive(transcript.tops[:place], seen)
        [free_answer] = estimator._answers_without_top([one])
        if free_answer.answer.kind == "below":
            lacking = plan.threshold - int(estimator._compute_errors([one], [free_answer.answer.numbers])[0])
            weights = weights * chances(rho_rate, rate, lacking, top=top)
        elif top:
            return -math.inf
        forced.top = top
        [step] = estimator.answer([one], beyond=False)
        assert (step.kind == "above") == top
    for index in range(len(transcript.cells)):
        estimator._measured.noisy_counts(index)
    drawn = [(int(one), law) for noise, law in forced.marginals for one in noise]
    for marginal, law in drawn:
        if isinstance(law, TwoSidedGeometric):
            noise_rate = (
                law.rate if wrong != "whole marginal beside the number" else Fraction(vector.epsilon_answer) / 2
            )
            used = float(noise_rate) * (2.0 if wrong == "sensitivity of one where rows are replaced" else 1.0)
            total += two_sided(marginal, used)
    total += sum(
        two_sided(number, float(law.rate))
        for number, law in forced.published.values()
        if isinstance(law, TwoSidedGeometric)
    )
    if gaussian is not None:
        drawn += forced.published.values()
        gaussian += [(noise, law.variance) for noise, law in drawn if isinstance(law, Gaussian)]
    return total + (math.log(weights.sum()) if weights.sum() > 0 else -math.inf)


SHIFTS = ((0, 0, 0), (1, 0, -1), (-2, 3, 1))
FEWER = SHIFTS[::2]
"""Two kinds of cells that choose different questions: with three measurements, a third of the transcripts."""


def transcripts(
    plan: EstimateCalibration, rows: Rows, added: int = 0, shifts: Sequence[tuple[int, ...]] = SHIFTS
) -> Iterator[Transcript]:
    """Yield patterns of up to three questions, with cells and numbers near the true ones."""
    table = np.bincount(rows, minlength=CELLS)
    near = [tuple(int(c) for c in table + shift) for shift in shifts]
    for tops in product((False, True), repeat=3):
        count = sum(tops) + plan.starts
        cutoff = plan.cutoff + added
        if sum(tops) > cutoff or (sum(tops) == cutoff and not tops[-1]):
            continue
        for cells in product(near, repeat=count):
            for number in (-50, 4000):
                yield Transcript(max(1, len(rows) + number // 1000), tops, cells, (number,) * sum(tops))


def excesses(
    plan: EstimateCalibration,
    *,
    replace: bool,
    wrong: str = "",
    added: int = 0,
    shifts: Sequence[tuple[int, ...]] = SHIFTS,
) -> Iterator[float]:
    """Yield by how much each transcript's privacy loss exceeds its charge, in ln."""
    claimed = losses(plan)
    for size in (1, 2):
        for rows in combinations_with_replacement(range(CELLS), size):
            for transcript in transcripts(plan, rows, added, shifts):
                allowed = float(claimed.first_loss + sum(transcript.tops) * claimed.loss_per_answer)
                here = log_likelihood(plan, rows, transcript, wrong, added=added)
                for other in find_neighbors(rows, replace=replace):
                    there = log_likelihood(plan, other, transcript, wrong, added=added)
                    if here == there == -math.inf:
                        continue
                    yield abs(here - there) - allowed * FLOATS


CASES = [
    ("numbers", False),
    ("numbers", True),
    ("cells", False),
    ("cells", True),
    ("opening", False),
    ("opening", True),
]


@pytest.mark.parametrize(("kind", "replace"), CASES)
def test_transcript_loses_at_most_its_charge(kind: Any, replace: bool) -> None:
    Memory.shares.clear()
    shifts = FEWER if kind == "opening" else SHIFTS
    excess = max(excesses(calibration(kind, replace=replace), replace=replace, shifts=shifts))
    assert -1.5 < excess <= 1e-6


def test_transcript_of_an_extended_stream_loses_at_most_its_charge() -> None:
    Memory.shares.clear()
    excess = max(excesses(calibration("numbers"), replace=False, added=1, shifts=FEWER))
    assert -1.5 < excess <= 1e-6


@pytest.mark.parametrize(
    ("kind", "replace", "added"), [("opening", False, 0), ("opening", True, 0), ("numbers", False, 1)]
)
def test_transcript_of_three_measurements_loses_at_most_its_charge(kind: Any, replace: bool, added: int) -> None:
    Memory.shares.clear()
    excess = max(excesses(calibration(kind, replace=replace), replace=replace, added=added))
    assert -1.5 < excess <= 1e-6


@pytest.mark.parametrize(
    ("kind", "replace", "wrong"),
    [
        ("numbers", False, "whole marginal beside the number"),
        ("cells", True, "sensitivity of one where rows are replaced"),
        ("opening", True, "sensitivity of one where rows are replaced"),
    ],
)
def test_broken_variants_are_found(kind: Any, replace: bool, wrong: str) -> None:
    Memory.shares.clear()
    assert any(one > 0.01 for one in excesses(calibration(kind, replace=replace), replace=replace, wrong=wrong))


def with_gaussian_noise(kind: Any, *, replace: bool) -> EstimateCalibration:
    plan = calibration(kind, replace=replace)
    vector = plan.sparse_vector.model_copy(update={"epsilon_answer": 0.0})
    deviations = {"deviation_start": 2.5, "deviation_answer": 3.0, "deviation_number": 8.0}
    pure = {"epsilon_start": 0.0, "epsilon_number": 0.0, "sparse_vector": vector}
    return plan.model_copy(update={"noise": "gaussian", "delta": 0.01, **pure, **deviations})


def excesses_of_gaussian_noise(
    plan: EstimateCalibration, *, replace: bool, wider: Fraction = Fraction(1)
) -> Iterator[tuple[float, Fraction]]:
    """Yield the excesses of each transcript: of its pure loss over the charge, and of its precision over the counted one."""
    claimed = losses(plan)
    first, charged = (
        sum((one.precision for one in some), Fraction(0))
        for some in (claimed.gaussian_first, claimed.gaussian_charged)
    )
    for rows in combinations_with_replacement(range(CELLS), 2):
        # The move of a row under Gaussian noise does not depend on the cells; two kinds of cells choose all questions.
        for transcript in transcripts(plan, rows, shifts=FEWER):
            tops = sum(transcript.tops)
            allowed = float(claimed.first_loss + tops * claimed.loss_per_answer)
            mine: Drawn = []
            here = log_likelihood(plan, rows, transcript, gaussian=mine)
            for other in find_neighbors(rows, replace=replace):
                theirs: Drawn = []
                there = log_likelihood(plan, other, transcript, gaussian=theirs)
                if here == there == -math.inf:
                    continue
                assert [variance for _, variance in mine] == [variance for _, variance in theirs]
                moved = sum(
                    (
                        Fraction((one - other) ** 2) * wider / variance
                        for (one, variance), (other, _) in zip(mine, theirs, strict=True)
                    ),
                    Fraction(0),
                )
                yield abs(here - there) - allowed * FLOATS, moved - first - charged * tops / plan.cutoff


@pytest.mark.parametrize(("kind", "replace"), CASES)
def test_transcript_moves_gaussian_noise_by_at_most_its_count(kind: Any, replace: bool) -> None:
    Memory.shares.clear()
    found = list(excesses_of_gaussian_noise(with_gaussian_noise(kind, replace=replace), replace=replace))
    assert max(excess for excess, _ in found) <= 1e-6
    assert max(precise for _, precise in found) == 0


@pytest.mark.parametrize("kind", ["numbers", "opening"])
def test_too_narrow_gaussian_noise_is_found(kind: Any) -> None:
    Memory.shares.clear()
    found = excesses_of_gaussian_noise(
        with_gaussian_noise(kind, replace=True), replace=True, wider=Fraction(11, 10)
    )
    assert any(precise > 0 for _, precise in found)


@pytest.mark.parametrize("replace", [False, True])
def test_person_moves_every_error_by_at_most_the_steps_of_a_row(replace: bool) -> None:
    for rows in combinations_with_replacement(range(CELLS), 2):
        for other in find_neighbors(rows, replace=replace):
            for one, estimate in product(QUESTIONS, (-300, 0, 777, 2048)):
                mine, theirs = (
                    TensorCells(np.bincount(some, minlength=CELLS).astype(np.int64)) for some in (rows, other)
                )
                errors = [one.compute_error(one.compute_numbers(cells), (estimate,)) for cells in (mine, theirs)]
                assert abs(errors[0] - errors[1]) <= STEPS
