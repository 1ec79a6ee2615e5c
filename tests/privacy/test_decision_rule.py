"""The shipped decision rule equals the rule of the proof, for every outcome of the noise with its exact weight."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from schemas import SparseVectorCalibration
from stream.privacy.mechanisms.above_threshold import (
    HALTED,
    Decisions,
    decide_queries,
    query_sampler,
    threshold_sampler,
)
from tests.privacy.cases import calibrations
from tests.privacy.exact import ABOVE, BELOW, UNIT, Law, Machine, Transcript, law_of, outcomes

Integers = npt.NDArray[np.int64]


def tiny(method: str, cutoff: int) -> SparseVectorCalibration:
    """Return a calibration with so little noise that all outcomes can be listed."""
    epsilon = cutoff * (30.0 if method.startswith("one_sided") else 60.0)
    return calibrations(cutoff, epsilon=epsilon)[method]


class Enumeration:
    """Each (ρ, ν1, ν2, …) as a separate stream, all decided in one batch; each round after the first has its own ρ."""

    def __init__(self, calibration: SparseVectorCalibration, margins: tuple[int, ...]) -> None:
        rounds = calibration.cutoff if calibration.fresh_threshold else 1
        threshold, query = law_of(threshold_sampler(calibration)), law_of(query_sampler(calibration))
        laws = [threshold] * rounds + [query] * len(margins)
        draws = np.array(list(product(*(range(law.first, law.last + 1) for law in laws))), dtype=np.int64)
        self.calibration = calibration
        self.barriers = draws[:, :rounds] + calibration.shift
        self.margins = draws[:, rounds:] + np.array(margins)
        self.weights = [self._weight(laws, row) for row in draws.tolist()]
        self.bits = sum(law.bits for law in laws)

    @staticmethod
    def _weight(laws: list[Law], row: list[int]) -> int:
        weight = 1
        for law, value in zip(laws, row, strict=True):
            weight *= law.weights[value - law.first]
        return weight

    def decided(self, *, cut_at: int | None = None) -> npt.NDArray[np.uint8]:
        """Return codes per stream and query, from one batch or from two."""
        streams, queries = self.margins.shape
        tops_left = np.full(streams, self.calibration.cutoff, dtype=np.int64)
        if cut_at is None:
            return self._batch(self.margins, tops_left).outcomes.reshape(queries, streams).T
        first = self._batch(self.margins[:, :cut_at], tops_left)
        second = self._batch(self.margins[:, cut_at:], first.tops_left)
        return np.concatenate([first.outcomes, second.outcomes]).reshape(queries, streams).T

    def _batch(self, margins: Integers, tops_left: Integers) -> Decisions:
        streams, queries = margins.shape
        rounds = self.barriers.shape[1]
        shown = self.calibration.cutoff - tops_left
        begun = np.minimum(shown, rounds - 1) if self.calibration.fresh_threshold else np.zeros_like(shown)
        return decide_queries(
            margins.T.reshape(-1),
            np.tile(np.arange(streams), queries),
            self.barriers[np.arange(streams), begun],
            tops_left,
            lambda row, tops: int(self.barriers[row, shown[row] + tops]),
            np.full(streams, self.calibration.fresh_threshold),
        )

    def law(self, codes: npt.NDArray[np.uint8]) -> dict[Transcript, Fraction]:
        """P(transcript), exactly; a halted query ends the transcript."""
        totals: defaultdict[Transcript, int] = defaultdict(int)
        for row, weight in zip(codes.tolist(), self.weights, strict=True):
            seen = row[: row.index(HALTED)] if HALTED in row else row
            assert set(row[len(seen) :]) <= {HALTED}
            totals[tuple((BELOW, ABOVE)[code] for code in seen)] += weight
        return {transcript: Fraction(total, 1 << self.bits) for transcript, total in totals.items()}


@pytest.mark.parametrize("margins", [(0, 0, 0), (1, -1, 2), (2, 3, 0)])
@pytest.mark.parametrize("cutoff", [1, 2])
@pytest.mark.parametrize("method", ["textbook", "two_sided", "one_sided", "one_sided_rounds"])
def test_decide_has_the_closed_form_law_on_every_noise_outcome(
    method: str, cutoff: int, margins: tuple[int, ...]
) -> None:
    calibration = tiny(method, cutoff)
    asked = tuple(calibration.shift + margin for margin in margins)
    enumeration = Enumeration(calibration, asked)
    enumerated = enumeration.law(enumeration.decided())
    closed = outcomes(Machine.shipped(calibration), asked, len(asked))
    assert set(enumerated) <= set(closed.of)
    assert sum(enumerated.values()) == 1
    for transcript in closed.of:
        below = Fraction(closed.probability(transcript, asked), UNIT)
        assert 0 <= enumerated.get(transcript, Fraction()) - below <= Fraction(closed.slack, UNIT)


@pytest.mark.parametrize("cut_at", [1, 2])
@pytest.mark.parametrize("method", ["textbook", "one_sided"])
def test_batch_boundaries_change_no_decision(method: str, cut_at: int) -> None:
    calibration = tiny(method, 2)
    enumeration = Enumeration(calibration, (calibration.shift, calibration.shift + 1, calibration.shift))
    assert np.array_equal(enumeration.decided(), enumeration.decided(cut_at=cut_at))


@pytest.mark.parametrize("method", ["two_sided_shifted", "one_sided"])
def test_decide_uses_one_rule_for_all_threshold_and_query_noise(method: str) -> None:
    calibration = calibrations(1)[method]
    threshold, query = law_of(threshold_sampler(calibration)), law_of(query_sampler(calibration))
    rho, nu = np.meshgrid(
        np.arange(threshold.first, threshold.last + 1), np.arange(query.first, query.last + 1), indexing="ij"
    )
    streams = np.arange(rho.size)
    barrier = rho.reshape(-1) + calibration.shift
    for margin in (-3, 0, calibration.shift, 40):
        codes = decide_queries(
            nu.reshape(-1) + margin, streams, barrier, np.ones(rho.size, dtype=np.int64)
        ).outcomes
        assert np.array_equal(codes, nu.reshape(-1) >= barrier - margin)
