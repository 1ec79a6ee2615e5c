"""Runs the whole service in memory, and derives the noise of its answers again from the key."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pydantic import TypeAdapter

from schemas import AboveThreshold, Control, OpenStream, Query, SparseVectorCalibration
from sotto import Driver
from stream.privacy.mechanisms.above_threshold import query_sampler, threshold_sampler
from stream.privacy.noise.keyed_noise import DrawRole, event_words, round_words, stream_subkey
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Record
from tests import builders

KEY = NoiseKey(bytes(range(100, 132)))

_control: TypeAdapter[Control] = TypeAdapter(Control)


def feed(name: str = "feed", *, epsilon: float = 1000.0, grid: float = 1.0) -> dict[str, Any]:
    """Return the definition of a source of trusted values with much budget."""
    return builders.source(name, neighbors="add-remove", epsilon=epsilon, grid=grid)


def stream(
    name: str, cutoff: int, *, threshold: float = 0.0, monotone: bool = False, **spec: Any
) -> dict[str, Any]:
    """Return the definition of a stream on `feed`, unless `spec` names another source."""
    mechanism = {"threshold": threshold, "cutoff": cutoff, "monotone": monotone}
    return builders.stream(name, mechanism=mechanism, **spec)


def open_all(driver: Driver, specs: Iterable[Mapping[str, Any]]) -> None:
    """Open many streams in one batch of requests."""
    requests = [OpenStream(request=spec["stream"], stream=builders.parse_stream(spec)) for spec in specs]
    refused = [one.reason for one in driver.requests(requests) if one.outcome != "opened"]
    assert not refused, refused[0]


def definition_of(driver: Driver, name: str) -> Control:
    """Return the definition that the budget service published at the stream's last opening."""
    records = [one for one in driver.records(driver.topics.control) if one.key == name.encode()]
    return _control.validate_json(records[-1].value or b"")


def sparse_vector(definition: Control) -> SparseVectorCalibration:
    """Return the calibration of a stream that runs a sparse vector."""
    assert isinstance(definition.calibration, SparseVectorCalibration)
    return definition.calibration


def everything(driver: Driver) -> Iterator[Record]:
    """Yield all records of all topics."""
    topics = driver.topics
    for topic in (
        topics.queries,
        topics.control,
        topics.answers,
        topics.state,
        topics.requests,
        topics.charges,
        topics.ledger,
        topics.trail,
        topics.rejected,
        topics.status,
    ):
        yield from driver.records(topic)


@dataclass(frozen=True)
class Derived:
    """The noise of a stream, derived from the key, and the outcomes that follow from it."""

    key: NoiseKey
    definition: Control

    @property
    def calibration(self) -> SparseVectorCalibration:
        return sparse_vector(self.definition)

    def barrier(self, tops: int) -> int:
        """Return ρ + s after this number of ⊤s."""
        return self.threshold_noise(tops) + self.calibration.shift

    def threshold_noise(self, tops: int) -> int:
        calibration = self.calibration
        law = threshold_sampler(calibration)
        words, low = round_words(
            [self._subkey(DrawRole.THRESHOLD)], [tops if calibration.fresh_threshold else 0], law.words
        )
        return int(law.draw(words, low)[0])

    def query_noise(self, record: Record) -> int:
        law = query_sampler(self.calibration)
        words, low = event_words(
            [self._subkey(DrawRole.QUERY)],
            record.topic,
            record.partition,
            [record.offset],
            [record.value or b""],
            law.words,
        )
        return int(law.draw(words, low)[0])

    def outcomes(self, records: list[Record]) -> list[str]:
        """Apply the rule to one query after the other: ⊤ iff f + ν >= T + ρ + s, until the cutoff."""
        calibration, mechanism = self.calibration, self.definition.spec.mechanism
        assert isinstance(mechanism, AboveThreshold)
        tops = 0
        found = []
        for record in records:
            query = Query.model_validate_json(record.value or b"")
            asked = mechanism.threshold if query.threshold is None else query.threshold
            margin = steps(query.value or 0.0, calibration.grid) - steps(asked, calibration.grid)
            if tops == calibration.cutoff:
                found.append("halted")
                continue
            above = margin + self.query_noise(record) >= self.barrier(tops)
            tops += above
            found.append("above" if above else "below")
        return found

    def _subkey(self, role: DrawRole) -> bytes:
        identity = self.definition.identity
        digest = bytes.fromhex(identity.digest)
        return stream_subkey(self.key, incarnation=identity.incarnation, definition=digest, role=role)


def steps(number: float, grid: float) -> int:
    """Return ⌊v/γ + ½⌋ of a double's shortest decimal."""
    return math.floor(Fraction(repr(number)) / Fraction(repr(grid)) + Fraction(1, 2))
