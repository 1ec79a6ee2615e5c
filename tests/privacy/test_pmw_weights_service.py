"""A stream of multiplicative weights publishes the output of the proved rule with keyed noise, recomputed question by question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from schemas import Answer, Control, HypothesisCalibration
from sotto import Driver
from stream.privacy.mechanisms.above_threshold import answer_sampler, query_sampler, threshold_sampler
from stream.privacy.mechanisms.multiplicative_weights import TensorHypothesis
from stream.privacy.noise.keyed_noise import DrawRole, cell_words, round_words, stream_subkey
from stream.privacy.noise.samplers import Sampler, sampler
from stream.privacy.planning.hypothesis_plans import rows_rate
from stream.worker.families.hypothesis_family import correction_rule
from tests.builders import installation, source, stream
from tests.privacy.service import KEY, definition_of

VALUES = 6
ROWS = [0] * 900 + [1] * 60 + [3] * 40
FULL = 1024


@dataclass(frozen=True)
class AtMost:
    """The question for the rows up to a value."""

    value: int

    axes = (0,)

    def steps(self) -> npt.NDArray[np.int64]:
        return np.where(np.arange(VALUES) <= self.value, FULL, 0)

    @property
    def count(self) -> int:
        return sum(row <= self.value for row in ROWS)

    @property
    def key(self) -> bytes:
        """Return the canonical bytes on which noise depends."""
        return f'[["[\\"x\\", 0, {self.value + 1}]", {FULL}]]'.encode()


def service(method: str) -> Driver:
    mechanism = {"attributes": ["x"], "rows": 900, "worst_case": True}
    choice: dict[str, Any] = {"delta": 0.3 if "rounds" in method else 0.0}
    if method == "textbook":
        choice = {"calibration": "textbook"}
    return installation(
        stream("pmw", "table", "pmw", mechanism=mechanism, epsilon=30.0, expected_queries=50, **choice),
        sources=[source("table", "table", path="-", epsilon=1000.0, delta=0.4, attributes={"x": VALUES})],
        rows={"table": {"x": ROWS}},
        key=KEY,
    )


class DerivedStream:
    """A stream whose noise is derived from the key."""

    def __init__(self, definition: Control) -> None:
        calibration = definition.calibration
        assert isinstance(calibration, HypothesisCalibration)
        self.calibration, self.vector = calibration, calibration.sparse_vector
        self._identity = definition.identity
        self.tops = 0
        self.hypothesis = TensorHypothesis((VALUES,), calibration.learning_rate, FULL)
        noise = self._round(DrawRole.ROWS, sampler("two_sided", rows_rate(calibration)), 0)
        self.rows = len(ROWS) + noise

    def answer(self, question: AtMost) -> tuple[str, float]:
        exact = FULL * question.count
        estimate = int(self.hypothesis.estimate_answers([question], self.rows)[0])
        nu = self._own(DrawRole.QUERY, query_sampler(self.vector), question)
        rho = self._round(
            DrawRole.THRESHOLD, threshold_sampler(self.vector), self.tops if self.vector.fresh_threshold else 0
        )
        if abs(exact - estimate) + nu < self.calibration.threshold + rho + self.vector.shift:
            return "hypothesis", estimate / FULL
        value = exact + self._own(DrawRole.ANSWER, answer_sampler(self.vector), question)
        for _ in range(correction_rule(self.calibration, self.rows).choose_multiple(value - estimate, estimate)):
            self.hypothesis.update(question, up=value > estimate)
        self.tops += 1
        return "noisy", value / FULL

    def _own(self, role: DrawRole, law: Sampler, question: AtMost) -> int:
        words, low = cell_words(self._subkey(role), [self.tops.to_bytes(8, "big") + question.key], law.words)
        return int(law.draw(words, low)[0])

    def _round(self, role: DrawRole, law: Sampler, number: int) -> int:
        words, low = round_words([self._subkey(role)], [number], law.words)
        return int(law.draw(words, low)[0])

    def _subkey(self, role: DrawRole) -> bytes:
        identity = self._identity
        digest = bytes.fromhex(identity.digest)
        return stream_subkey(KEY, incarnation=identity.incarnation, definition=digest, role=role)


def ask(driver: Driver, questions: Sequence[AtMost]) -> Sequence[Answer]:
    asked: list[dict[str, Any]] = [
        {"id": str(place), "stream": "pmw", "where": f"x <= {one.value}"} for place, one in enumerate(questions)
    ]
    return driver.ask_many(asked)


@pytest.mark.parametrize("method", ["one_sided", "one_sided_rounds", "textbook"])
def test_weights_answers_are_recomputed_from_the_key(method: str) -> None:
    driver = service(method)
    recomputed = DerivedStream(definition_of(driver, "pmw"))
    assert recomputed.vector.method == method
    questions = [AtMost(place % (VALUES - 1)) for place in range(40)]
    for part in (questions[:3], questions[3:20], questions[20:]):
        answers = ask(driver, part)
        assert [(one.basis, one.estimate) for one in answers] == [recomputed.answer(question) for question in part]
        driver.crash()
    assert recomputed.tops > 0
