from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from schemas import RunningCountCalibration, format_moment
from sotto import Driver, Refused
from stream.privacy.noise.keyed_noise import DrawRole, cell_noise
from stream.privacy.planning.release_plans import Node, answer_alpha, node_law, node_name, tree_of
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY, installation, source, stream
from tests.privacy.service import definition_of
from tests.processing import process_records
from tests.unit.installation import charges_in, checkpoints_in, records, restarted_from
from tests.unit.worker.families.running_counts import (
    EVERY,
    FIRST,
    TOPICS,
    Stream,
    answer_batch,
    counts_of,
    worker_of,
)

PLAIN = Stream()
GROUPED = Stream(by=("side", "ward"))
PEOPLE = [((0, 0), (3, 0)), ((1, 0),), ((1, 0), (2, 0)), ((5, 0),)]


def noise_of(worker: QueryProcessor, stream: Stream, group: int, node: Node) -> int:
    subkey = worker.streams.noise.subkey(worker.streams.slots[stream.name], DrawRole.NODES)
    return int(cell_noise(node_law(stream.calibration), subkey, [node_name(group, node)])[0])


@pytest.mark.parametrize("method", ["basic", "textbook", "gaussian"])
def test_running_count_adds_the_noise_of_its_nodes(method: str) -> None:
    stream = replace(GROUPED, method=method, delta=1e-3)
    people = [((window, (window * number) % 6),) for number in range(9) for window in range(stream.steps)]
    counts = counts_of(stream, people)
    worker = worker_of(stream)
    answers = answer_batch(worker, stream.questions(counts))
    assert len(answers) == stream.steps * 6
    tree = tree_of(stream.calibration)
    for place, answer in enumerate(answers):
        window, group = divmod(place, 6)
        nodes = tree.nodes(window + 1)
        so_far = sum(counted[group] for counted in counts[: window + 1])
        noise = sum(noise_of(worker, stream, group, node) for node in nodes)
        assert (answer.outcome, answer.basis, answer.index) == ("answer", "noisy", place)
        assert answer.estimate == so_far + noise
        assert answer.alpha == answer_alpha(stream.calibration, len(nodes))


def test_alpha_of_a_step_depends_on_its_number_of_nodes() -> None:
    stream = replace(PLAIN, steps=7, method="textbook")
    answers = answer_batch(worker_of(stream), stream.questions(counts_of(stream, PEOPLE)))
    alphas = [answer.alpha or 0.0 for answer in answers]
    by_ones = {(step + 1).bit_count(): alphas[step] for step in range(7)}
    assert alphas == [by_ones[(step + 1).bit_count()] for step in range(7)]
    assert by_ones[1] < by_ones[2] < by_ones[3] <= stream.calibration.alpha


def test_noise_differs_by_group_stream_and_opening() -> None:
    stream, other = replace(PLAIN, by=("side",)), replace(PLAIN, name="other", by=("side",))
    zeros = [[0, 0]] * stream.steps
    answers = answer_batch(worker_of(stream, other), [*stream.questions(zeros), *other.questions(zeros)])
    runs = [tuple(one.estimate for one in answers[start : start + 12 : 2]) for start in (0, 1, 12, 13)]
    anew = QueryProcessor(TOPICS, 0, KEY, worker_of()._admission._context.tables)
    anew.apply_lookup_records([stream.control_event("ef" * 16)])
    runs.append(tuple(one.estimate for one in answer_batch(anew, stream.questions(zeros))[::2]))
    assert len(set(runs)) == 5


def test_running_count_answers_alike_at_any_offset() -> None:
    questions = list(PLAIN.questions(counts_of(PLAIN, PEOPLE)))
    once = answer_batch(worker_of(PLAIN), questions[:3])
    elsewhere = answer_batch(worker_of(PLAIN), questions[1:3], start=100)
    assert [(one.estimate, one.alpha) for one in elsewhere] == [(one.estimate, one.alpha) for one in once[1:]]


def test_window_asked_again_with_other_sums_halts_the_stream() -> None:
    """No answer shows the difference."""
    questions = list(PLAIN.questions(counts_of(PLAIN, PEOPLE)))
    worker = worker_of(PLAIN)
    answer_batch(worker, questions[:3])
    forgotten = list(PLAIN.questions(counts_of(PLAIN, ())))
    answers = answer_batch(worker, forgotten[1:], start=100)
    assert [(one.outcome, one.estimate) for one in answers] == [("halted", None)] * 5
    assert (answers[0].reason or "").startswith("asked again: ")


def test_running_count_is_the_same_bytes_after_a_crash() -> None:
    questions = list(PLAIN.questions(counts_of(PLAIN, PEOPLE)))
    whole = process_records(worker_of(PLAIN), records(questions))
    worker = worker_of(PLAIN)
    before = process_records(worker, records(questions[:4]))
    successor = restarted_from([PLAIN.control_event("0" * 32)], TOPICS, [before])
    after = process_records(successor, records(questions[4:], start=4))
    parts = [message for outputs in (before, after) for message in outputs.messages[TOPICS.answers, 0]]
    assert parts == whole.messages[TOPICS.answers, 0]
    assert checkpoints_in(after, TOPICS) == checkpoints_in(whole, TOPICS)


def test_running_count_charges_epsilon_with_the_first_answer() -> None:
    answers = answer_batch(worker_of(PLAIN), PLAIN.questions(counts_of(PLAIN, PEOPLE)))
    assert [one.spent and one.spent.epsilon for one in answers] == [1.0] * 6
    assert [one.tops_left for one in answers] == [5, 4, 3, 2, 1, 0]


def test_running_count_ends_with_its_horizon() -> None:
    worker = worker_of(GROUPED)
    questions = list(GROUPED.questions([[1] * 6] * GROUPED.steps))
    outputs = process_records(worker, records(questions))
    [charge] = charges_in(outputs, TOPICS)
    assert (charge.state, charge.answered, charge.spent.epsilon) == ("exhausted", 36, 1.0)
    [late] = answer_batch(worker, questions[-1:], start=50)
    assert late.outcome == "halted"
    assert late.reason == "exhausted: the counts of all 6 windows of the horizon are out"


def moved_by(milliseconds: int, length: int = EVERY) -> dict[str, Any]:
    start, end = FIRST + milliseconds, FIRST + milliseconds + length
    return {"window": {"start": format_moment(start), "end": format_moment(end)}}


@pytest.mark.parametrize(
    ("otherwise", "words"),
    [
        ({"values": [1.0, 2.0]}, "values: 2 values, and the count after 1 windows is the sum of 1"),
        ({"values": None, "value": 3.0}, "value: this stream's mechanism does not take it; send values"),
        ({"window": None}, "window: missing"),
        (moved_by(1000), "window: not a window of this stream, the first of which begins at 2001-09-09T02:00:00Z"),
        (moved_by(-EVERY), "window: not a window of this stream"),
        (moved_by(0, 2 * EVERY), "window: not a window of this stream"),
        (moved_by(6 * EVERY), "window: number 7 of the stream, which counts only 6 windows"),
        ({"window": {"start": "today", "end": "tomorrow"}}, "window: give a moment in ISO 8601"),
        (
            {"group": None},
            "group: not a group of this stream; give a declared value of each attribute: side, ward",
        ),
        ({"group": {"side": "left"}}, "group: not a group of this stream"),
        ({"group": {"side": "left", "ward": "z"}}, "group: not a group of this stream"),
        ({"group": {"side": "left", "ward": "a", "age": 3}}, "group: not a group of this stream"),
    ],
)
def test_invalid_question_to_a_running_count_uses_up_nothing(otherwise: dict[str, Any], words: str) -> None:
    worker = worker_of(GROUPED)
    [refused] = answer_batch(worker, [GROUPED.question(0, 0, [1.0], **otherwise)])
    assert refused.outcome == "rejected"
    assert (refused.reason or "").startswith(f"malformed: {words}"), refused.reason
    [answered] = answer_batch(worker, [GROUPED.question(0, 0, [1.0])], start=1)
    assert (answered.index, answered.tops_left) == (0, 35)


def test_group_may_name_its_attributes_in_any_order() -> None:
    asks = GROUPED.question(0, 4, [1.0]), GROUPED.question(0, 4, [1.0], group={"ward": "b", "side": "right"})
    one, other = (answer_batch(worker_of(GROUPED), [ask])[0] for ask in asks)
    assert one.estimate == other.estimate


def test_sums_of_any_size_are_rounded_and_clamped() -> None:
    """Values that merging never sends do not stop the worker."""
    answers = [
        answer_batch(worker_of(PLAIN), [PLAIN.question(0, 0, [sum_])])[0] for sum_ in (0.0, 0.4, 1e300, -7.0)
    ]
    zero, near, large, below = (one.estimate or 0.0 for one in answers)
    assert near == zero
    assert large - zero == 2.0**50
    assert below - zero == -7.0


RIDES: dict[str, Any] = source(
    "rides",
    "events",
    topic="ops.rides",
    epsilon=10,
    attributes={"side": ["left", "right"], "fare": {"kind": "integers", "minimum": -5, "maximum": 10}},
    contribution=2,
    total=4,
)
HOURLY: dict[str, Any] = {"window": {"size": "1h"}, "by": ["side"], "begins": "2026-01-01T00:30:00Z"}


def opened(driver: Driver, standing: dict[str, Any] | None = None, **changed: Any) -> RunningCountCalibration:
    spec = stream("so-far", "rides", "running_count", mechanism={"steps": 24})
    driver.open({**spec, "standing": {**HOURLY, **(standing or {})}, **changed})
    calibration = definition_of(driver, "so-far").calibration
    assert isinstance(calibration, RunningCountCalibration)
    return calibration


def rides(**changed: Any) -> Driver:
    return installation(sources=[{**RIDES, **changed}])


@pytest.mark.parametrize(
    ("neighbors", "count", "moved"),
    [
        ("add-remove", "events", (4, 1, 4)),
        ("add-remove", "people", (4, 1, 4)),
        ("add-remove", {"sum": "fare"}, (40, 1, 4)),
        ("replace", "events", (8, 2, 8)),
        ("replace", {"sum": "fare"}, (80, 1, 8)),
    ],
)
def test_noise_fits_the_events_of_a_person_in_all_windows(
    neighbors: str, count: Any, moved: tuple[int, ...]
) -> None:
    found = opened(rides(neighbors=neighbors), {"count": count})
    assert (found.sensitivity_steps, found.spread, found.moved) == moved
    assert (found.steps, found.groups, found.cutoff) == (24, 2, 48)


def test_receipt_names_the_begin_and_the_number_of_windows() -> None:
    receipt = rides().open(stream("so-far", "rides", "running_count", mechanism={"steps": 24}, standing=HOURLY))
    assert (receipt.begins, receipt.windows) == ("2026-01-01T00:30:00Z", 24)


@pytest.mark.parametrize(
    ("source", "changed", "words"),
    [
        ({"total": None}, {}, "total: source 'rides' does not bound how often a person counts in all windows"),
        (
            {},
            {"standing": {"window": {"size": "1h", "every": "15m"}}},
            "standing.window.every: a running count must not have overlapping windows",
        ),
    ],
)
def test_unsuitable_running_count_is_refused(source: dict[str, Any], changed: dict[str, Any], words: str) -> None:
    with pytest.raises(Refused) as refused:
        opened(rides(**source), **changed)
    assert words in str(refused.value)


def test_running_count_runs_on_live_topics_only() -> None:
    driver = installation(sources=[source("rides")])
    with pytest.raises(Refused, match="running_count does not run on a source of kind 'values'; use 'events'"):
        driver.open(stream("so-far", "rides", "running_count", mechanism={"steps": 24}))


def test_ledger_charges_a_running_count_with_the_first_answer() -> None:
    """Closing refunds nothing after that."""
    driver = rides()
    opened(driver)
    driver.close("rides", "so-far")
    assert driver.budget("rides").spent.epsilon == 0
    driver = rides()
    opened(driver)
    window = {"start": "2026-01-01T01:00:00Z", "end": "2026-01-01T02:00:00Z"}
    asks = {"stream": "so-far", "values": [3.0], "window": window, "group": {"side": "left"}}
    [answer] = driver.ask_many([json.dumps({"id": "q", **asks}).encode()])
    assert (answer.outcome, answer.window and answer.window.start) == ("answer", window["start"])
    assert answer.group == {"side": "left"}
    driver.close("rides", "so-far")
    assert driver.budget("rides").spent.epsilon == 1
    assert driver.budget("rides").left.epsilon == 9


def test_horizon_is_not_extended() -> None:
    driver = rides()
    opened(driver)
    with pytest.raises(Refused, match="planned for exactly 24 windows"):
        driver.extend("rides", "so-far", 1.0)
