"""Feeds on the broker in memory: people's events, faults that the seed decides, and a recount of all windows at the end."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from schemas import Amount, RetiredAnswer, StreamSpec, span_ms
from schemas.windows import YEAR_10000_MS
from sotto import Driver
from stream.budget.decision_records import build_retired_record
from stream.processing.dead_letters import UnreadableValue
from stream.processing.protocol import RETIRED_PREFIX, Record, RecordLike
from stream.processing.topic_names import Topics
from tests.builders import KEY
from tests.chaos.windows import Logs, Visits, live_source, standing_specs, violations_of_windows
from tests.simulation.broker import Broker
from tests.simulation.cast import PARTITIONS, SETTINGS
from tests.simulation.clock import EPOCH, VirtualLoop
from tests.simulation.faults import STRIKES, Faults
from tests.simulation.feeds import LIVE_PARTITIONS, Feeds
from tests.simulation.schedule import Report, played

SECONDS = 24
"""Seconds in which people send events."""
PATIENCE = 240.0
DELAYING = (*(name for name in STRIKES if not name.startswith("killed")), "outage", "zombie")
"""Faults after which a process may read events before control."""
BEGINS = int(EPOCH * 1000)
TOPIC = "hospital.visits"
SOURCE = live_source(TOPIC, "broker")
LATER = "visits-sum"
"""The stream that is opened in the middle of the schedule."""


class ExtensionRecords(NamedTuple):
    """The control records of an exhausted stream, of its later extension, and of its later closing."""

    dry: Record
    resumed: Record
    closed: Record


@cache
def stream_control_records() -> tuple[dict[str, Record], dict[str, Record]]:
    """Return the control records of each stream's opening and of its closing."""
    driver = Driver(KEY, partitions=PARTITIONS)
    driver.register(SOURCE)
    topic = driver.topics.control

    def latest() -> dict[str, Record]:
        found = {(record.key or b"").decode(): record for record in driver.records(topic)}
        return {
            name: record._replace(topic=topic.replace(driver.topics.prefix, SETTINGS.prefix))
            for name, record in found.items()
        }

    for spec in specs():
        driver.open(spec, acknowledge=True)
    opened = latest()
    for spec in specs():
        driver.close(SOURCE.source, spec.stream)
    return opened, latest()


@cache
def extended() -> Mapping[str, ExtensionRecords]:
    """Return the control records of each stream that can be extended."""
    found = {}
    for name, record in stream_control_records()[0].items():
        definition = json.loads(record.value or b"")
        if definition["spec"]["mechanism"]["kind"] in {"running_count", "unknown_groups"}:
            continue
        extension = {"request": "ab" * 32, "answers": 1, "epsilon": 1.0, "resumes": True}
        events = (
            {**definition, "kind": "halted", "reason": "exhausted"},
            {**definition, "extensions": [extension]},
            {**definition, "extensions": [extension], "kind": "closed", "reason": "on request"},
        )
        found[name] = ExtensionRecords(*(record._replace(value=json.dumps(one).encode()) for one in events))
    return found


@cache
def specs() -> tuple[StreamSpec, ...]:
    """Return streams with windows of four seconds and of two."""
    return tuple(standing_specs("4s", "2s", BEGINS))


class LiveWorld:
    """The broker, the feeds, the people and the faults of one schedule."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.chance = random.Random(seed)
        topics = self.topics = Topics(SETTINGS.prefix, PARTITIONS)
        wide = (topics.queries, topics.control, topics.partials, topics.merges, topics.rejected, topics.status)
        live = (TOPIC, topics.feed_state(SOURCE.source))
        counts = dict.fromkeys(wide, PARTITIONS) | dict.fromkeys(live, LIVE_PARTITIONS)
        self.broker = Broker(loop, self.branch(), counts)
        self.faults = Faults(self.branch(), strikes=self.chance.randint(0, 6), rate=0.01)
        self.injected: Counter[str] = self.faults.injected
        self.visits = Visits(LIVE_PARTITIONS, seed)
        self.feeds = Feeds(loop, self.broker, topics, self.faults, self.branch())
        self.closed: dict[str, int] = {}
        """The moment at which control closed each stream, or halted it for good."""
        self.retired: set[str] = set()
        self.gaps: dict[str, list[tuple[int, int | None]]] = {}
        self.verified: set[str] = set()
        """The extended streams whose windows were compared with a plain count."""
        self.unreadable = 0
        self.tell(*(record for name, record in stream_control_records()[0].items() if name != LATER))

    def branch(self) -> random.Random:
        """Return a separate generator, so that the draws of one part do not change those of another."""
        return random.Random(self.chance.getrandbits(64))

    def questions(self) -> int:
        """Return the number of questions that windows asked."""
        places = ((self.topics.queries, number) for number in range(PARTITIONS))
        return sum(len(self.broker.committed(*place)) for place in places)

    def tell(self, *records: Record) -> None:
        """Write records to control, as the budget service does."""
        for record in records:
            self.broker.append(record.topic, record.partition, record.key or b"", record.value)

    async def people(self) -> None:
        """Send events in bursts; sometimes there is a pause or an unreadable batch."""
        chance = self.branch()
        while self.loop.time() < SECONDS:
            await asyncio.sleep(chance.choice((0.1, 0.5, 3.0)) * chance.random())
            for _ in range(chance.choice((0, 1, 5, 30))):
                partition, key, value = self.visits.next(self.broker.timestamp, 6000)
                for _ in range(1 + (chance.random() < 0.03)):
                    self.broker.append(TOPIC, partition, key, value)
            if chance.random() < 0.01:
                self._append_unreadable(chance.randrange(LIVE_PARTITIONS))

    def _append_unreadable(self, partition: int) -> None:
        self.broker.append_unreadable(TOPIC, partition)
        self.unreadable += 1
        self.injected["unreadable batch"] += 1

    async def streams(self) -> None:
        """Open a stream in the middle, and close another one."""
        chance = self.branch()
        await asyncio.sleep(chance.uniform(1.0, SECONDS / 4))
        await self._extend(chance)
        await asyncio.sleep(chance.uniform(0.0, SECONDS / 4))
        self.tell(stream_control_records()[0][LATER])
        self.injected["stream opened in the middle"] += 1
        await asyncio.sleep(chance.uniform(0.0, SECONDS / 3))
        if chance.random() < 0.5:
            name = chance.choice([spec.stream for spec in specs()])
            self.closed[name] = self.broker.timestamp
            end = extended()[name].closed if name in self.gaps else stream_control_records()[1][name]
            self.injected["stream closed"] += 1
            if chance.random() < 0.7:
                await self._retire(end, chance)
            else:
                self.tell(end)

    async def _retire(self, end: Record, chance: random.Random) -> None:
        """Close or halt a stream, and retire it soon afterwards, so that feeds may read both events together."""
        name = (end.key or b"").decode()
        if chance.random() < 0.7:
            end = end._replace(value=(end.value or b"").replace(b'"kind":"closed"', b'"kind":"halted"'))
        self.tell(end)
        await asyncio.sleep(chance.choice((0.0, 1.0, 5.0)) * chance.random())
        answer = RetiredAnswer(reason="on request", spent=Amount(epsilon=1.0, delta=0.0))
        digests = build_retired_record([(name, answer)]).model_dump_json().encode()
        self.retired.add(name)
        self.tell(end._replace(key=RETIRED_PREFIX + name.encode(), value=digests), end._replace(value=None))
        self.injected["stream retired"] += 1

    async def _extend(self, chance: random.Random) -> None:
        """Let a stream be exhausted, and extend it at once or after a while, so that feeds may read both events together."""
        name = chance.choice(sorted(extended().keys() - {LATER}))
        events = extended()[name]
        end = self.broker.timestamp
        self.tell(events.dry)
        self.gaps[name] = [(end, None)]
        await asyncio.sleep(chance.choice((0.0, 0.3, 4.0)) * chance.random())
        self.gaps[name] = [(end, self.broker.timestamp)]
        self.tell(events.resumed)
        self.injected["stream extended"] += 1

    async def trouble(self) -> None:
        """Cause faults at random times."""
        chance = self.branch()
        for _ in range(chance.randint(0, 5)):
            await asyncio.sleep(chance.uniform(0.0, 5.0))
            upset = chance.choice(
                (
                    self._kill,
                    self._zombie,
                    *self.feeds.upsets,
                    self._outage,
                    self._compact,
                    self._expire,
                )
            )
            if upset(chance):
                self.injected[upset.__name__.strip("_")] += 1

    def _kill(self, chance: random.Random) -> bool:
        if self.feeds.running:
            chance.choice(self.feeds.running).process.kill()
        return bool(self.feeds.running)

    def _zombie(self, chance: random.Random) -> bool:
        if self.feeds.running:
            chance.choice(self.feeds.running).process.suspend(chance.uniform(3.0, 12.0))
        return bool(self.feeds.running)

    def _outage(self, chance: random.Random) -> bool:
        seconds = chance.uniform(0.5, 6.0)
        for one in self.feeds.running:
            one.process.cut(seconds)
        return True

    def _compact(self, chance: random.Random) -> bool:
        topics = self.topics
        compacted = {topics.merges, topics.feed_state(SOURCE.source), topics.control}
        return sum(log.compact(chance) for log in self.broker.logs.values() if log.topic in compacted) > 0

    def _expire(self, chance: random.Random) -> bool:
        del chance
        self.feeds.expire(SOURCE.source)
        return True

    def logs(self) -> Logs:
        """Return all committed records, by partition."""
        found: dict[tuple[str, int], list[RecordLike]] = {}
        for place, log in self.broker.logs.items():
            found[place.topic, place.partition] = list(log.committed())
        return found

    def violations(self, until: int) -> list[str]:
        """Return the violations in the windows that are closed when the clock is at ``until``."""
        logs = self.logs()
        open_ = [spec for spec in specs() if spec.stream not in self.closed and self._was_read_in_time(logs, spec)]
        self.verified = {name for name in self.gaps if any(spec.stream == name for spec in open_)}
        found = violations_of_windows(logs, self.topics, SOURCE, open_, LIVE_PARTITIONS, until, gaps=self.gaps)
        letters = sum(len(logs[self.topics.rejected, number]) for number in range(PARTITIONS))
        wanted = sum(wrong for wrong in self.wrong(logs)) + self.unreadable
        if letters != wanted:
            found.append(f"{letters} dead letters of {wanted} wrong events")
        for name in self.closed:
            asked = [
                one
                for place, log in logs.items()
                if place[0] == self.topics.queries
                for one in log
                if one.key == name.encode()
            ]
            if len({one.value for one in asked}) != len(asked):
                found.append(f"{name}: asked a question twice")
        return found + self._out_of_order(logs) + self._leftovers(logs)

    def _leftovers(self, logs: Logs) -> list[str]:
        """Return the records of retired streams that changelogs still have."""
        kept = {
            (place, record.key or b""): record.value
            for place, log in logs.items()
            if place[0] in {self.topics.merges, self.topics.feed_state(SOURCE.source)}
            for record in log
        }
        return [
            f"{place}: {key.decode()} is not asked any more, and kept"
            for (place, key), value in kept.items()
            if value is not None and self.retired & set(key.decode(errors="replace").split("|"))
        ]

    def _was_read_in_time(self, logs: Logs, spec: StreamSpec) -> bool:
        """Return whether each partition read of a stream's end and extension within ``idle``; otherwise feeds promise nothing.

        Only a process that was cut off from its brokers may read too late: it may read events before it reads control again.
        """
        if not any(self.injected[name] for name in DELAYING):
            return True
        standing = spec.standing
        assert standing is not None
        open_ms = standing.window.size_ms + span_ms(standing.lateness)
        idle, key = span_ms(SOURCE.idle), spec.stream.encode()
        for end, again in self.gaps.get(spec.stream, ()):
            for number in range(PARTITIONS):
                for record in logs[self.topics.partials, number]:
                    start = json.loads(record.value or b"")["start"] if record.key == key else 0
                    if end + idle - open_ms < start < (again or YEAR_10000_MS) + idle:
                        return False
            for number in range(LIVE_PARTITIONS):
                state = logs[self.topics.feed_state(SOURCE.source), number]
                kept = [one.value for one in state if one.key == b"epoch|1|" + key and one.value]
                began = json.loads(kept[-1])["offset"] if kept else 0
                stamps = [one.timestamp for one in logs[TOPIC, number] if one.offset < began]
                if not kept or max(stamps, default=0) >= (again or YEAR_10000_MS) + idle:
                    return False
        return True

    def _out_of_order(self, logs: Logs) -> list[str]:
        """Return the partitions that did not publish their windows in order of closing time and name.

        Windows of closed streams are ignored: a process that does not know of the closing yet may begin such a stream again.
        """
        late = {LATER, *self.gaps} - self.verified
        standing = {spec.stream: spec.standing for spec in specs() if spec.standing and spec.stream not in late}
        partials: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
        for number in range(PARTITIONS):
            for record in logs[self.topics.partials, number]:
                partial = json.loads(record.value or b"")
                if record.timestamp >= self.closed.get(partial["stream"], YEAR_10000_MS):
                    continue
                if (query := standing.get(partial["stream"])) is not None:
                    closes = partial["start"] + query.window.size_ms + span_ms(query.lateness)
                    partials[number, partial["partition"]].append((closes, partial["stream"]))
        return [
            f"{place}: windows out of their order" for place, order in partials.items() if order != sorted(order)
        ]

    def wrong(self, logs: Logs) -> list[int]:
        """Return the number of events of each partition that are wrong or dated before every window; repetitions count too."""
        return [
            sum(
                self.visits.is_wrong(record.value or b"", number) or _is_before_all(record)
                for record in logs[TOPIC, number]
            )
            for number in range(LIVE_PARTITIONS)
        ]

    async def settle(self) -> list[str]:
        """Wait until all windows are asked; return violations."""
        until = self.broker.timestamp
        await asyncio.sleep(3.0)
        deadline = self.loop.time() + PATIENCE
        found = ["never looked"]
        while self.loop.time() < deadline:
            if not any(log.open for log in self.broker.logs.values()):
                found = self.violations(until)
                if not found or not all("not asked" in one or "dead letters" in one for one in found):
                    break
            # Not a multiple of the windows' length, so that a transaction may be open when a window closes.
            await asyncio.sleep(1.7)
        return found


def _is_before_all(record: RecordLike) -> bool:
    """Return whether an event is dated before the first window of all streams."""
    return not isinstance(record.value, UnreadableValue) and json.loads(record.value or b"")["at"] < BEGINS


async def _play(world: LiveWorld) -> list[str]:
    for _ in range(world.chance.randint(1, 2)):
        world.feeds.start()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(world.people(), world.streams(), world.trouble())
    world.faults.cease()
    return await world.settle()


def _figures(world: LiveWorld) -> dict[str, int]:
    return {"questions": world.questions(), "extension verified": len(world.verified)}


def play(seed: int) -> Report:
    """Run one schedule; equal seeds give equal runs."""
    return played("live", seed, LiveWorld, _play, _figures)
