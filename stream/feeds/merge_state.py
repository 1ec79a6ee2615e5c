"""Merging's state: open windows, running sums, waiting windows and requested periods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import Any, Final

import msgspec

from schemas import (
    MAX_DEFINITION_BYTES,
    BeginPeriod,
    CloseStream,
    MergedStream,
    NodeSums,
    Progress,
    Request,
    RunningCountCalibration,
    moment_ms,
    named_at,
    written_moment,
)
from schemas.wire import Codec, struct
from stream.feeds.feed_definitions import FeedDefinitions, StandingDefinition
from stream.privacy.accuracy.counting_trees import CountingTree, following, window_number
from stream.privacy.planning.release_plans import tree_of
from stream.processing.control_order import PERIOD_OVER_REASON, covered_ms
from stream.processing.protocol import Outputs
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of


@dataclass(slots=True)
class RunningSums:
    """The sums of a running count after ``windows`` windows; a skipped window adds nothing.

    ``lost`` means that these sums, or a partition's counts of people, were lost. Later numbers
    would contradict earlier ones or exceed a person's total, so that nothing is added any more.
    """

    windows: int = 0
    lost: bool = False
    groups: list[list[int]] = field(default_factory=list)
    """For each group, the sums over the nodes of the counting tree."""
    kept: dict[int, Any] = field(default_factory=dict)
    """Changelog records of nodes by place, until they are needed."""

    def add(self, told: StandingDefinition, start: int, counts: Sequence[int]) -> range:
        """Add a window; return the places of changed nodes: none if lost or beyond the horizon."""
        calibration, standing = told.calibration, told.standing
        if not isinstance(calibration, RunningCountCalibration) or standing.begins is None:
            raise TypeError("a running count needs its calibration and its first window")
        tree = tree_of(calibration)
        self._resume(tree)
        first = standing.window.first_from(moment_ms(standing.begins))
        number = window_number(start, first, standing.window.every_ms)
        self.lost = self.lost or (not self.windows and number > 1)
        if self.lost or not self.windows < number <= calibration.steps:
            return range(0)
        sums = self.groups or [[] for _ in counts]
        nothing, lowest = [0] * len(counts), tree.kept(number)
        for one in range(self.windows + 1, number + 1):
            kept, news = tree.kept(one), counts if one == number else nothing
            sums = [following(before, kept, count) for before, count in zip(sums, news, strict=True)]
            lowest = min(lowest, kept)
        self.windows, self.groups = number, sums
        return range(lowest, tree.kept(number) + 1)

    def node(self, place: int) -> tuple[int, ...]:
        """Return the sums over one node, by group."""
        return tuple(sums[place] for sums in self.groups)

    def _resume(self, tree: CountingTree) -> None:
        kept, self.kept = self.kept, {}
        if kept and not self.groups:
            rows = [kept[place].sums for place in range(tree.kept(self.windows) + 1)]
            self.groups = [list(sums) for sums in zip(*rows, strict=True)]


Partials = dict[int, Any]
"""The partials of a window, by partition of the topic."""


@dataclass(slots=True)
class MergedStreamState:
    """A stream's state in merging: its open windows, and ``reached``, the last closed window.

    A partition publishes its windows in order, each once. So if it skips a window, as after an
    extension of an ended stream, it never publishes that window.
    """

    incarnation: str
    partitions: int
    reached: int = -1
    open: dict[int, Partials] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    running: RunningSums = field(default_factory=RunningSums)

    def is_news(self, partial: Any) -> bool:
        """Return True if the partition publishes this window for the first time."""
        return bool(partial.start > self.latest.get(partial.partition, self.reached))

    def add_partial(self, partial: Any) -> None:
        """Add a new partial."""
        self.open.setdefault(partial.start, {})[partial.partition] = partial
        self.latest[partial.partition] = partial.start

    def forget(self) -> None:
        """Drop the partials of open windows."""
        self.open.clear()
        self.latest.clear()

    def whole(self) -> list[int]:
        """Return the open windows that every partition has published or skipped, in order."""
        told = min(self.latest.get(number, self.reached) for number in range(self.partitions))
        return sorted(start for start in self.open if start <= told)

    def close(self, start: int) -> Partials:
        """Close the next window and return its partials."""
        self.reached = start
        return self.open.pop(start)

    def due(self) -> Iterator[tuple[int, Partials]]:
        """Close and yield the windows of ``whole``."""
        for start in self.whole():
            yield start, self.close(start)


PARTIAL: Final = "@partial"
NODE: Final = "@node"

_WireStream: Any = struct(MergedStream)
_WireNode: Any = struct(NodeSums)
_WireProgress: Any = struct(Progress)
_encode = msgspec.json.Encoder().encode
decode_stream: Any = msgspec.json.Decoder(_WireStream).decode
decode_node: Any = msgspec.json.Decoder(_WireNode).decode
decode_progress: Any = msgspec.json.Decoder(_WireProgress).decode


def partial_key(stream: str, start: int, partition: int) -> bytes:
    """Return the key of a partition's partial of an open window."""
    return f"{PARTIAL}|{stream}|{start}|{partition}".encode()


def node_key(stream: str, place: int) -> bytes:
    """Return the key of a node of a running count."""
    return f"{NODE}|{stream}|{place}".encode()


def kept_stream(merged: MergedStreamState) -> bytes:
    """Encode the progress of a stream."""
    running = merged.running
    return _encode(
        _WireStream(merged.incarnation, merged.partitions, merged.reached, running.windows, running.lost)
    )


def kept_node(merged: MergedStreamState, place: int) -> bytes:
    """Encode a node of a stream's running count."""
    return _encode(_WireNode(merged.incarnation, merged.running.node(place)))


def kept_progress(offset: int) -> bytes:
    """Encode the progress in the input."""
    return _encode(_WireProgress(offset))


class WaitingWindows:
    """The streams with open windows whose periods may not have begun.

    Windows of all streams are asked in the order of their closing times. So the order within a
    period does not depend on when control begins it.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def ready(
        self,
        told: Mapping[str, StandingDefinition],
        streams: Mapping[str, MergedStreamState],
        is_ready: Callable[[StandingDefinition, int], bool],
    ) -> Iterator[tuple[str, int]]:
        """Yield windows to ask by closing time; an unready one delays its source's later ones."""
        order: list[Iterator[tuple[int, str, int]]] = []
        sources: set[str] = set()
        for name in sorted(self.names):
            known, merged = told.get(name), streams.get(name)
            if known is None or merged is None or not known.asks or not known.source.has_periods:
                self.names.discard(name)
            elif starts := merged.whole():
                open_ms = known.standing.open_ms
                order.append(iter([(start + open_ms, name, start) for start in starts]))
                sources.add(known.source.source)
            else:
                self.names.discard(name)
        for _, name, start in merge(*order):
            source = told[name].source.source
            if source in sources and not is_ready(told[name], start):
                sources.remove(source)
            if source in sources:
                yield name, start
            elif not sources:
                return


_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)


class MergePeriods:
    """Requests to begin and close periods; their ids are fixed, so that repeats have no effect."""

    def __init__(self, topics: Topics, definitions: FeedDefinitions) -> None:
        self._topics = topics
        self._definitions = definitions
        self._asking: dict[str, str] = {}
        """For each requested period, the stream whose window requested it."""
        self._ending: dict[str, set[str]] = {}
        """For each model, its periods' streams whose close was requested."""
        self._seen = -1

    def is_ready(self, outputs: Outputs, told: StandingDefinition, start: int) -> bool:
        """Return whether a window's period is known; otherwise request it."""
        if not told.source.has_periods or not is_asked(told, start):
            return True
        source, stream = _names(told, start)
        if self._definitions.knows(source, stream):
            self._asking.pop(source, None)
            return True
        asking = self._definitions.find_stream(told.source.source, self._asking.get(source, ""))
        if asking is None or not asking.asks:
            # If that stream has ended, its request may have come too late: request again.
            self._asking[source] = told.spec.stream
            begins = written_moment(period_of(told, start))
            request = f"begin/{told.incarnation}@{begins}"
            self._write(outputs, BeginPeriod(request=request, source=told.source.source, start=begins))
        return False

    def asked_by(self, told: StandingDefinition, start: int) -> StandingDefinition | None:
        """Return the stream that a window asks.

        The result is None if the window spans two periods, lies beyond a horizon, or if the stream
        has ended.
        """
        if not told.source.has_periods:
            return told
        found = self._definitions.find_stream(*_names(told, start)) if is_asked(told, start) else None
        return found if found is not None and found.asks else None

    def has_news(self) -> bool:
        """Return whether control has changed since the last call."""
        before, self._seen = self._seen, self._definitions.version
        return before != self._seen

    def passed(self, outputs: Outputs, told: StandingDefinition, before: int, reached: int) -> None:
        """Close a model's past streams if its windows have passed the end of a period."""
        if told.source.has_periods and _asked_to(told, before) != _asked_to(told, reached):
            self.close(outputs, told, reached)

    def close(self, outputs: Outputs, told: StandingDefinition, reached: int) -> None:
        """Close each stream of a model once all windows of the following period are asked as well.

        Control may define these streams in any order, so this is called after each change of
        control.
        """
        if not told.source.has_periods:
            return
        model, behind = told.spec.stream, _asked_to(told, reached) - 2 * told.source.period_ms
        asking = self._definitions.asking_in_periods(told.source.source, model)
        over = {one.spec.stream: one for one in asking if moment_ms(one.source.starts or "") <= behind}
        for name in sorted(over.keys() - self._ending.get(model, set())):
            source = over[name].source.source
            self._write(
                outputs, CloseStream(request=f"end/{name}", source=source, stream=name, reason=PERIOD_OVER_REASON)
            )
        self._ending[model] = set(over)

    def _write(self, outputs: Outputs, request: BeginPeriod | CloseStream) -> None:
        key = request.source.encode()
        message = (key, _requests.encode(request), ())
        outputs.add(self._topics.requests, partition_of(key, LEDGER_PARTITIONS), message)


def is_asked(told: StandingDefinition, start: int) -> bool:
    """Return whether a window is asked: it lies in one period, and within its horizon."""
    reach = covered_ms(told.source, told.spec.mechanism, told.standing.window)
    return lies_in_one(told, start) and start - period_of(told, start) < reach


def lies_in_one(told: StandingDefinition, start: int) -> bool:
    """Return whether a window lies in one period, so that no person counts in two."""
    return start + told.standing.window.size_ms <= period_of(told, start) + told.source.period_ms


def period_of(told: StandingDefinition, start: int) -> int:
    """Return the start of the period in which a window starts."""
    return start - start % told.source.period_ms


def _asked_to(told: StandingDefinition, reached: int) -> int:
    """Return the end of the last period whose windows have all been asked."""
    length = told.source.period_ms
    return (reached + told.standing.window.size_ms) // length * length


def _names(told: StandingDefinition, start: int) -> tuple[str, str]:
    period = period_of(told, start)
    return named_at(told.source.source, period), named_at(told.spec.stream, period)
