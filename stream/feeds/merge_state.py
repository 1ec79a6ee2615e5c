"""Merging's state: open windows, running sums, waiting windows and requested periods."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import Any, Final

import msgspec

from schemas import (
    BeginPeriod,
    CloseStream,
    MergedStream,
    NodeSums,
    Progress,
    RunningCountCalibration,
    TextTotals,
    format_moment,
    moment_ms,
    period_name,
    request_codec,
)
from schemas.wire import struct
from stream.feeds.feed_definitions import FeedDefinitions, StandingDefinition
from stream.privacy.accuracy.source_facts import covered_ms
from stream.privacy.mechanisms.private_values import (
    TextCounts,
    decode_text_counts,
    encode_text_counts,
    window_text_size,
)
from stream.privacy.planning.release_plans import next_node_sums, tree_of, window_number
from stream.processing.protocol import PERIOD_OVER_REASON, Outputs, RecordLike, decode_changelog_record
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of


@dataclass(slots=True)
class RunningSums:
    """The sums of a running count after ``windows`` windows; a skipped window adds nothing.

    ``are_lost`` is true if these sums, or a partition's counts of people, were lost. Then no further window
    is added: later sums would contradict published sums, or count a person beyond the contribution bound.
    """

    windows: int = 0
    are_lost: bool = False
    groups: list[list[int]] = field(default_factory=list)
    """For each group, the sums over the nodes of the counting tree."""
    texts: TextCounts | None = field(default_factory=dict)
    """The counts of private texts, in place of groups; None if they are too large."""
    kept: dict[int, Any] = field(default_factory=dict)
    """Changelog records of the tree's nodes by place, until ``add`` needs them."""

    def add(self, definition: StandingDefinition, start: int, counts: Sequence[int]) -> range:
        """Add a window, and return the places of the changed nodes of the counting tree.

        No places change if the sums are lost or the window lies after the last planned window.
        """
        tree = tree_of(_calibration_of(definition))
        kept_nodes, self.kept = self.kept, {}
        if kept_nodes and not self.groups:
            nodes = [kept_nodes[place].sums for place in range(tree.count_kept_nodes(self.windows) + 1)]
            self.groups = [list(sums) for sums in zip(*nodes, strict=True)]
        number = self._find_number(definition, start)
        if not number:
            return range(0)
        sums = self.groups or [[] for _ in counts]
        nothing, lowest = [0] * len(counts), tree.count_kept_nodes(number)
        for one in range(self.windows + 1, number + 1):
            kept, added = tree.count_kept_nodes(one), counts if one == number else nothing
            sums = [next_node_sums(before, kept, count) for before, count in zip(sums, added, strict=True)]
            lowest = min(lowest, kept)
        self.windows, self.groups = number, sums
        return range(lowest, tree.count_kept_nodes(number) + 1)

    def add_texts(self, definition: StandingDefinition, start: int, counts: TextCounts | None) -> bool:
        """Add the texts of a window; return False if the window is not counted (as in ``add``)."""
        number = self._find_number(definition, start)
        if not number:
            return False
        total = None if self.texts is None or counts is None else Counter(self.texts) + Counter(counts)
        self.texts = None if total is None or window_text_size(total) > definition.most_bytes else total
        self.windows = number
        return True

    def _find_number(self, definition: StandingDefinition, start: int) -> int:
        """Return a window's number from 1 on; 0 if the sums are lost or the window is not planned."""
        standing = definition.standing
        if standing.begins is None:
            raise TypeError("a running count needs its first window")
        first = standing.window.first_start_from(moment_ms(standing.begins))
        number = window_number(start, first, standing.window.every_ms)
        self.are_lost = self.are_lost or (not self.windows and number > 1)
        return 0 if self.are_lost or not self.windows < number <= _calibration_of(definition).steps else number


def _calibration_of(definition: StandingDefinition) -> RunningCountCalibration:
    if not isinstance(definition.calibration, RunningCountCalibration):
        raise TypeError("a running count needs its calibration")
    return definition.calibration


Partials = dict[int, Any]
"""The partials of a window, by partition of the topic."""


@dataclass(slots=True)
class MergedStreamState:
    """A stream's state in merging: its open windows, and ``last_closed``, the last closed window.

    A partition publishes its windows in order, each once. So it never publishes a window that it has
    skipped, for example after the extension of an ended stream.
    """

    incarnation: str
    partitions: int
    last_closed: int = -1
    open: dict[int, Partials] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    """For each partition, the start of the last window that it published."""
    running: RunningSums = field(default_factory=RunningSums)

    def is_new(self, partial: Any) -> bool:
        """Return True if the partition publishes this window for the first time."""
        return bool(partial.start > self.latest.get(partial.partition, self.last_closed))

    def add_partial(self, partial: Any) -> None:
        """Add a new partial."""
        self.open.setdefault(partial.start, {})[partial.partition] = partial
        self.latest[partial.partition] = partial.start

    def complete_windows(self) -> list[int]:
        """Return the open windows that every partition has published or skipped, in order."""
        published = min(self.latest.get(number, self.last_closed) for number in range(self.partitions))
        return sorted(start for start in self.open if start <= published)

    def close_window(self, start: int) -> Partials:
        """Close the next window and return its partials."""
        self.last_closed = start
        return self.open.pop(start)

    def close_complete_windows(self) -> Iterator[tuple[int, Partials]]:
        """Close and yield the windows of ``complete_windows``."""
        for start in self.complete_windows():
            yield start, self.close_window(start)


PARTIAL: Final = "@partial"
NODE: Final = "@node"
TEXTS: Final = "@texts"

_WireStream: Any = struct(MergedStream)
_WireNode: Any = struct(NodeSums)
_WireTexts: Any = struct(TextTotals)
_WireProgress: Any = struct(Progress)
_encode = msgspec.json.Encoder().encode
decode_stream: Any = msgspec.json.Decoder(_WireStream).decode
_decode_node: Any = msgspec.json.Decoder(_WireNode).decode
_decode_texts: Any = msgspec.json.Decoder(_WireTexts).decode
decode_progress: Any = msgspec.json.Decoder(_WireProgress).decode


def partial_key(stream: str, start: int, partition: int) -> bytes:
    """Return the key of a partition's partial of an open window."""
    return f"{PARTIAL}|{stream}|{start}|{partition}".encode()


def node_key(stream: str, place: int) -> bytes:
    """Return the key of a node of a running count."""
    return f"{NODE}|{stream}|{place}".encode()


def texts_key(stream: str) -> bytes:
    """Return the key of a running count's texts."""
    return f"{TEXTS}|{stream}".encode()


def stream_of_key(key: bytes) -> str:
    """Return the stream to which a record of the changelog belongs."""
    kind, *rest = key.decode().split("|")
    return rest[0] if rest else kind


def restore_sums(streams: Mapping[str, MergedStreamState], kind: str, key_rest: str, record: RecordLike) -> None:
    """Restore a node or the texts of a running count from a record of the changelog."""
    if kind == NODE:
        stream, _, place = key_rest.rpartition("|")
        node, merged = decode_changelog_record(record, _decode_node), streams.get(stream)
        if merged is not None and merged.incarnation == node.incarnation:
            merged.running.kept[int(place)] = node
        return
    totals, merged = decode_changelog_record(record, _decode_texts), streams.get(key_rest)
    # Until the first window of a new period, the changelog still has the texts of the period before.
    if merged is not None and merged.incarnation == totals.incarnation and merged.running.windows:
        merged.running.texts = decode_text_counts(totals.texts)


def encode_stream(merged: MergedStreamState) -> bytes:
    """Encode the progress of a stream."""
    running = merged.running
    return _encode(
        _WireStream(merged.incarnation, merged.partitions, merged.last_closed, running.windows, running.are_lost)
    )


def encode_node(merged: MergedStreamState, place: int) -> bytes:
    """Encode a node of a stream's running count."""
    return _encode(_WireNode(merged.incarnation, tuple(sums[place] for sums in merged.running.groups)))


def encode_texts(merged: MergedStreamState) -> bytes:
    """Encode the texts of a stream's running count."""
    return _encode(_WireTexts(merged.incarnation, encode_text_counts(merged.running.texts)))


def encode_progress(offset: int) -> bytes:
    """Encode the progress record with the next offset of the input."""
    return _encode(_WireProgress(offset))


def ready_windows(
    waiting: set[str],
    definitions: Mapping[str, StandingDefinition],
    streams: Mapping[str, MergedStreamState],
    is_ready: Callable[[StandingDefinition, int], bool],
) -> Iterator[tuple[str, int]]:
    """Yield windows to ask in the order of closing times; an unready window delays its source's later ones.

    ``waiting`` has the streams with open windows whose period may not have begun; others are removed from it.
    The order of windows does not depend on the moment at which a period's streams are defined.
    """
    order: list[Iterator[tuple[int, str, int]]] = []
    sources: set[str] = set()
    for name in sorted(waiting):
        known, merged = definitions.get(name), streams.get(name)
        is_asked_by_period = known is not None and known.is_open and known.source.has_periods
        if known is None or merged is None or not is_asked_by_period or not (starts := merged.complete_windows()):
            waiting.discard(name)
            continue
        open_ms = known.standing.open_ms
        order.append(iter([(start + open_ms, name, start) for start in starts]))
        sources.add(known.source.source)
    for _, name, start in merge(*order):
        source = definitions[name].source.source
        if source in sources and not is_ready(definitions[name], start):
            sources.remove(source)
        if source in sources:
            yield name, start
        elif not sources:
            return


class PeriodRequests:
    """Sends requests to begin and close periods; the requests' ids are fixed, so repeats have no effect."""

    def __init__(self, topics: Topics, definitions: FeedDefinitions) -> None:
        self._topics = topics
        self._definitions = definitions
        self._requesting_streams: dict[str, str] = {}
        """For each requested period, the stream whose window requested it."""
        self._closing_streams: dict[str, set[str]] = {}
        """For each model, its periods' streams whose close was requested."""
        self._seen_version = -1

    def is_ready(self, outputs: Outputs, definition: StandingDefinition, start: int) -> bool:
        """Return whether a window's period is known; otherwise request it."""
        if not definition.source.has_periods or not is_asked(definition, start):
            return True
        source, stream = _period_names(definition, start)
        if self._definitions.has_stream(source, stream):
            self._requesting_streams.pop(source, None)
            return True
        requesting = self._definitions.find_stream(
            definition.source.source, self._requesting_streams.get(source, "")
        )
        if requesting is None or not requesting.is_open:
            # The requesting stream may have ended before its request arrived, so this stream sends one too.
            self._requesting_streams[source] = definition.spec.stream
            begins = format_moment(period_of(definition, start))
            request = f"begin/{definition.incarnation}@{begins}"
            self._write_request(
                outputs, BeginPeriod(request=request, source=definition.source.source, start=begins)
            )
        return False

    def stream_asked_by(self, definition: StandingDefinition, start: int) -> StandingDefinition | None:
        """Return the stream that gets a window's questions.

        The result is None if the window spans two periods or lies after a running count's last
        window, or if the stream has ended.
        """
        if not definition.source.has_periods:
            return definition
        found = (
            self._definitions.find_stream(*_period_names(definition, start))
            if is_asked(definition, start)
            else None
        )
        return found if found is not None and found.is_open else None

    def has_new_definitions(self) -> bool:
        """Return whether the definitions have changed since the last call."""
        before, self._seen_version = self._seen_version, self._definitions.version
        return before != self._seen_version

    def close_past_streams(
        self, outputs: Outputs, definition: StandingDefinition, before: int, reached: int
    ) -> None:
        """Close the past periods' streams of a model if its windows have reached a new period."""
        if definition.source.has_periods and _asked_until(definition, before) != _asked_until(definition, reached):
            self.close_streams(outputs, definition, reached)

    def close_streams(self, outputs: Outputs, definition: StandingDefinition, last_closed: int) -> None:
        """Close each stream of a model once all windows of the following period are asked too.

        Control may define these streams late, so this is also called after each new definition.
        """
        if not definition.source.has_periods:
            return
        model = definition.spec.stream
        behind = _asked_until(definition, last_closed) - 2 * definition.source.period_ms
        open_streams = self._definitions.open_streams_in_periods(definition.source.source, model)
        over = {one.spec.stream: one for one in open_streams if moment_ms(one.source.starts or "") <= behind}
        for name in sorted(over.keys() - self._closing_streams.get(model, set())):
            source = over[name].source.source
            self._write_request(
                outputs, CloseStream(request=f"end/{name}", source=source, stream=name, reason=PERIOD_OVER_REASON)
            )
        self._closing_streams[model] = set(over)

    def forget_model(self, stream: str) -> None:
        """Forget a retired model."""
        self._closing_streams.pop(stream, None)

    def _write_request(self, outputs: Outputs, request: BeginPeriod | CloseStream) -> None:
        key = request.source.encode()
        message = (key, request_codec.encode(request), ())
        outputs.add(self._topics.requests, partition_of(key, LEDGER_PARTITIONS), message)


def is_asked(definition: StandingDefinition, start: int) -> bool:
    """Return whether a window is asked: it must lie in one period, within the windows that the grant pays for."""
    reach = covered_ms(definition.source, definition.spec.mechanism, definition.standing.window)
    return lies_in_one_period(definition, start) and start - period_of(definition, start) < reach


def lies_in_one_period(definition: StandingDefinition, start: int) -> bool:
    """Return whether a window lies in one period, so that no person counts in two."""
    return start + definition.standing.window.size_ms <= period_of(definition, start) + definition.source.period_ms


def period_of(definition: StandingDefinition, start: int) -> int:
    """Return the start of the period in which a window starts."""
    return start - start % definition.source.period_ms


def _asked_until(definition: StandingDefinition, reached: int) -> int:
    """Return the end of the last period whose windows have all been asked."""
    length = definition.source.period_ms
    return (reached + definition.standing.window.size_ms) // length * length


def _period_names(definition: StandingDefinition, start: int) -> tuple[str, str]:
    period = period_of(definition, start)
    return period_name(definition.source.source, period), period_name(definition.spec.stream, period)
