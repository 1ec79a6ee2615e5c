"""Events of a schedule: its load and faults of whole processes; faults of single calls are in ``faults``."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import get_args

from aiokafka import TopicPartition

from schemas import (
    Allot,
    CloseStream,
    ExtendStream,
    HaltStream,
    JoinPopulation,
    Mechanism,
    OpenStream,
    RefreshSource,
    Request,
    StreamSpec,
)
from stream.privacy.ledger.ledger_records import RESULTS_KEPT_BY_MECHANISM
from stream.processing.dead_letters import UnreadableValue
from stream.processing.protocol import Record
from stream.processing.topic_names import partition_of
from tests.chaos.load import Questions
from tests.simulation.cast import EVERYBODY, PARTITIONS, group_of
from tests.simulation.world import World

Upset = Callable[[World, random.Random], bool]

_ONCE_PLANNED = {"histogram", "unknown_groups"}
"""Kinds with a number of answers that no extension raises."""
_EXTENDABLE = {
    kind
    for model in get_args(get_args(Mechanism)[0])
    if model.model_fields.keys() & {"cutoff", "answers", "updates"}
    for kind in get_args(model.model_fields["kind"].annotation)
} - _ONCE_PLANNED


def _publish(world: World, questions: Questions, count: int) -> None:
    """Ask the next questions; sometimes an event is sent twice, or workers fail at it a few times."""
    for _ in range(count):
        identifier, stream, value = questions.next()
        if world.chance.random() < 0.01:
            world.failures[value] = world.chance.randint(1, 3)
            world.injected["failing event"] += 1
        times = 1
        if world.chance.random() < 0.02:
            times = 2
            world.injected["query published twice"] += 1
        for _ in range(times):
            world.ask(identifier, stream, value)


async def load(world: World, questions: Questions) -> None:
    """Ask in bursts, and make requests in between."""
    pace = world.branch()
    for burst in range(6):
        await asyncio.sleep(pace.uniform(0.0, 1.5))
        _publish(world, questions, pace.randint(1, 8))
        if burst == 1 and pace.random() < 0.5:
            _be_greedy(world, questions, pace)
        if burst in {0, 3} and pace.random() < 0.7:
            _share_out(world, pace, burst)
        if burst == 2 and pace.random() < 0.5:
            await _open(world, questions, pace)
        if burst in {1, 3, 4} and pace.random() < 0.5:
            _extend(world, questions, pace, f"extend-{burst}")
        if burst in {2, 3} and pace.random() < 0.25:
            await _refresh(world, questions, pace, f"refresh-{burst}")
        if burst == 4 and pace.random() < 0.5:
            await _stop_a_stream(world, questions, pace)


def _be_greedy(world: World, questions: Questions, pace: random.Random) -> None:
    """Ask one stream more questions at once than its partition accepts."""
    costly = [spec for spec in world.streams if spec.mechanism.kind != "above_threshold"]
    spec = pace.choice(costly)
    for _ in range(20):
        world.ask(*questions.next(spec))
    world.injected["greedy stream"] += 1


def _share_out(world: World, pace: random.Random, burst: int) -> None:
    """Let the survey join the table's population, create allotments, and let analysts open streams; repeat each request."""
    spec = next(one for one in world.streams if one.mechanism.kind == "above_threshold")
    opened = spec.model_copy(update={"stream": f"of-ada-{burst}", "epsilon": 0.75})
    requests: list[Request] = [
        JoinPopulation(request="join", source="survey", population=EVERYBODY),
        Allot(request=f"allot-{burst}", allotment="ada", source="feed", epsilon=pace.choice((0.5, 1.0, 2.0))),
        Allot(
            request=f"team-{burst}", allotment="team", population=EVERYBODY, analysts=("ada", "bob"), epsilon=3.0
        ),
        OpenStream(request=f"ada-{burst}", stream=opened, analyst="ada"),
        OpenStream(
            request=f"eve-{burst}", stream=opened.model_copy(update={"stream": f"of-eve-{burst}"}), analyst="eve"
        ),
        CloseStream(request=f"close-{burst}", source="feed", stream=opened.stream),
    ]
    for request in requests:
        for _ in range(pace.randint(1, 2)):
            world.loop.call_later(pace.uniform(0.0, 3.0), world.request, request)
    world.injected["budget shared out"] += 1


async def _open(world: World, questions: Questions, pace: random.Random) -> None:
    """Open a stream, repeat the request, and ask questions once the receipt has come."""
    spec = world.streams[0].model_copy(update={"stream": "opened-later"})
    request = OpenStream(request="open", stream=spec)
    if pace.random() < 0.5:
        world.loop.call_later(pace.uniform(0.0, 1.0), _another_worker_joins, world, pace)
    for _ in range(pace.randint(1, 3)):
        world.request(request)
    while not world.has_receipt("open"):
        await world.broker.arrival(1.0)
    for _ in range(3):
        world.ask(*questions.next(spec))
    if pace.random() < 0.5:
        # Preferably while the worker waits for the opening.
        world.loop.call_later(pace.uniform(0.0, 0.2), _another_worker_joins, world, pace)
    if pace.random() < 0.3:
        _kill_budget_services(world)
        world.request(request)


def _extend(world: World, questions: Questions, pace: random.Random, name: str) -> None:
    """Extend a stream, even if it cannot be extended, ask it more questions, and perhaps repeat the request."""
    limited = [spec for spec in world.streams if spec.mechanism.kind in _EXTENDABLE]
    if pace.random() < 0.7:
        limited = [spec for spec in limited if spec.stream in world.dry()] or limited
    spec = pace.choice(limited if pace.random() < 0.9 else world.streams)
    request = ExtendStream(
        request=name,
        source=spec.source,
        stream=spec.stream,
        epsilon=pace.choice((0.3, 1.0)) * spec.epsilon,
        delta=pace.choice((0.0, 1e-7)),
    )
    for _ in range(pace.randint(1, 2)):
        world.loop.call_later(pace.uniform(0.0, 2.0), world.request, request)
    world.loop.call_later(pace.uniform(0.0, 3.0), _ask_on, world, questions, spec)
    world.injected["extension"] += 1


async def _refresh(world: World, questions: Questions, pace: random.Random, name: str) -> None:
    """Renew the table without changing its rows, and ask its streams more questions; an opening may be repeated afterwards."""
    request = RefreshSource(request=name, source="people", close=pace.random() < 0.1)
    for _ in range(pace.randint(1, 2)):
        world.loop.call_later(pace.uniform(0.0, 1.0), world.request, request)
    world.injected["refresh"] += 1
    tables = (spec for spec in world.streams if spec.source == "people")
    going_on = [spec for spec in tables if spec.mechanism.kind not in RESULTS_KEPT_BY_MECHANISM]
    for spec in going_on:
        world.injected[f"{spec.mechanism.kind} after a refresh"] += 1
        world.loop.call_later(pace.uniform(0.0, 3.0), _ask_on, world, questions, spec)
    if going_on and pace.random() < 0.5:
        while not world.has_receipt(name):
            await world.broker.arrival(1.0)
        spec = pace.choice(going_on)
        opened = _opening_of(world, spec)
        world.ask(*questions.next(spec))
        await asyncio.sleep(pace.choice((0.5, 2.0)))
        world.repeat_control(opened)
        world.injected["opening repeated after a refresh"] += 1
        world.loop.call_later(pace.uniform(0.0, 1.0), _ask_on, world, questions, spec)


def _opening_of(world: World, spec: StreamSpec) -> Record:
    """Return the first control event of a stream that compaction has left."""
    key = spec.stream.encode()
    log = world.broker.logs[TopicPartition(world.topics.control, partition_of(key, PARTITIONS))]
    return next(record for record in log.committed() if record.key == key)


def _ask_on(world: World, questions: Questions, spec: StreamSpec) -> None:
    for _ in range(3):
        world.ask(*questions.next(spec))


async def _stop_a_stream(world: World, questions: Questions, pace: random.Random) -> None:
    """Halt or close a stream; its opening may be repeated afterwards."""
    spec = pace.choice(world.streams)
    kind = pace.choice((CloseStream, HaltStream))
    world.request(kind(request="stop", source=spec.source, stream=spec.stream))
    world.injected[f"{'close' if kind is CloseStream else 'halt'} request"] += 1
    if world.retire_after_ms:  # by then the stream may be retired; its name must be refused all the same
        world.loop.call_later(6.0, world.request, OpenStream(request="open again", stream=spec))
        for seconds in (2.0, 5.0, 8.0):
            world.loop.call_later(seconds, _ask_on, world, questions, spec)
        if pace.random() < 0.5:
            world.loop.call_later(7.0, world.repeat_control, _opening_of(world, spec))
            world.injected["opening repeated after a retirement"] += 1
    if pace.random() < 0.5:
        while not world.has_receipt("stop"):
            await world.broker.arrival(1.0)
        opened = _opening_of(world, spec)
        await asyncio.sleep(pace.choice((0.0, 1.0)))
        world.repeat_control(opened)
        world.injected["opening repeated after a halt"] += 1


async def trouble(world: World, *more: Upset, seconds: float = 4.0) -> None:
    """Cause faults at random times; ``more`` has those of this world alone."""
    chance = world.branch()
    for _ in range(chance.randint(0, 4)):
        await asyncio.sleep(chance.uniform(0.0, seconds))
        upset = chance.choice((*UPSETS, *more))
        if upset(world, chance):
            world.injected[upset.__name__.strip("_").replace("_", " ")] += 1


def _kill(world: World, chance: random.Random) -> bool:
    victims = world.processes
    if victims:
        chance.choice(victims).kill()
    return bool(victims)


def _kill_budget_services(world: World) -> None:
    """Kill the budget services, so that a service that answers a repeated request must have restored its state."""
    for service in [one for one in world.services if one.role == "budget"]:
        service.process.kill()
    world.injected["request sent again after a kill"] += 1


def _zombie(world: World, chance: random.Random) -> bool:
    victims = world.processes
    if victims:
        chance.choice(victims).suspend(chance.uniform(3.0, 12.0))
    return bool(victims)


def _another_worker_joins(world: World, chance: random.Random) -> bool:
    del chance
    if len(world.workers()) < 3:
        world.start("worker")
        return True
    return False


def _worker_told_to_stop(world: World, chance: random.Random) -> bool:
    workers = world.workers()
    if len(workers) > 1:
        leaving = chance.choice(workers)
        leaving.leaving = True
        leaving.engine.stop()
        return True
    return False


def _worker_replaced(world: World, chance: random.Random) -> bool:
    """Replace a worker as a rolling upgrade does: one starts and another stops, preferably during the rebalance."""
    workers = world.workers()
    if not workers or not _another_worker_joins(world, chance):
        return False
    leaving = chance.choice(workers)
    leaving.leaving = True
    group = world.broker.group(group_of("worker"))

    def stop_in_a_rebalance(tries: int) -> None:
        if tries == 0 or group.rebalancing:
            leaving.engine.stop()
        else:
            world.loop.call_later(0.02, stop_in_a_rebalance, tries - 1)

    world.loop.call_later(chance.uniform(0.0, 2.0), stop_in_a_rebalance, chance.choice((0, 100)))
    return True


def _broker_outage(world: World, chance: random.Random) -> bool:
    seconds = chance.uniform(0.5, 6.0)
    for process in world.processes:
        process.cut(seconds)
    return True


def _compaction(world: World, chance: random.Random) -> bool:
    compacted = world.changelogs
    logs = [log for log in world.broker.logs.values() if log.topic in compacted]
    # Only these topics have slow readers, namely standby copies.
    copied = {world.topics.control, world.topics.state}
    return sum(log.compact(chance, forgets_deletions=log.topic in copied) for log in logs) > 0


def _offsets_expired(world: World, chance: random.Random) -> bool:
    """Let the workers' committed offsets expire; their changelog has their progress."""
    del chance
    group = world.broker.group(group_of("worker"))
    had = bool(group.offsets)
    group.offsets.clear()
    return had


def _budget_offsets_expired(world: World, chance: random.Random) -> bool:
    del chance
    group = world.broker.group(group_of("budget"))
    had = bool(group.offsets)
    group.offsets.clear()
    return had


def _readable(world: World, topic: str, number: int) -> list[Record]:
    return [one for one in world.broker.committed(topic, number) if not isinstance(one.value, UnreadableValue)]


def _control_event_repeated(world: World, chance: random.Random) -> bool:
    """Repeat a control event after later ones."""
    number = chance.randrange(PARTITIONS)
    readable = _readable(world, world.topics.control, number)
    if readable:
        world.repeat_control(chance.choice(readable))
    return bool(readable)


def _charge_repeated(world: World, chance: random.Random) -> bool:
    charges = _readable(world, world.topics.charges, 0)
    if charges:
        record = chance.choice(charges)
        world.broker.append(world.topics.charges, 0, record.key or b"", record.value)
    return bool(charges)


def _unreadable_batch(world: World, chance: random.Random) -> bool:
    """Write an unreadable batch to an input, which causes a dead letter, or to control, where it is skipped."""
    topics = world.topics
    topic = chance.choice((topics.queries, topics.requests, topics.charges, topics.control))
    world.append_unreadable(topic, chance.randrange(world.broker.partitions[topic]))
    return True


UPSETS: tuple[Upset, ...] = (
    _kill,
    _zombie,
    _another_worker_joins,
    _worker_told_to_stop,
    _worker_replaced,
    _broker_outage,
    _compaction,
    _offsets_expired,
    _budget_offsets_expired,
    _control_event_repeated,
    _charge_repeated,
    _unreadable_batch,
)
