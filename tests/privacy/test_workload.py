"""The warm start for a workload never loses more than its charge, by exact probabilities on small tables.

The shipped selection runs on both of two neighboring tables, with the choices and the noise that make the transcript
the same. The transcript is the noisy number of rows, the cells of all single attributes, the sets chosen and their
cells. The probability of a choice follows from the scores and the law of their noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from schemas import EstimateCalibration, SparseVectorCalibration
from stream.privacy.composition.losses import losses
from stream.privacy.mechanisms import selection
from stream.privacy.mechanisms.measurements import Axes, MeasuredMarginal, Measurements
from stream.privacy.mechanisms.releases import TensorCells
from stream.privacy.mechanisms.selection import measure_workload, noisy_max
from stream.privacy.noise.samplers import Geometric, Sampler, Symmetric, sampler
from stream.privacy.planning.warm_starts import chosen_set_law, count_rounds, set_choice_law
from tests.privacy.pmw_transcripts import FLOATS, STEPS, Integers, NoMemory, count_cells, two_sided

pytestmark = pytest.mark.usefixtures("fitted_once")

SIZES = (2, 2, 2)
WORKLOAD = tuple(combinations(range(3), 2))
Row = tuple[int, int, int]
EVERYONE: list[Row] = [(x, y, z) for x, y, z in product(range(2), repeat=3)]


def plan(*, replace: bool = False, rounds: int = 2) -> EstimateCalibration:
    shared: dict[str, Any] = {
        "epsilon": 12.0,
        "delta": 0.0,
        "grid": 1.0 / STEPS,
        "sensitivity_steps": STEPS,
        "cutoff": 1,
        "expected_queries": 1,
        "beta": 0.05,
        "alpha": 1.0,
    }
    vector = SparseVectorCalibration(
        method="one_sided",
        noise="one_sided",
        fresh_threshold=False,
        epsilon_threshold=0.25,
        epsilon_query=0.25,
        epsilon_answer=0.5,
        shift=0,
        monotone=False,
        numbers="fresh",
        **shared,
    )
    return EstimateCalibration(
        sparse_vector=vector,
        threshold=STEPS,
        epsilon_rows=0.0 if replace else 0.5,
        warm_start="workload",
        starts=len(SIZES),
        epsilon_start=0.5,
        rounds=rounds,
        rounds_rows=0.25,
        epsilon_choices=6.0,
        epsilon_chosen=2.0,
        epsilon_number=0.25,
        marginal_sensitivity=2 if replace else 1,
        **shared,
    )


@dataclass(frozen=True)
class Transcript:
    rows: int
    singles: tuple[tuple[int, ...], ...]
    places: tuple[int, ...]
    cells: tuple[tuple[int, ...], ...]


def cell_counts(rows: Sequence[Row], axes: Axes) -> Integers:
    return count_cells(rows, SIZES, axes)


def true_cells(rows: Sequence[Row], axes: Axes) -> TensorCells:
    return TensorCells(cell_counts(rows, axes))


@dataclass
class ForcedNoise:
    """Noise with which a table gives a transcript; the noise is kept."""

    rows: Sequence[Row]
    transcript: Transcript
    law: Geometric | None = None
    chosen: list[Axes] = field(default_factory=list)

    def barrier(self, tops: int) -> int:
        raise AssertionError(tops)

    def query_noise(self, tops: int, keys: Sequence[bytes]) -> Integers:
        raise AssertionError((tops, keys))

    def number_noise(self, tops: int, key: bytes, law: Symmetric) -> int:
        raise AssertionError((tops, key, law))

    def numbers_noise(self, tops: int, key: bytes, share: int, count: int, law: Symmetric) -> Integers:
        raise AssertionError((tops, key, share, count, law))

    def choice_noise(self, number: int, count: int, law: Sampler) -> Integers:
        assert isinstance(law, Geometric)
        assert count == len(WORKLOAD) - number
        self.law = law
        return np.zeros(count, dtype=np.int64)

    def typical_error_noise(self, order: int, law: Symmetric) -> int:
        raise AssertionError((order, law))

    def marginal_noise(
        self, tops: int | None, axes: Axes, cells: int, law: Symmetric, share: int | None = None
    ) -> Integers:
        del law
        assert tops is None
        assert share is None
        seen = self.transcript
        shown = seen.singles[axes[0]] if len(axes) == 1 else seen.cells[self.chosen.index(axes)]
        assert cells == len(shown)
        return np.array(shown, dtype=np.int64) - cell_counts(self.rows, axes).reshape(-1)


def log_chance(scores: Integers, place: int, rate: float) -> float:
    """Return ln of the probability that this candidate has the largest noisy score; the first of equal scores wins."""
    own = np.arange(0, math.ceil(45 / rate), dtype=np.int64)
    chances = -math.expm1(-rate) * np.exp(-rate * own)
    for other, score in enumerate(scores.tolist()):
        if other != place:
            below = np.maximum(int(scores[place]) + own - score + (other > place), 0)
            chances = chances * -np.expm1(-rate * below)
    return math.log(float(chances.sum()))


def log_likelihood(
    plan: EstimateCalibration,
    rows: Sequence[Row],
    transcript: Transcript,
    patch: pytest.MonkeyPatch,
    wrong: float = 1.0,
) -> float:
    """Return ln of the probability of a transcript; with ``wrong``, the scores' noise has this many times its rate."""
    forced = ForcedNoise(rows, transcript)
    places = iter(transcript.places)
    total = two_sided(transcript.rows - len(rows), plan.epsilon_rows) if plan.epsilon_rows else 0.0

    def choose(scores: Integers, noise: Integers) -> int:
        nonlocal total
        assert not noise.any()
        assert forced.law is not None
        place = next(places)
        total += log_chance(scores, place, wrong * float(forced.law.rate))
        return place

    patch.setattr(selection, "noisy_max", choose)
    measured = Measurements(SIZES, plan, partial(true_cells, rows), forced, NoMemory())
    left = list(WORKLOAD)
    forced.chosen += [left.pop(place) for place in transcript.places]
    measure_workload(measured, WORKLOAD, transcript.rows)
    assert [one.axes for one in measured.listed[len(SIZES) :]] == forced.chosen
    for index, one in enumerate(measured.listed):
        noise = measured.noisy_counts(index) - cell_counts(rows, one.axes)
        rate = float(one.law.rate)  # type: ignore[union-attr]
        total += sum(two_sided(int(drawn), rate) for drawn in noise.reshape(-1))
    return total


def transcripts(plan: EstimateCalibration, rows: Sequence[Row]) -> Iterator[Transcript]:
    for shift, places in product((0, 3), product(range(3), range(2))):
        singles = tuple(
            tuple((cell_counts(rows, (axis,)) + np.array([shift, -axis])).tolist()) for axis in range(3)
        )
        left = list(WORKLOAD)
        chosen = [left.pop(place) for place in places]
        cells = tuple(
            tuple((cell_counts(rows, axes).reshape(-1) + np.array([0, shift, 1, -shift])).tolist())
            for axes in chosen
        )
        yield Transcript(max(1, len(rows) + shift) if plan.epsilon_rows else len(rows), singles, places, cells)


def find_neighbors(rows: Sequence[Row], *, replace: bool) -> list[list[Row]]:
    if not replace:
        return [[*rows, row] for row in EVERYONE]
    return [[*rows[:-1], row] for row in EVERYONE if row != rows[-1]]


def excesses(patch: pytest.MonkeyPatch, *, replace: bool, wrong: float = 1.0) -> Iterator[float]:
    """Yield by how much each transcript's privacy loss exceeds the charge of the opening, in ln."""
    made = plan(replace=replace)
    allowed = float(losses(made).first_loss) - made.sparse_vector.epsilon_threshold
    for rows in ([(0, 0, 0)], [(0, 0, 0), (1, 1, 0), (1, 1, 1)]):
        for transcript in transcripts(made, rows):
            here = log_likelihood(made, rows, transcript, patch, wrong)
            for other in find_neighbors(rows, replace=replace):
                there = log_likelihood(made, other, transcript, patch, wrong)
                yield abs(here - there) - allowed * FLOATS


@pytest.mark.parametrize("replace", [False, True])
def test_opening_loses_at_most_its_charge(replace: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    excess = max(excesses(monkeypatch, replace=replace))
    assert -6.0 < excess <= 1e-6


def test_opening_with_too_little_noise_on_scores_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(one > 0.01 for one in excesses(monkeypatch, replace=False, wrong=4.0))


@pytest.mark.parametrize("replace", [False, True])
def test_scores_move_by_one_row_for_each_row_that_moves(replace: bool) -> None:
    made, rng = plan(replace=replace), np.random.default_rng(3)
    for _ in range(20):
        rows = [EVERYONE[place] for place in rng.integers(0, 8, 30)]
        singles = tuple(tuple(rng.integers(0, 30, 2).tolist()) for _ in range(3))
        found = []
        for table in (rows, *find_neighbors(rows, replace=replace)):
            forced = ForcedNoise(table, Transcript(30, singles, (), ()))
            measured = Measurements(SIZES, made, partial(true_cells, table), forced, NoMemory())
            law = chosen_set_law(made, 2)
            found.append([selection._score(measured, axes, 30, law, {}) for axes in WORKLOAD])
        moves = np.abs(np.array(found[1:]) - found[0])
        assert moves.max() <= STEPS * made.marginal_sensitivity


def test_rounds_divide_the_parts_of_the_opening() -> None:
    made = plan(replace=True)
    for rounds in (1, 2, 3):
        assert float(set_choice_law(made, rounds).rate) * rounds * 2 * 2 * STEPS == pytest.approx(6.0)
        assert float(chosen_set_law(made, rounds).rate) * rounds * 2 == pytest.approx(2.0)  # type: ignore[union-attr]
    assert count_rounds(made, 10**9, 3) == 2


def test_choice_is_the_noisy_maximum() -> None:
    assert noisy_max(np.array([3, 5, 5]), np.array([4, 1, 2])) == 0
    assert isinstance(sampler("one_sided", set_choice_law(plan(), 1).rate), Geometric)


@pytest.mark.parametrize("rounds", [2, 3])
def test_only_sets_that_were_not_selected_are_moved_to_the_product(rounds: int) -> None:
    """If all three sets are measured, noise of ±1 around the product disappears; if only two are selected, it stays."""
    rows = EVERYONE * 50
    few = {"estimate": 2, "rounds_rows": 1e-3, "epsilon_choices": 0.5, "epsilon_chosen": 0.5}
    made = plan(rounds=rounds).model_copy(update=few)
    singles = tuple((200, 200) for _ in SIZES)
    cells = tuple((101, 99, 99, 101) for _ in range(rounds))
    forced = ForcedNoise(rows, Transcript(400, singles, (), cells), chosen=list(WORKLOAD[:rounds]))
    measured = Measurements(SIZES, made, partial(true_cells, rows), forced, NoMemory())
    if rounds == 3:
        measure_workload(measured, WORKLOAD, 400)
    else:
        for axes in WORKLOAD[:2]:
            measured.append(MeasuredMarginal(axes, chosen_set_law(made, rounds), None))
    assert [one.unselected for one in measured.listed[len(SIZES) :]] == [rounds == 3] * rounds
    pair = measured.noisy_marginals(WORKLOAD[0])[-1].counts
    assert np.abs(pair - 100).max() == pytest.approx(0.0 if rounds == 3 else 1.0)
