"""Windows that wait for their periods are asked in order of their closing times, regardless of how many have come by then."""

from __future__ import annotations

import json

import pytest

from schemas import format_moment, period_name
from stream.feeds import merge_processor
from stream.feeds.feed_definitions import FeedDefinitions
from stream.feeds.merge_processor import MergeProcessor
from stream.processing.protocol import Outputs
from tests.processing import process_records
from tests.unit.feeds.partials import EVERY, FIRST, logged, partial
from tests.unit.feeds.streams import SOURCE, TOPICS, control_event, spec_of

HOURLY = SOURCE.model_copy(update={"unit": "person-period", "period": "1h"})
MODELS = [spec_of("a", lateness="7m"), spec_of("b"), spec_of("c")]
LATE = {"a": 7 * 60_000}
ORDER = sorted(
    ((FIRST + number * EVERY, name) for number in range(12) for name in "abc"),
    key=lambda one: (one[0] + EVERY + LATE.get(one[1], 0), one[1]),
)
"""The windows of one period with their streams, in the order in which they close."""


def merged_questions(come_before: int, at_once: int) -> list[tuple[str, str]]:
    """Return the period's questions in order; some windows come before control has its streams, the rest in groups of ``at_once``."""
    definitions = FeedDefinitions()
    task = MergeProcessor(TOPICS, 0, definitions)
    models = [control_event(spec, source=HOURLY) for spec in MODELS]
    task.restore(models)
    task.end_restore()
    definitions.apply_control(models)
    period = HOURLY.account_of_period(FIRST)
    opened = [
        control_event(
            spec.model_copy(update={"stream": period_name(spec.stream, FIRST), "source": period.source}),
            source=period,
        )
        for spec in MODELS
    ]
    records = logged(partial(name, 0, start, {}, 1) for start, name in ORDER)
    written: list[Outputs] = [process_records(task, records[:come_before]), task.collect_due_outputs(0.0)]
    for record in opened:
        # Control has several partitions, which are read one after the other.
        definitions.apply_control([record])
        written.append(task.collect_due_outputs(0.0))
    for place in range(come_before, len(records), at_once):
        written += [process_records(task, records[place : place + at_once])]
    while outputs := task.collect_due_outputs(0.0):
        written.append(outputs)
    questions = [
        json.loads(value or b"")
        for outputs in written
        for topic, _, messages in outputs
        if topic == TOPICS.queries
        for _, value, _ in messages
    ]
    return [(one["stream"].partition("@")[0], one["window"]["start"]) for one in questions]


@pytest.mark.parametrize("at_once", [1, 5, 100])
@pytest.mark.parametrize("come_before", [1, 2, 7, 36])
@pytest.mark.parametrize("most", [1, 10_000])
def test_windows_of_a_period_are_asked_in_order_of_closing(
    come_before: int, at_once: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_processor, "MAX_QUESTIONS_PER_STEP", most)
    assert merged_questions(come_before, at_once) == [(name, format_moment(start)) for start, name in ORDER]
