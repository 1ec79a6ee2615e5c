"""The benchmark of live topics: its events, its measurements of a run, and its ratios."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiokafka import TopicPartition

from benchmarks.live import ratios
from benchmarks.live_course import Course, Sample, done
from benchmarks.live_job import SOURCE, Job, People, source, specs
from benchmarks.live_latency import Usage, first_of, last_of, summary
from benchmarks.live_restart import Restart
from benchmarks.live_throughput import Run
from schemas import EventsSource, RegisterSource
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.feed_definitions import FeedDefinitions
from stream.processing.protocol import Record
from stream.processing.topic_names import Topics, partition_of
from tests.processing import process_records


def test_course_measures_its_second_half() -> None:
    course = Course(
        [
            Sample(0.0, 0, 0.0, 0),
            Sample(2.0, 10, 3.0, 70),
            Sample(3.0, 400, 4.0, 90),
            Sample(4.0, 600, 4.5, 80),
            Sample(6.0, 1000, 5.5, 85),
            Sample(9.0, 1000, 5.6, 85),
        ]
    )
    assert course.startup == 2.0
    assert course.late_rate == pytest.approx(200.0)
    assert course.late_cpu == pytest.approx(1.0 / 400)
    assert (course.half_rss, course.most_rss) == (80, 90)


def test_throughput_of_a_group_counts_its_repartitioned_topics() -> None:
    """With topics of its own, events are done once they went through all of them."""
    places = {TopicPartition("events", 0): 30, TopicPartition("events", 1): 20}
    assert done(places, "events") == 50
    assert done({**places, TopicPartition("events-by-group", 0): 41}, "events") == 41
    assert done({}, "events") == 0


def test_ratios_are_within_rounds() -> None:
    def run(name: str, number: int, rate: float) -> Run:
        return Run(name, number, 1, rate, 1.0, 1.0, 1, 1, 1.0)

    runs = [run("Sotto", 0, 60.0), run("Faust", 0, 3.0), run("Sotto", 1, 80.0), run("Quix Streams", 1, 40.0)]
    assert ratios(runs, "Faust", "rate") == [20.0]
    assert ratios(runs, "Quix Streams", "rate") == [2.0]
    assert ratios(runs, "Faust", "cpu_microseconds") == [1.0]


def test_latency_excludes_windows_before_the_warm_up_ends() -> None:
    job = Job(streams=1, groups=2)
    heard = [(1000, 5000.0), (2000, 2030.0), (2000, 2040.0), (3000, 3060.0)]
    usage = [Usage(0.0, 1.0, 0.0, 7, 1), Usage(1.0, 1.5, 0.5, 9, 5), Usage(2.0, 2.0, 0.5, 8, 2)]
    found = summary(heard, usage, (1500, 3500), job, {"last question written": 2.0}, (100.0, 0.5))
    assert (found.windows, found.answers, found.missing) == (2, 3, 1)
    assert (found.median, found.worst) == (40.0, 60.0)
    assert (found.feed_share, found.worker_share) == (0.5, 0.25)
    assert (found.first_rss, found.last_rss, found.most_rss, found.most_backlog) == (7, 8, 9, 5)
    with pytest.raises(TimeoutError, match="no window was answered"):
        summary([], usage, (1500, 3500), job, {}, (100.0, 0.5))


def test_window_latency_is_that_of_its_last_record() -> None:
    written = [(1000, 9000.0), (2000, 2010.0), (2000, 2030.0), (2000, 2020.0), (3000, 3050.0), (4000, 4040.0)]
    assert last_of(written, (1500, 4000)) == 40.0
    assert first_of(written, (1500, 4000)) == 40.0
    assert first_of(written[1:4], (1500, 4000)) == 10.0


def test_memory_is_that_of_the_process() -> None:
    assert Restart(10, 1.0, 1.0, 500, 1500, 0.0).bytes_each == 100.0


@pytest.mark.parametrize("conditions", [1, 20])
def test_benchmark_events_are_accepted_by_a_feed(conditions: int) -> None:
    job = Job(conditions=conditions)
    request: dict[str, Any] = {"request": "register", "source": source("ops", job)}
    declared = RegisterSource.model_validate(request, strict=False).source
    assert isinstance(declared, EventsSource)
    assert declared.source == SOURCE
    opened = specs(job, 60_000)
    assert len({spec.standing.where for spec in opened if spec.standing}) == conditions
    for spec in opened:
        assert spec.standing is not None
        assert spec.standing.window.size_ms == job.window_ms
    people, groups = People(50, 3), request["source"]["attributes"]["group"]
    events = [*people.once(60_500), *(people.event(60_501) for _ in range(50))]
    for partition, key, value in events:
        event = json.loads(value)
        assert partition == partition_of(key, 3)
        assert (event["user"].encode(), event["group"] in groups) == (key, True)
    # No event is refused.
    for number in range(3):
        feed = FeedProcessor(Topics(partitions=3), declared, number, 3, FeedDefinitions())
        feed.end_restore()
        mine = [value for partition, _, value in events if partition == number]
        records = [Record("ops", number, offset, 60_600, None, value) for offset, value in enumerate(mine)]
        outputs = process_records(feed, records)
        assert not [messages for topic, _, messages in outputs if topic == Topics(partitions=3).rejected]
