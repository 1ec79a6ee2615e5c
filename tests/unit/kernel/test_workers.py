"""Compares the outputs of workers with and without the kernel, from records and from columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.kernel.byte_columns import spans_of
from stream.processing.protocol import Outputs, Record, RecordLike
from stream.processing.record_columns import MessageColumns, RecordColumns
from tests.kernels import kernel, use_kernel
from tests.processing import process_records
from tests.unit.installation import HIGH, LOW, query, records
from tests.unit.worker.batches import FEEDS, TABLES, new_worker

near = st.one_of(
    st.integers(-40, 40).map(lambda number: number / 4), st.sampled_from([HIGH, LOW, 1e15, 0.015, 1e300])
)


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Draw queries near their thresholds, both plain and not, and invalid events."""
    found = []
    for number in range(draw(st.integers(1, 30))):
        name = draw(st.sampled_from([*FEEDS, *TABLES, "nobody"]))
        more = {"threshold": draw(st.integers(-20, 20).map(float))} if draw(st.booleans()) else {}
        spelling = draw(st.sampled_from(["", "é", '"', "\n"]))
        event = query(f"{number}{spelling}", name, draw(near), **more)
        if name in TABLES:
            event = query(f"{number}{spelling}", name, where=f"age < {draw(st.integers(0, 99))}", **more)
        found.append(draw(st.sampled_from([event, event, event, event, b"broken", event[:-1]])))
    return found


def in_columns(listed: list[Record]) -> RecordColumns:
    return RecordColumns(
        listed[0].topic,
        listed[0].partition,
        offsets=np.array([one.offset for one in listed]),
        timestamps=np.array([one.timestamp for one in listed]),
        keys=spans_of([one.key or b"" for one in listed]),
        values=spans_of([one.value or b"" for one in listed]),
    )


def written(outputs: list[Outputs]) -> list[object]:
    return [
        (topic, partition, [(key, value, tuple(headers)) for key, value, headers in messages])
        for one in outputs
        for topic, partition, messages in one
    ]


@given(log=logs(), cut=st.integers(0, 30))
@settings(deadline=None, max_examples=25)
def test_worker_writes_same_bytes_with_and_without_kernel(log: list[bytes], cut: int) -> None:
    """Writes the same messages from lists and columns, with the kernel and without."""
    portions = [part for part in (records(log)[:cut], records(log)[cut:]) if part]
    found = []
    shapes: list[tuple[Any, Callable[[list[Record]], Sequence[RecordLike]]]] = [
        (None, list),
        (kernel(), list),
        (kernel(), in_columns),
    ]
    for library, shape in shapes:
        with use_kernel(library):
            worker = new_worker()
            outputs = [process_records(worker, shape(part)) for part in portions]
            found.append(written([*outputs, worker.collect_due_outputs(10.0)]))
    assert found[0] == found[1] == found[2]


def test_kernel_keeps_answers_to_plain_queries_in_columns() -> None:
    """Writes the answers to a batch of plain queries as one part in columns."""
    log = records([query(str(number), "best", LOW) for number in range(50)])
    with use_kernel(kernel()):
        worker = new_worker()
        outputs = process_records(worker, in_columns(log))
    answers = next(messages for topic, _, messages in outputs if topic.endswith("answers"))
    assert [type(part) for part in answers.parts] == [MessageColumns]
    assert len(answers) == 50
