"""Feeds that drop retired streams count and ask like feeds that keep them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from schemas import Amount, RetiredAnswer
from sotto import Driver
from stream.budget import budget_processor
from stream.budget.decision_records import build_retired_record
from stream.feeds.feed_definitions import FeedDefinitions
from stream.processing.protocol import RETIRED_PREFIX, Record
from tests.builders import KEY
from tests.unit.feeds.merge_bench import RUNNING, SPECS, Bench, running_window, window
from tests.unit.feeds.partials import logged
from tests.unit.feeds.streams import SOURCE, TOPICS, control_event, incarnation_of
from tests.unit.feeds.topic import changelog, drain, start
from tests.unit.periods import FLIGHTS, LATE, event


def retirement(name: str, offset: int = 90) -> list[Record]:
    """Return the control records that retire a stream."""
    answer = RetiredAnswer(reason="halted", spent=Amount(epsilon=0.1, delta=0.0), tops_left=3)
    value = build_retired_record([(name, answer)]).model_dump_json().encode()
    return [
        Record(TOPICS.control, 0, offset, 0, RETIRED_PREFIX + name.encode(), value),
        Record(TOPICS.control, 0, offset + 1, 0, name.encode(), None),
    ]


def retire(task: Bench, name: str, how: str) -> None:
    """Let a task read the records, before or after a restart, with or without the records that they replace."""
    records = retirement(name)
    if how == "follows":
        task.write(task.task.apply_lookup_records(records))
    task.control = [one for one in task.control if one.key != name.encode() or how == "slow"]
    task.control += records[:1] if how == "slow" else records
    if how != "follows":
        task.start()
        task.write(task.task.collect_due_outputs(0.0))


@pytest.mark.parametrize("how", ["follows", "restarts", "slow"])
def test_merging_keeps_nothing_of_a_retired_stream(how: str) -> None:
    """Merging keeps neither open windows nor sums; later partials of the stream have no effect and no dead letter."""
    messages = [*running_window(0), *running_window(1)[:1]]
    task = Bench([RUNNING.control_event(incarnation_of(RUNNING.name))], logged([*messages, *running_window(2)]))
    task.step(3)
    assert len(task.kept) > 3
    retire(task, RUNNING.name, how)
    assert set(task.kept) == {b"@progress"}
    asked = len(task.asked)
    task.run()
    task.start()
    assert not task.task._definition_by_stream
    assert set(task.kept) == {b"@progress"}
    assert (len(task.asked), task.logs[TOPICS.rejected]) == (asked, [])


def test_merging_drops_a_halted_stream_only_once_it_is_retired() -> None:
    """The windows of a halted stream are asked up to its end."""
    control = [control_event(spec, offset=at) for at, spec in enumerate(SPECS)]
    task = Bench(control, logged([*window("all", 0), *window("all", 1)[:1], *window("origins", 0)]))
    task.run()
    task.hear(control_event(SPECS[0], "halted", offset=9))
    assert any(b"|all|" in key for key in task.kept)
    retire(task, "all", "follows")
    assert {key for key in task.kept if b"all" in key} == set()
    assert b"origins" in task.kept


@pytest.mark.parametrize("slow", [False, True])
def test_definitions_drop_a_retired_stream(slow: bool) -> None:
    """This holds even if compaction removed the deletion; a definition after the digest is ignored."""
    definitions = FeedDefinitions()
    opened = [control_event(spec, offset=at) for at, spec in enumerate(SPECS)]
    definitions.apply_control([*opened, control_event(SPECS[0], "halted", offset=9)])
    version, name = definitions.version, SPECS[0].stream
    definitions.apply_control(retirement(name)[: 1 if slow else 2])
    if slow:
        definitions.drop_retired()
    definitions.apply_control([opened[0]._replace(offset=99)])
    assert definitions.version > version
    assert [one.spec.stream for one in definitions.streams_of(SOURCE.source)] == ["both", "origins", "whole"]
    assert definitions.has_stream(SOURCE.source, name)  # a period with this stream does not begin again


def test_definitions_keep_no_source_of_retired_streams() -> None:
    definitions = FeedDefinitions()
    definitions.apply_control(
        [control_event(SPECS[0]), control_event(SPECS[0], "halted", offset=1), *retirement("all")]
    )
    assert not definitions.sources()
    assert [definitions._by_source, definitions._latest, definitions._closed_summaries] == [{}, {}, {}]


@pytest.mark.parametrize("restarts", [False, True])
def test_counting_deletes_the_records_of_a_retired_stream(restarts: bool) -> None:
    """After a restart, counting finds a record without a definition, and does not wait for one."""
    definitions, kafka = FeedDefinitions(), changelog(SOURCE)
    definitions.apply_control([control_event(spec, offset=at) for at, spec in enumerate(SPECS)])
    feed = start(SOURCE, definitions, kafka)
    drain(feed, kafka)
    assert b"stream|all" in kafka.state
    definitions.apply_control([control_event(SPECS[0], "halted", offset=9), *retirement("all")])
    if restarts:
        feed = start(SOURCE, definitions, kafka)
    drain(feed, kafka)
    assert sorted(key for key in kafka.state if key.startswith(b"stream|")) == [
        b"stream|both",
        b"stream|origins",
        b"stream|whole",
    ]
    assert {name for name, _ in feed._streams.streams} == {"both", "origins", "whole"}


class InstallationPair:
    """An installation with periods that retires streams a day after their end, and one that never does."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.hour = 0
        self.drivers = [Driver(KEY, partitions=2, retire_days=days) for days in (1.0, 0.0)]
        plain = {name: value for name, value in FLIGHTS.items() if name not in {"unit", "period"}}
        self.models = [LATE, {**LATE, "stream": "more", "epsilon": 3.0}]
        self.plain = [{**one, "stream": f"plain-{one['stream']}", "source": "all"} for one in self.models]
        for driver in self.drivers:
            driver.register({**FLIGHTS, "epsilon": 50.0})
            driver.register({**plain, "source": "all", "topic": "all", "unit": "person", "epsilon": 50.0})
            for one in (*self.models, *self.plain):
                driver.open(one, acknowledge=True)

    def moment(self, hours: int) -> str:
        return f"2013-01-{1 + hours // 24:02}T{hours % 24:02}:30:00Z"

    def fly(self) -> None:
        self.hour += self.chance.choice((1, 5, 20))
        people = [f"N{self.chance.randrange(9)}" for _ in range(5)]
        for driver in self.drivers:
            for source in ("flights", "all"):
                driver.publish(source, [event(one, self.moment(self.hour)) for one in people])
                driver.advance(source, self.moment(self.hour))

    def end(self) -> None:
        one = self.chance.choice((*self.models, *self.plain))
        for driver in self.drivers:
            if any(grant.spec.stream == one["stream"] for grant in driver.list_streams(one["source"])):
                (driver.close if self.hour % 2 else driver.halt)(one["source"], one["stream"])

    def wait(self) -> None:
        for driver in self.drivers:
            driver.wait(1.5 * 86_400)
            driver.register({**FLIGHTS, "epsilon": 50.0})

    def crash(self) -> None:
        for driver in self.drivers:
            driver.crash()


@pytest.mark.parametrize("seed", range(4))
def test_feeds_that_drop_streams_ask_as_those_that_keep_them(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Partials, questions and answers are equal, despite ends, periods and restarts."""
    monkeypatch.setattr(budget_processor, "LEAST_RETIRED_PER_PARTITION", 0)
    pair = InstallationPair(seed)
    for step in range(40):
        pair.chance.choice(
            (pair.fly, pair.fly, pair.fly, pair.wait, pair.crash, pair.end if step > 20 else pair.fly)
        )()
    one, other = pair.drivers
    topics: Any = one.topics
    for topic in (topics.partials, topics.queries, topics.answers):
        assert [record.value for record in one.records(topic)] == [record.value for record in other.records(topic)]
    assert sum(record.value is None for record in one.records(topics.control)) > 2
