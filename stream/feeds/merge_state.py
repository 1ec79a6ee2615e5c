"""A standing stream on its way from partials to questions: which windows are whole, in their order."""

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
from schemas.wire import UNREADABLE, Codec, struct
from stream.feeds.feed_definitions import FeedDefinitions, StandingDefinition
from stream.privacy.accuracy.counting_trees import CountingTree, following, window_number
from stream.privacy.planning.running_count_plans import tree_of
from stream.processing.control_order import OVER, asked_span
from stream.processing.protocol import LaterVersionError, Outputs, RecordLike
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of


@dataclass(slots=True)
class RunningSums:
    """What is remembered of ``windows`` windows. A window that was passed over counts nothing.

    ``lost`` says that what was remembered is gone, here or of people in a partition: the numbers so far would be other ones than
    were told, or one person would count for more than the total. Nothing is taken in any more.
    """

    windows: int = 0
    lost: bool = False
    groups: list[list[int]] = field(default_factory=list)
    """Of each group, the sum over each node."""
    kept: dict[int, Any] = field(default_factory=dict)
    """What a changelog has of nodes, by place, until it is needed."""

    def add(self, told: StandingDefinition, start: int, counts: Sequence[int]) -> range:
        """Take in a window; gives the places of the nodes that have changed, none beyond the horizon."""
        calibration, standing = told.calibration, told.standing
        if not isinstance(calibration, RunningCountCalibration) or standing.begins is None:
            raise TypeError("a running count has a calibration of its own, and its first window is known")
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
        """The sums over one node, one a group."""
        return tuple(sums[place] for sums in self.groups)

    def _resume(self, tree: CountingTree) -> None:
        """Take in what was kept; what is left of places that are no more is passed over."""
        kept, self.kept = self.kept, {}
        if kept and not self.groups:
            rows = [kept[place].sums for place in range(tree.kept(self.windows) + 1)]
            self.groups = [list(sums) for sums in zip(*rows, strict=True)]


Partials = dict[int, Any]
"""What of a window is there, by partition of the topic."""


@dataclass(slots=True)
class Merged:
    """A stream's open windows.

    A partition tells of its windows in their order, each once. So a window that it has not told of is not told of any more once
    it tells of a later one, as after a stream that had ended was extended: such a window is passed over.
    """

    incarnation: str
    partitions: int
    reached: int = -1
    open: dict[int, Partials] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    running: RunningSums = field(default_factory=RunningSums)

    def is_news(self, partial: Any) -> bool:
        """Whether a partition tells of a window for the first time."""
        return bool(partial.start > self.latest.get(partial.partition, self.reached))

    def take(self, partial: Any) -> None:
        """Take in news."""
        self.open.setdefault(partial.start, {})[partial.partition] = partial
        self.latest[partial.partition] = partial.start

    def forget(self) -> None:
        """Drop what was told of windows that are open."""
        self.open.clear()
        self.latest.clear()

    def whole(self) -> list[int]:
        """The open windows that no partition tells more of, in their order."""
        told = min(self.latest.get(number, self.reached) for number in range(self.partitions))
        return sorted(start for start in self.open if start <= told)

    def close(self, start: int) -> Partials:
        """What there is of the next window, which is open no more."""
        self.reached = start
        return self.open.pop(start)

    def due(self) -> Iterator[tuple[int, Partials]]:
        """The windows that no partition tells more of, in their order; they are open no more."""
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
    """The key of what one partition has in an open window."""
    return f"{PARTIAL}|{stream}|{start}|{partition}".encode()


def node_key(stream: str, place: int) -> bytes:
    """The key of a node of a running count."""
    return f"{NODE}|{stream}|{place}".encode()


def kept_stream(merged: Merged) -> bytes:
    """How far a stream is."""
    running = merged.running
    return _encode(
        _WireStream(merged.incarnation, merged.partitions, merged.reached, running.windows, running.lost)
    )


def kept_node(merged: Merged, place: int) -> bytes:
    """A node of a stream's running count."""
    return _encode(_WireNode(merged.incarnation, merged.running.node(place)))


def kept_progress(offset: int) -> bytes:
    """How far the input has been taken in."""
    return _encode(_WireProgress(offset))


def read_kept(record: RecordLike, decode: Any) -> Any:
    """What was kept; LaterVersionError if this version cannot read it."""
    try:
        return decode(record.value)
    except UNREADABLE:
        raise LaterVersionError(record) from None


class WaitingWindows:
    """Which streams may have such windows.

    These are asked in the order in which they close, over all streams, as partitions tell of them. So how many had come when control told
    of a period moves nothing in it.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def ready(
        self,
        told: Mapping[str, StandingDefinition],
        streams: Mapping[str, Merged],
        is_ready: Callable[[StandingDefinition, int], bool],
    ) -> Iterator[tuple[str, int]]:
        """The windows that may be asked now, each of which is closed before the next is looked at; behind one that waits on, all of its source do."""
        order: list[Iterator[tuple[int, str, int]]] = []
        sources: set[str] = set()
        for name in sorted(self.names):
            known, merged = told.get(name), streams.get(name)
            if known is None or merged is None or not known.asks or not known.source.has_periods:
                self.names.discard(name)
            elif starts := merged.whole():
                order.append(_closing(known, starts))
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


def _closing(told: StandingDefinition, starts: Sequence[int]) -> Iterator[tuple[int, str, int]]:
    """Windows of a stream behind the moments at which they close."""
    open_ms = told.standing.open_ms
    return ((start + open_ms, told.spec.stream, start) for start in starts)


_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)


class MergePeriods:
    """What merging asks of the ledger, each under an id of its own: asked twice, it is done once."""

    def __init__(self, topics: Topics, definitions: FeedDefinitions) -> None:
        self._topics = topics
        self._definitions = definitions
        self._asking: dict[str, str] = {}
        """The periods that are asked for, and the stream that asks."""
        self._ending: dict[str, set[str]] = {}
        """What of each stream is asked to be closed."""
        self._seen = -1

    def is_ready(self, outputs: Outputs, told: StandingDefinition, start: int) -> bool:
        """Whether it is known what a window asks; if not, its period is asked for."""
        if not told.source.has_periods or not is_asked(told, start):
            return True
        source, stream = _names(told, start)
        if self._definitions.knows(source, stream):
            self._asking.pop(source, None)
            return True
        asking = self._definitions.find(told.source.source, self._asking.get(source, ""))
        if asking is None or not asking.asks:
            # Of a stream that has ended nobody knows whether it was in time: so each asks for itself.
            self._asking[source] = told.spec.stream
            begins = written_moment(period_of(told, start))
            request = f"begin/{told.incarnation}@{begins}"
            self._write(outputs, BeginPeriod(request=request, source=told.source.source, start=begins))
        return False

    def asked_by(self, told: StandingDefinition, start: int) -> StandingDefinition | None:
        """The stream that a window asks; None where it asks none: it reaches into two periods or lies behind a
        horizon, or the stream has ended there.
        """
        if not told.source.has_periods:
            return told
        found = self._definitions.find(*_names(told, start)) if is_asked(told, start) else None
        return found if found is not None and found.asks else None

    def take_news(self) -> bool:
        """Whether control has told of anything since the last call."""
        before, self._seen = self._seen, self._definitions.version
        return before != self._seen

    def passed(self, outputs: Outputs, told: StandingDefinition, before: int, reached: int) -> None:
        """Close a stream's periods that are over if its windows have been asked over an edge."""
        if told.source.has_periods and _asked_to(told, before) != _asked_to(told, reached):
            self.close(outputs, told, reached)

    def close(self, outputs: Outputs, told: StandingDefinition, reached: int) -> None:
        """Close a stream's periods that lie a whole one behind, now that all windows of one more have been asked.

        Control may tell of one of them later than of the next, so this is to be looked at with all that it tells.
        """
        if not told.source.has_periods:
            return
        model, behind = told.spec.stream, _asked_to(told, reached) - 2 * told.source.period_ms
        asking = self._definitions.asking_in_periods(told.source.source, model)
        over = {one.spec.stream: one for one in asking if moment_ms(one.source.starts or "") <= behind}
        for name in sorted(over.keys() - self._ending.get(model, set())):
            source = over[name].source.source
            self._write(outputs, CloseStream(request=f"end/{name}", source=source, stream=name, reason=OVER))
        self._ending[model] = set(over)

    def _write(self, outputs: Outputs, request: BeginPeriod | CloseStream) -> None:
        key = request.source.encode()
        message = (key, _requests.encode(request), ())
        outputs.add(self._topics.requests, partition_of(key, LEDGER_PARTITIONS), message)


def is_asked(told: StandingDefinition, start: int) -> bool:
    """Whether a window is asked of its period: it lies in it, and within the horizon that a running count has in each."""
    reach = asked_span(told.source, told.spec.mechanism, told.standing.window)
    return lies_in_one(told, start) and start - period_of(told, start) < reach


def lies_in_one(told: StandingDefinition, start: int) -> bool:
    """Whether a window lies in one period: one that reaches over an edge would have what a person did in two."""
    return start + told.standing.window.size_ms <= period_of(told, start) + told.source.period_ms


def period_of(told: StandingDefinition, start: int) -> int:
    """The beginning of the period that a moment lies in."""
    return start - start % told.source.period_ms


def _asked_to(told: StandingDefinition, reached: int) -> int:
    """Up to where all windows of periods have been asked: the edge behind or at the end of the one that was reached."""
    length = told.source.period_ms
    return (reached + told.standing.window.size_ms) // length * length


def _names(told: StandingDefinition, start: int) -> tuple[str, str]:
    """What the account and the stream of a window's period are called."""
    period = period_of(told, start)
    return named_at(told.source.source, period), named_at(told.spec.stream, period)
