"""People's events for a live topic, and the questions that must follow from them, computed event by event."""

from __future__ import annotations

import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from aiokafka.partitioner import murmur2

from schemas import EventsSource, RegisterSource, RunningCount, RunningCountCalibration, StreamSpec
from schemas.windows import format_moment, moment_ms, span_ms
from stream.privacy.mechanisms.private_values import decode_text_counts
from stream.privacy.planning.release_plans import CountingTree, tree_of
from stream.processing.protocol import RecordLike
from stream.processing.topic_names import Topics, partition_of
from tests.chaos.replay import read_control

Logs = Mapping[tuple[str, int], Sequence[RecordLike]]
Gaps = Sequence[tuple[int, int | None]]
"""Pairs of two stamps of control records: of a stream's end, and of the extension that followed, if any."""

GROUPS = ("a", "b", "c")
VALUES = 10
"""The number of declared values; they begin at 0."""
PEOPLE = 12
LARGEST = 64 * 1024
"""Most bytes of an event that a feed reads."""
BEGINS = 1_767_225_600_000
"""2026-01-01T00:00:00Z: the beginning in tests that set the clock themselves."""
YESTERDAY = int(time.time()) // 86_400 * 86_400_000 - 86_400_000
"""The start of yesterday, for tests on a real clock: a stream that began long ago would ask too many windows."""
FAR = 10**10
"""Milliseconds by which no asked window may close after the last closed window."""

TOTAL = 6
"""How many events of one person count over a running count's whole horizon: fewer than most people send."""


def live_source(topic: str, clock: str, idle: str = "1s", **changed: str) -> EventsSource:
    """Return a live topic that bounds people's events; ``changed`` replaces fields of its declaration."""
    declared: dict[str, Any] = {
        "kind": "events",
        "source": "visits",
        "topic": topic,
        "neighbors": "add-remove",
        "epsilon": 100.0,
        "delta": 1e-3,
        "person": "who.id",
        "time": "at",
        "attributes": {"group": list(GROUPS), "value": {"kind": "integers", "minimum": 0, "maximum": VALUES - 1}},
        "texts": {"note": {"kind": "text", "max_length": 8}},
        "contribution": 2,
        "total": TOTAL,
        "clock": clock,
        "idle": idle,
        **changed,
    }
    request = {"request": "source", "kind": "register", "source": declared}
    source = RegisterSource.model_validate(request, strict=False).source
    assert isinstance(source, EventsSource)
    return source


def standing_specs(size: str, every: str, begins: int, horizon: int = 10) -> list[StreamSpec]:
    """Return a standing stream of each kind; the running count has ``horizon`` windows."""
    hopping = {"window": {"size": size, "every": every}, "begins": format_moment(begins)}
    plain = {"window": {"size": every}, "begins": format_moment(begins)}
    sparse = {"kind": "above_threshold", "threshold": 3.0, "cutoff": 500}
    wanted: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("visits-high", sparse, {**hopping, "where": "value >= 5", "by": ["group"]}),
        ("visits-late", sparse, {**plain, "lateness": every}),
        ("visitors", {"kind": "laplace", "answers": 900}, {**plain, "count": "people", "by": ["group"]}),
        (
            "visits-all",
            {"kind": "histogram", "attributes": ["group"], "answers": 300},
            {**plain, "by": ["group"], "top": 2},
        ),
        ("visits-so-far", {"kind": "running_count", "steps": horizon}, {**plain, "by": ["group"]}),
        ("visits-sum", {"kind": "laplace", "answers": 900}, {**hopping, "count": {"sum": "value"}}),
        ("visits-typical", {"kind": "laplace", "answers": 900}, {**plain, "quantile": "value", "by": ["group"]}),
        ("visits-notes", {"kind": "unknown_groups", "answers": 300}, {**hopping, "by": ["note"]}),
        ("notes-so-far", {"kind": "running_count", "steps": horizon}, {**plain, "by": ["note"]}),
    ]
    return [
        StreamSpec.model_validate(
            {
                "stream": name,
                "source": "visits",
                "epsilon": 10.0,
                "delta": 1e-5 if standing.get("by") == ["note"] else 0.0,
                "expected_queries": 500,
                "mechanism": mechanism,
                "standing": standing,
            },
            strict=False,
        )
        for name, mechanism, standing in wanted
    ]


def note_of(value: int) -> str | None:
    """Return the note of an event with this value; one value has no note, and another value has one that is too long."""
    return None if value == 11 else "too long a note" if value == 10 else f"note {value % 5}"


class Visits:
    """People's events for a topic of so many partitions; some events are late, and some are wrong."""

    def __init__(self, partitions: int, seed: int) -> None:
        self._partitions = partitions
        self._chance = random.Random(seed)
        self._wrong: set[tuple[int, bytes]] = set()

    @property
    def wrong(self) -> int:
        """The number of different wrong events."""
        return len(self._wrong)

    def is_wrong(self, value: bytes, partition: int) -> bool:
        """Return whether an event was sent as a wrong event, which feeds must set aside."""
        return (partition, value) in self._wrong

    def next(self, now: int, back: int) -> tuple[int, bytes, bytes]:
        """Return partition, key and value of an event at most ``back`` milliseconds before ``now``."""
        partition, key, value, wrong = self._made(now, back)
        if wrong:
            self._wrong.add((partition, value))
        return partition, key, value

    def _made(self, now: int, back: int) -> tuple[int, bytes, bytes, bool]:
        chance = self._chance
        person = f"person-{chance.randrange(PEOPLE)}"
        event: dict[str, Any] = {
            "who": {"id": person},
            "at": now - int(back * chance.random() ** 3),
            "group": chance.choice(GROUPS),
            "value": chance.randrange(12),
        }
        if (note := note_of(event["value"])) is not None:
            event["note"] = note
        key = person.encode()
        partition = _home(person, self._partitions)
        fate = chance.random()
        if fate < 0.01:
            event["at"] = now + 10**9
        elif fate < 0.02:
            del event["who"]
        elif fate < 0.03:
            event["group"] = "nobody's"
        elif fate < 0.04:
            return partition, key, b'{"who":{"id":"person-1"}', True
        elif fate < 0.05 and self._partitions > 1:
            partition = (partition + 1) % self._partitions
        return partition, key, json.dumps(event).encode(), fate < 0.05


@dataclass(frozen=True, slots=True)
class EventAtClock:
    """An event that may count, with its offset, the clock at it, and its timestamp or that of the last mark before it."""

    offset: int
    event: dict[str, Any]
    clock: int
    stamp: int


def events_of(logs: Logs, source: EventsSource, partitions: int) -> list[list[EventAtClock]]:
    """Return the events of each partition that may count."""
    return [list(_events(logs, source, number, partitions)) for number in range(partitions)]


def violations_of_windows(
    logs: Logs,
    topics: Topics,
    source: EventsSource,
    specs: Sequence[StreamSpec],
    partitions: int,
    until: int,
    events: Sequence[Sequence[EventAtClock]] | None = None,
    gaps: Mapping[str, Gaps] | None = None,
) -> list[str]:
    """Return the violations in the questions of standing streams; ``until`` is the clock, which decides which windows are closed.

    ``source`` may be the account of a period, with that period's streams; the ``events`` of all periods are the same. ``gaps`` has
    each stream's gaps; without it, they are read from control's log.
    """
    found: list[str] = []
    if events is None:
        events = events_of(logs, source, partitions)
    for spec in specs:
        if not _control(logs, topics, spec):
            found.append(f"{spec.stream}: is granted, and there is no control event of it")
            continue
        key = spec.stream.encode()
        place = (topics.queries, partition_of(key, topics.partitions))
        asked = [json.loads(one.value or b"") for one in logs.get(place, ()) if one.key == key]
        breaks = gaps_of(logs, topics, spec.stream) if gaps is None else gaps.get(spec.stream, ())
        epochs = [_epochs(logs, source, spec, breaks, number) for number in range(partitions)]
        wanted = list(_expected_questions(logs, topics, source, spec, events, until, len(asked), epochs))
        due = sum(closes <= until for _, _, closes in wanted)
        if due > len(asked):
            found.append(f"{spec.stream}: {due - len(asked)} of {due} questions were not asked")
        if len(asked) > len(wanted):
            found.append(f"{spec.stream}: asked {len(asked)} questions, and there are only {len(wanted)}")
        for question, (identifier, numbers, _) in zip(asked, wanted, strict=False):
            shown = question.get("values", [question.get("value")])
            if "texts" in question:
                shown = decode_text_counts(question["texts"])
            if question["id"] != identifier:
                found.append(f"{spec.stream}: asked {question['id']} where {identifier} is due")
                break
            if shown != numbers:
                found.append(f"{spec.stream}: {identifier} asks {shown}, and a plain count finds {numbers}")
    return found


def _expected_questions(
    logs: Logs,
    topics: Topics,
    source: EventsSource,
    spec: StreamSpec,
    events: Sequence[Sequence[EventAtClock]],
    until: int,
    least: int,
    epochs: Sequence[Sequence[Epoch]],
) -> Iterator[tuple[str, Any, int]]:
    """Yield the questions of a stream in order: their ids, their numbers and the closing times of their windows.

    The windows lie in an epoch of the stream in all partitions. All windows closed at ``until`` are included, and at least ``least`` ones.
    """
    standing = spec.standing
    assert standing is not None
    size, every, late = standing.window.size_ms, standing.window.every_ms, span_ms(standing.lateness)
    counts: dict[int, Counter[int | bytes | None]] = defaultdict(Counter)
    for number, some in enumerate(events):
        for start, cell, count in _counted(logs, topics, source, spec, number, some, epochs[number]):
            counts[start][cell] += count
    cells, values = len(GROUPS) if standing.by else 1, 1 if standing.quantile is None else VALUES
    first, end = asked_between(source, spec)
    start, given, tree = first, 0, _tree(logs, topics, spec)
    while start < end and (closes := start + size + late) <= (until if given >= least else until + FAR):
        moment = format_moment(start)
        if any(_epoch_at(some, start) is None for some in epochs):
            start += every
            continue
        if standing.by == ("note",):
            begun = range(start if tree is None else first, start + every, every)
            so_far = sum((counts[one] for one in begun), Counter[int | bytes | None]())
            yield moment, {text: count for text, count in so_far.items() if text is not None}, closes
        elif tree is not None:
            windows = (start - first) // every + 1
            nodes = tree.nodes(windows)
            for cell in range(cells):
                passed = [counts[first + number * every][cell] for number in range(windows)]
                yield f"{moment}/{cell}", [sum(passed[node.start : node.end]) for node in nodes], closes
        elif spec.mechanism.kind == "histogram":
            yield moment, [counts[start][cell] for cell in range(cells)], closes
        else:
            for cell in range(cells):
                numbers = [counts[start][cell * values + value] for value in range(values)]
                yield f"{moment}/{cell}", numbers, closes
        together = spec.mechanism.kind == "histogram" or standing.by == ("note",)
        given += 1 if together else cells
        start += every


def asked_between(source: EventsSource, spec: StreamSpec) -> tuple[int, float]:
    """Return the first asked window, and the moment before which all asked windows begin.

    The stream of a period is asked only windows in the period. A running count has its whole horizon in each period.
    """
    standing = spec.standing
    assert standing is not None
    window = standing.window
    first = window.first_start_from(moment_ms(standing.begins or ""))
    reach = spec.mechanism.steps * window.every_ms if isinstance(spec.mechanism, RunningCount) else math.inf
    if source.starts is None:
        return first, first + reach
    start = moment_ms(source.starts)
    return first, start + min(reach, source.period_ms - window.size_ms + 1)


def _counted(
    logs: Logs,
    topics: Topics,
    source: EventsSource,
    spec: StreamSpec,
    number: int,
    events: Sequence[EventAtClock],
    epochs: Sequence[Epoch],
) -> Iterator[tuple[int, int | bytes | None, int]]:
    """Yield what a partition adds to windows: the window's beginning, the cell or text, and the amount."""
    standing = spec.standing
    assert standing is not None
    size, every, late = standing.window.size_ms, standing.window.every_ms, span_ms(standing.lateness)
    first, end = asked_between(source, spec)
    bound = 1 if standing.count == "people" else source.contribution
    total = (source.total if isinstance(spec.mechanism, RunningCount) else None) or math.inf
    visits: Counter[tuple[str, int]] = Counter()
    lives: Counter[str] = Counter()
    effect, since = _effect(logs, topics, source, spec.stream, number)
    for one in events:
        event, clock = one.event, one.clock
        at = event["at"]
        if not first <= at < end + size or one.offset < effect:
            continue
        who, value = event["who"]["id"], min(event["value"], VALUES - 1)
        if standing.where is not None and value < 5:
            continue
        for start in range(at - at % every, at - at % every - size, -every):
            if not first <= start < end or clock >= start + size + late:
                continue
            epoch = _epoch_at(epochs, start)
            if epoch is None or one.stamp < (epoch.since if epoch.since is not None else since):
                continue
            if visits[who, start] >= bound or lives[who] >= total:
                continue
            visits[who, start] += 1
            lives[who] += 1
            cell: int | bytes | None = GROUPS.index(event["group"]) if standing.by == ("group",) else 0
            if standing.quantile is not None:
                cell = GROUPS.index(event["group"]) * VALUES + value
            if standing.by == ("note",):
                note = event.get("note", "")
                cell = note.encode() if 0 < len(note) <= 8 else None
            yield start, cell, 1 if isinstance(standing.count, str) else value


def _events(logs: Logs, source: EventsSource, number: int, partitions: int) -> Iterator[EventAtClock]:
    """Yield the events of a partition that may count, each with the clock at it."""
    clock = stamp = -1
    ahead = span_ms(source.ahead)
    for record in logs.get((source.topic, number), ()):
        if source.clock == "broker":
            clock = stamp = record.timestamp
        marks = [value for name, value in record.headers if name == "sotto-mark"]
        if marks:
            clock, stamp = max(clock, moment_ms(marks[0].decode())), max(stamp, record.timestamp)
        event = _event(record.value)
        if marks or event is None:
            continue
        if _home(event["who"]["id"], partitions) != number:
            continue
        if clock < 0 or event["at"] <= clock + ahead:
            yield EventAtClock(record.offset, event, clock, stamp)


def gaps_of(logs: Logs, topics: Topics, stream: str) -> Gaps:
    """Return the ends and extensions of a stream in control's log, which must not be compacted."""
    key = stream.encode()
    found: list[tuple[int, int | None]] = []
    for record in logs.get((topics.control, partition_of(key, topics.partitions)), ()):
        if record.key != key or not record.value:
            continue
        is_open, in_gap = json.loads(record.value)["kind"] == "opened", bool(found) and found[-1][1] is None
        if is_open and in_gap:
            found[-1] = found[-1][0], record.timestamp
        elif not is_open and not in_gap:
            found.append((record.timestamp, None))
    return found


@dataclass(frozen=True, slots=True)
class Epoch:
    """The first and last window that a partition counts for a stream's epoch; after an extension, events count from ``since`` on."""

    first: float
    last: float
    since: int | None


def _epochs(logs: Logs, source: EventsSource, spec: StreamSpec, gaps: Gaps, number: int) -> list[Epoch]:
    """Return the epochs of a stream in a partition."""
    standing = spec.standing
    assert standing is not None
    open_ms = standing.window.size_ms + span_ms(standing.lateness)
    epochs, first, since = [], -math.inf, None
    for end, again in gaps:
        closed = _clock_before(logs, source, number, end + span_ms(source.idle))
        epochs.append(Epoch(first, closed - open_ms, since))
        if again is None:
            return epochs
        since = again + span_ms(source.idle)
        first = _clock_before(logs, source, number, since)
        if source.clock == "marks":
            first += span_ms(source.ahead) + 1
    return [*epochs, Epoch(first, math.inf, since)]


def _epoch_at(epochs: Sequence[Epoch], start: int) -> Epoch | None:
    return next((one for one in epochs if one.first <= start <= one.last), None)


def _clock_before(logs: Logs, source: EventsSource, number: int, stamp: int) -> float:
    """Return a partition's clock just before its first record with this stamp or a later one; marks advance the clock."""
    if source.clock == "broker":
        return stamp
    clock = -1
    for record in logs.get((source.topic, number), ()):
        for name, value in record.headers:
            if name == "sotto-mark":
                if record.timestamp >= stamp:
                    return clock
                clock = max(clock, moment_ms(value.decode()))
    return math.inf


def _control(logs: Logs, topics: Topics, spec: StreamSpec) -> list[bytes]:
    """Return all control events of a stream."""
    key = spec.stream.encode()
    log = logs.get((topics.control, partition_of(key, topics.partitions)), ())
    return [one.value for one in log if one.key == key and one.value]


def _tree(logs: Logs, topics: Topics, spec: StreamSpec) -> CountingTree | None:
    """Return the counting tree of a running count according to its grant; None for other streams."""
    if not isinstance(spec.mechanism, RunningCount):
        return None
    calibration = read_control(_control(logs, topics, spec)[0]).calibration
    assert isinstance(calibration, RunningCountCalibration)
    return tree_of(calibration)


def _effect(logs: Logs, topics: Topics, source: EventsSource, stream: str, number: int) -> tuple[int, int]:
    """Return the offset and the timestamp from which a partition counts for a stream, or for the model of a period's stream.

    Its changelog has both; the timestamp is ``idle`` after that of a control event of the stream.
    """
    state, model = source.period_of or source.source, stream.partition("@")[0]
    key = f"stream|{model}".encode()
    written = [one.value for one in logs.get((topics.feed_state(state), number), ()) if one.key == key]
    kept = [json.loads(value) for value in written if value]
    if not kept:
        return 0, -1
    first = next(one for one in kept if one["offset"] == kept[-1]["offset"])
    since = first.get("since" if first.get("own") is None else "own_since", -1)
    if since >= 0:
        control = logs.get((topics.control, partition_of(model.encode(), topics.partitions)), ())
        times = {one.timestamp for one in control if one.key == model.encode()}
        assert since - span_ms(source.idle) in times, (
            f"{stream} counts since {since}, when control had nothing of it"
        )
    return int(first["offset"]), since


@lru_cache(maxsize=4096)
def _home(person: str, partitions: int) -> int:
    """Return the partition of a person."""
    return int(murmur2(person.encode()) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=1 << 16)
def _event(value: bytes | None) -> dict[str, Any] | None:
    try:
        event = json.loads(value or b"")
    except ValueError:
        return None
    if len(value or b"") > LARGEST or not isinstance(event, dict):
        return None
    if not event.get("who", {}).get("id") or event["group"] not in GROUPS:
        return None
    return event
