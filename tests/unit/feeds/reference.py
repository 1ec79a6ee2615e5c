"""The expected counts of standing streams, computed event by event."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from schemas import EventsSource, SumOf
from schemas.windows import moment_ms, span_ms
from stream.feeds.feed_definitions import StandingDefinition
from tests.unit.feeds.topic import ArrivedRecord

ORIGINS = ["EWR", "JFK", "LGA"]
WHERES: dict[str, Callable[[dict[str, Any]], bool]] = {
    "TRUE": lambda _: True,
    "delay >= 0": lambda event: event["delay"] >= 0,
    "origin <> 'JFK' OR delay < 3": lambda event: event["origin"] != "JFK" or event["delay"] < 3,
}

StatisticNumber = dict[int, dict[int, int]]
"""The cells of each window, by its beginning."""


def event_of(record: ArrivedRecord) -> dict[str, Any] | None:
    """Return an event as its source declares it, with clamped delays; None if it is no valid event."""
    try:
        event = json.loads(record.value or b"")
    except ValueError:
        return None
    fine = isinstance(event, dict) and event.get("who") and event.get("origin") in ORIGINS
    if not fine or not isinstance(event.get("at"), int) or not isinstance(event.get("delay"), int):
        return None
    return {**event, "delay": min(max(event["delay"], -5), 10)}


def clocks(about: EventsSource, records: Sequence[ArrivedRecord], ends: dict[int, int]) -> list[int]:
    """Return the topic's clock at each record and after the last one; ``ends`` has the feed's own time before some of the records."""
    now, found = -1, []
    for place in range(len(records) + 1):
        if about.clock == "broker":
            now = max(
                now,
                ends.get(place, -1) - span_ms(about.idle),
                records[place].timestamp if place < len(records) else -1,
            )
        elif place < len(records):
            marks = [int(value) for name, value in records[place].headers if name == "sotto-mark"]
            now = max([now, *marks])
        found.append(now)
    return found


def found_by(
    about: EventsSource,
    stream: StandingDefinition,
    records: Sequence[ArrivedRecord],
    ends: dict[int, int],
    effect: int,
) -> StatisticNumber:
    """Return all windows of a stream that are finally closed, if a feed reads the stream's opening before the record ``effect``."""
    standing = stream.standing
    size, every, lateness = standing.window.size_ms, standing.window.every_ms, span_ms(standing.lateness)
    first = standing.window.first_start_from(moment_ms(standing.begins or ""))
    horizon = getattr(stream.spec.mechanism, "steps", None)
    total = about.total if horizon is not None else None
    is_people, is_sum = standing.count == "people", isinstance(standing.count, SumOf)
    now = clocks(about, records, ends)
    bounds = _Bounds(1 if is_people else about.contribution, total)
    windows: dict[int, Counter[int]] = defaultdict(Counter)
    for place, event in _countable(about, stream, records, now, effect):
        latest = event["at"] - event["at"] % every
        for start in range(latest, latest - size, -every):
            beyond = horizon is not None and start >= first + horizon * every
            late = now[place] >= start + size + lateness
            cell = _cell(standing.by, event)
            if start >= first and not beyond and not late and bounds.let(str(event["who"]), start):
                windows[start][cell] += event["delay"] if is_sum else 1
    closed: StatisticNumber = {}
    start = first
    while start + size + lateness <= now[-1] and (horizon is None or start < first + horizon * every):
        closed[start] = {cell: number for cell, number in sorted(windows[start].items()) if number}
        start += every
    return closed


class _Bounds:
    """The number of times that each person was counted, in each window and in all windows together."""

    def __init__(self, most: int, total: int | None) -> None:
        self._most, self._total = most, total
        self._visits: Counter[tuple[str, int]] = Counter()
        self._lives: Counter[str] = Counter()

    def let(self, who: str, start: int) -> bool:
        if self._visits[who, start] >= self._most:
            return False
        self._visits[who, start] += 1
        if self._total is not None and self._lives[who] >= self._total:
            return False
        self._lives[who] += 1
        return True


def _countable(
    about: EventsSource, stream: StandingDefinition, records: Sequence[ArrivedRecord], now: list[int], effect: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the events that satisfy the stream's condition and are not ahead, from its first counted record on."""
    since, stamps = -1, now
    if about.clock == "marks":
        is_mark = [any(name == "sotto-mark" for name, _ in record.headers) for record in records]
        stamps = list(
            accumulate((one.timestamp if mark else -1 for one, mark in zip(records, is_mark, strict=True)), max)
        )
    if effect and (about.clock == "broker" or now[effect - 1] >= 0):
        since = defined_at(stream) + span_ms(about.idle)
    for place, record in enumerate(records):
        event = event_of(record)
        if place < effect or event is None or any(name == "sotto-mark" for name, _ in record.headers):
            continue
        if stamps[place] < since:
            continue
        clock = record.timestamp if about.clock == "broker" else now[place]
        is_ahead = clock >= 0 and event["at"] > clock + span_ms(about.ahead)
        if not is_ahead and WHERES[stream.standing.where or "TRUE"](event):
            yield place, event


def defined_at(stream: StandingDefinition) -> int:
    """Return the timestamp of the beginning of the latest epoch, or of its end if the beginning is unknown."""
    latest = stream.epochs[-1]
    return next((stamp for stamp in (latest.begins, latest.ends) if stamp is not None), 0)


def refused_by(
    about: EventsSource, streams: Sequence[StandingDefinition], records: Sequence[ArrivedRecord]
) -> list[tuple[int, str]]:
    """Return the offset and code of a topic's events with impossible dates, by the broker's clock.

    Streams with a control event at time 0 count all events of the topic.
    """
    found = []
    for record in records:
        event, stamp = event_of(record), record.timestamp
        firsts = [
            stream.standing.window.first_start_from(moment_ms(stream.standing.begins or ""))
            for stream in streams
            if defined_at(stream) == 0 or defined_at(stream) + span_ms(about.idle) <= stamp
        ]
        first = min(firsts, default=-1)
        if event is not None and event["at"] > stamp + span_ms(about.ahead):
            found.append((record.offset, "ahead"))
        elif event is not None and event["at"] < first <= stamp:
            found.append((record.offset, "before"))
    return found


def _cell(by: Sequence[str], event: dict[str, Any]) -> int:
    cell = 0
    for name in by:
        size, code = (3, ORIGINS.index(event["origin"])) if name == "origin" else (16, event["delay"] + 5)
        cell = cell * size + code
    return cell
