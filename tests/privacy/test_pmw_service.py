"""A stream with an estimate publishes the output of the proved rule with keyed noise, which is recomputed without its state."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from schemas import Answer, Control, EstimateCalibration
from sotto import Driver
from stream.privacy.mechanisms.above_threshold import query_sampler, threshold_sampler
from stream.privacy.mechanisms.maximum_entropy import (
    NoisyMarginal,
    average_equal_axes,
    fit_distribution,
    sum_to_axes,
)
from stream.privacy.noise.keyed_noise import DrawRole, block_words, cell_words, round_words, stream_subkey
from stream.privacy.noise.samplers import Sampler, sampler
from tests.builders import installation, source, stream
from tests.privacy.service import KEY, definition_of

X, Y = 6, 3
ROWS = [(0, 0)] * 500 + [(1, 2)] * 260 + [(3, 1)] * 140 + [(5, 0)] * 100
FULL = 1024
TABLE = np.zeros((X, Y), dtype=np.int64)
for x, y in ROWS:
    TABLE[x, y] += 1


def service(warm_start: int) -> Driver:
    mechanism = {"attributes": ["x", "y"], "warm_start": warm_start, "updates": 4}
    return installation(
        stream("pmw", "table", "pmw", mechanism=mechanism, epsilon=4.0, expected_queries=50),
        sources=[source("table", "table", path="-", epsilon=100.0, attributes={"x": X, "y": Y})],
        rows={"table": {"x": [x for x, _ in ROWS], "y": [y for _, y in ROWS]}},
        key=KEY,
    )


class DerivedStream:
    """A stream whose noise is derived from the key; every question is x <= a AND y = b."""

    def __init__(self, definition: Control) -> None:
        calibration = definition.calibration
        assert isinstance(calibration, EstimateCalibration)
        self.calibration, self.vector = calibration, calibration.sparse_vector
        self._identity = definition.identity
        self.tops = 0
        self.rows = len(ROWS) + self._round(
            DrawRole.ROWS, sampler("two_sided", Fraction(calibration.epsilon_rows))
        )
        rate = Fraction(calibration.epsilon_start)
        singles = [(0,), (1,)] if calibration.warm_start else []
        self.marginals = [self._marginal(b"start", axes, rate) for axes in singles]

    def answer(self, a: int, b: int) -> tuple[str, float]:
        inside = np.zeros((X, Y), dtype=np.int64)
        inside[: a + 1, b] = 1
        exact = FULL * int((TABLE * inside).sum())
        shares = fit_distribution((X, Y), average_equal_axes(self.marginals), self.rows)
        mass, total = FULL * int((shares * inside).sum()), int(shares.sum())
        estimate = (2 * self.rows * mass + total) // (2 * total)
        key = f'[["([\\"x\\", 0, {a + 1}]&[\\"y\\", {b}, {b + 1}])", {FULL}]]'.encode()
        nu = self._own(DrawRole.QUERY, query_sampler(self.vector), key)
        rho = self._round(DrawRole.THRESHOLD, threshold_sampler(self.vector))
        if abs(exact - estimate) + nu < self.calibration.threshold + rho:
            return "hypothesis", estimate / FULL
        part = Fraction(self.vector.epsilon_answer) / self.calibration.cutoff
        found = self._marginal(self.tops.to_bytes(8, "big"), (0, 1), part)
        self.marginals.append(found)
        self.tops += 1
        return "noisy", float((found.counts * inside).sum())

    def _marginal(self, when: bytes, axes: tuple[int, ...], rate: Fraction) -> NoisyMarginal:
        law = sampler("two_sided", rate)
        place = when + b"".join(axis.to_bytes(8, "big") for axis in axes) + bytes(8)
        true: npt.NDArray[np.int64] = TABLE.sum(axis=1 - axes[0]) if len(axes) == 1 else TABLE
        words, low = block_words(self._subkey(DrawRole.RELEASE), place, true.size, law.words)
        counts = (true + law.draw(words, low).reshape(true.shape)).astype(np.float64)
        return NoisyMarginal(axes, counts, 2.0 / (float(rate) * float(rate)))

    def _own(self, role: DrawRole, law: Sampler, key: bytes) -> int:
        words, low = cell_words(self._subkey(role), [self.tops.to_bytes(8, "big") + key], law.words)
        return int(law.draw(words, low)[0])

    def _round(self, role: DrawRole, law: Sampler) -> int:
        words, low = round_words([self._subkey(role)], [0], law.words)
        return int(law.draw(words, low)[0])

    def _subkey(self, role: DrawRole) -> bytes:
        identity = self._identity
        digest = bytes.fromhex(identity.digest)
        return stream_subkey(KEY, incarnation=identity.incarnation, definition=digest, role=role)


def ask(driver: Driver, questions: Sequence[tuple[int, int]]) -> Sequence[Answer]:
    asked: list[dict[str, Any]] = [
        {"id": str(place), "stream": "pmw", "where": f"x <= {a} AND y = {b}"}
        for place, (a, b) in enumerate(questions)
    ]
    return driver.ask_many(asked)


@pytest.mark.parametrize("warm_start", [0, 1])
def test_pmw_answers_are_recomputed_from_the_key(warm_start: int) -> None:
    driver = service(warm_start)
    recomputed = DerivedStream(definition_of(driver, "pmw"))
    answered = []
    for number in range(12):
        a, b = number % (X - 1), number % Y
        [answer] = ask(driver, [(a, b)])
        answered.append(answer.basis)
        if answer.basis == "measured":
            continue
        assert (answer.basis, answer.estimate) == recomputed.answer(a, b)
        driver.crash()
    assert "noisy" in answered
    assert recomputed.tops == answered.count("noisy")


def test_summed_marginals_are_those_from_which_questions_are_read() -> None:
    one = NoisyMarginal((0, 1), TABLE.astype(np.float64), 1.0)
    assert np.array_equal(sum_to_axes(one, (1,)).counts, TABLE.sum(axis=0))
