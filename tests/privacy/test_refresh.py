"""One person in all versions of a table: the loss of a stream that continues, and its loss by another rule."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import Any

import pytest

from schemas import SparseVectorCalibration
from stream.privacy.mechanisms.above_threshold import query_sampler, threshold_sampler
from stream.privacy.noise.keys import NoiseKey
from stream.privacy.noise.samplers import DELTA_PER_DRAW
from tests.builders import OTHER_KEY, installation, source, stream
from tests.privacy.exact import BELOW, Machine, Move, law_of, outcomes, worst_delta

SEXES = "FM"
OTHERS = [own for size in range(3) for own in combinations_with_replacement(SEXES, size)]
SOURCE = source("people", "table", epsilon=1000.0, path="-", attributes={"sex": ["F", "M"]})
VERSIONS = 3


def histories() -> list[list[Move]]:
    """Return the counts of men in all versions, with and without one person, whose sex may differ between versions."""
    found = []
    for others in product(OTHERS, repeat=VERSIONS):
        for own in product(SEXES, repeat=VERSIONS):
            counts = [
                (version.count("M") + (sex == "M"), version.count("M"))
                for version, sex in zip(others, own, strict=True)
            ]
            found.append(counts)
    return found


def opened(**mechanism: Any) -> SparseVectorCalibration:
    counts = stream("s", "people", mechanism={"threshold": 1.0, **mechanism}, expected_queries=VERSIONS)
    driver = installation(counts, sources=[SOURCE], rows={"people": {"sex": ["F"]}}, key=OTHER_KEY)
    calibration = driver.grant("people", "s").calibration
    assert isinstance(calibration, SparseVectorCalibration)
    return calibration


@pytest.mark.parametrize("monotone", [False, True])
def test_threshold_of_all_versions_is_private_for_their_people(monotone: bool) -> None:
    calibration = opened(monotone=monotone)
    margins = range(calibration.shift - 1, calibration.shift + 3)
    # One question per version: each is moved as far as in one table, and all in the same direction.
    moved = {(with_one - without) for counts in histories() for with_one, without in counts}
    assert moved == {0, 1}
    found = outcomes(Machine.shipped(calibration), margins, VERSIONS)
    for sign in (1, -1):
        moves = [(one, one + sign * step) for one in margins for step in moved if one + sign * step in margins]
        assert worst_delta(found, moves, lambda _: Fraction(1)) <= Fraction(40 * DELTA_PER_DRAW)


def test_threshold_redrawn_for_each_version_would_lose_more() -> None:
    calibration = opened()
    margins = range(calibration.shift - 1, calibration.shift + 3)
    drawn_anew = Machine(
        threshold=law_of(threshold_sampler(calibration)),
        query=law_of(query_sampler(calibration)),
        shift=calibration.shift,
        renewed="each query",
    )
    seen = outcomes(drawn_anew, margins, 1)
    # ⊥ in each of twelve versions, which are then independent; one row more in each version makes it less likely.
    lost = max(
        12 * math.log(seen.probability((BELOW,), [one]) / seen.probability((BELOW,), [one + 1]))
        for one in margins
        if one + 1 in margins
    )
    assert lost > 1.5


def test_query_noise_is_bound_to_the_version_of_the_answer() -> None:
    """An uncommitted answer and the committed answer from other data do not reveal the difference of the data."""
    differences = set()
    for number in range(20):
        answers = []
        for rows in ("F" * 10, "F" * 13):
            driver = installation(
                stream("s", "people", "laplace", epsilon=0.5),
                sources=[SOURCE],
                rows={"people": {"sex": ["F"] * 10}},
                key=NoiseKey(number.to_bytes(32, "big")),
            )
            if len(rows) != 10:
                driver.refresh("people", {"sex": list(rows)})
            # The same event at the same place is answered once from the old version, and once from the new one.
            answers.append(driver.ask("s", where="TRUE", id="1").estimate or 0.0)
        differences.add(answers[1] - answers[0])
    assert len(differences) > 5
