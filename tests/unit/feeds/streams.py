"""Standing streams from control events, without a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from schemas import (
    AboveThreshold,
    Control,
    EventsSource,
    Extension,
    Histogram,
    SparseVectorCalibration,
    StandingQuery,
    StreamClosed,
    StreamHalted,
    StreamIdentity,
    StreamOpened,
    StreamSpec,
    UnknownGroupsCalibration,
    Windows,
)
from stream.privacy.planning.unknown_groups_plans import TEXT_OVERHEAD
from stream.processing.protocol import Record
from stream.processing.topic_names import Topics, partition_of
from tests import builders
from tests.builders import parse_source

TOPICS = Topics(partitions=1)
SOURCE: EventsSource = parse_source(
    builders.source(
        "flights",
        "events",
        person="tailnum",
        time="scheduled",
        attributes={"origin": ["EWR", "JFK", "LGA"], "late": {"kind": "integers", "minimum": 0, "maximum": 1}},
    )
)
CALIBRATION = SparseVectorCalibration(
    epsilon=1.0,
    delta=0.0,
    grid=1.0,
    sensitivity_steps=1,
    cutoff=5,
    expected_queries=1000,
    beta=0.05,
    alpha=10.0,
    method="one_sided",
    shift=0,
    monotone=False,
    noise="one_sided",
    fresh_threshold=True,
    epsilon_threshold=0.5,
    epsilon_query=0.5,
    epsilon_answer=0.0,
    answer_alpha=0.0,
)


def texts_calibration(most_bytes: int) -> UnknownGroupsCalibration:
    """Return the calibration of a stream that counts the texts of windows."""
    return UnknownGroupsCalibration(
        epsilon=1.0,
        delta=1e-6,
        grid=1.0,
        sensitivity_steps=2,
        cutoff=100,
        expected_queries=100,
        beta=0.05,
        alpha=10.0,
        method="laplace",
        epsilon_answer=1.0,
        delta_answer=1e-6,
        threshold=30,
        contribution=2,
        text_bytes=40 + TEXT_OVERHEAD,
        most_bytes=most_bytes,
        size_threshold=most_bytes,
    )


def spec_of(name: str, by: tuple[str, ...] = (), *, whole: bool = False, **standing: Any) -> StreamSpec:
    """Return the specification of a standing stream with windows of five minutes."""
    windows = Windows(size="5m", every=standing.pop("every", None))
    mechanism = (
        Histogram(kind="histogram", attributes=by)
        if whole
        else AboveThreshold(kind="above_threshold", threshold=25.0, cutoff=5)
    )
    query = StandingQuery(window=windows, by=by, begins="2026-01-01T00:00:00Z", **standing)
    return StreamSpec(stream=name, source=SOURCE.source, mechanism=mechanism, epsilon=1.0, standing=query)


def incarnation_of(name: str) -> str:
    """Return the incarnation with which a stream of this name was opened."""
    return name.encode().hex().ljust(32, "0")[:32]


def control_event(
    spec: StreamSpec,
    kind: str = "opened",
    offset: int = 0,
    topics: Topics = TOPICS,
    *,
    extended: Sequence[bool] = (),
    source: EventsSource = SOURCE,
) -> Record:
    """Return the control event of a stream; ``extended`` has a value for each extension: whether the stream had ended."""
    definition: dict[str, Any] = {
        "spec": spec,
        "source": source,
        "identity": StreamIdentity(incarnation=incarnation_of(spec.stream), digest="ab" * 32, key_id="cd" * 8),
        "fingerprint": None,
        "calibration": CALIBRATION,
        "extensions": tuple(
            Extension(request="ab" * 32, answers=1, epsilon=1.0, resumes=resumes) for resumes in extended
        ),
    }
    made: Control
    if kind == "opened":
        made = StreamOpened(**definition)
    elif kind == "halted":
        made = StreamHalted(**definition, reason="exhausted")
    else:
        made = StreamClosed(**definition, reason="on request")
    key = spec.stream.encode()
    return Record(
        topics.control, partition_of(key, topics.partitions), offset, 0, key, made.model_dump_json().encode()
    )
