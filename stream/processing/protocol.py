"""The interface between processors and the engines that run them.

A processor is a deterministic state machine over one partition. It is restored from changelogs, processes batches of
records, changes its state and returns outputs. It does not depend on Kafka. An engine writes the outputs of a batch and
the new input position in one transaction. After any failure it discards the processor and restores another one.

An older control event of a stream never replaces a later one (``is_stale``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

from schemas import TrailHead
from schemas.wire import DECODE_ERRORS, MalformedEventError
from stream.diagnostics import LoggableError

Headers = Sequence[tuple[str, bytes]]
Decoded = TypeVar("Decoded")


class RecordLike(Protocol):
    """The fields of a Kafka record that processors read."""

    @property
    def topic(self) -> str: ...  # noqa: D102
    @property
    def partition(self) -> int: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102
    @property
    def timestamp(self) -> int: ...  # noqa: D102
    @property
    def key(self) -> bytes | None: ...  # noqa: D102
    @property
    def value(self) -> bytes | None: ...  # noqa: D102
    @property
    def headers(self) -> Headers: ...  # noqa: D102


class Record(NamedTuple):
    """A record outside Kafka, for the in-memory driver."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


Message = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers of an output record; the value None deletes the key."""


class Messages(Collection[Message]):
    """Messages to one partition, in order; ``parts`` are lists, and columns that are not copied."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[Collection[Message]] = []

    def add(self, message: Message) -> None:
        """Add one message."""
        if self.parts and isinstance(last := self.parts[-1], list):
            last.append(message)
        else:
            self.parts.append([message])

    def extend(self, messages: Collection[Message]) -> None:
        """Add several messages."""
        if messages:
            self.parts.append(list(messages) if isinstance(messages, list) else messages)

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self.parts)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __contains__(self, message: object) -> bool:
        return any(message in part for part in self.parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Collection) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # a mutable collection has no hash


@dataclass(slots=True)
class Outputs:
    """Messages of one step by topic and partition; ``busy`` is the number of questions refused as busy."""

    messages: dict[tuple[str, int], Messages] = field(default_factory=dict)
    busy: int = 0

    def add(self, topic: str, partition: int, message: Message) -> None:
        """Add one message."""
        self._messages_to(topic, partition).add(message)

    def extend(self, topic: str, partition: int, messages: Collection[Message]) -> None:
        """Add several messages to one partition."""
        self._messages_to(topic, partition).extend(messages)

    def _messages_to(self, topic: str, partition: int) -> Messages:
        target = (topic, partition)
        if (messages := self.messages.get(target)) is None:
            messages = self.messages[target] = Messages()
        return messages

    def __iter__(self) -> Iterator[tuple[str, int, Messages]]:
        return ((topic, partition, messages) for (topic, partition), messages in self.messages.items() if messages)

    def __bool__(self) -> bool:
        return any(self.messages.values())


PROGRESS_KEY = b"@progress"
"""Key of the progress record in a changelog; stream names never start with ``@``."""

TOPIC_ID_PREFIX: Final = "topic-id "
"""Prefix of the names of progress headers with topic ids; the topic's name follows.

Versions of Sotto that do not know these headers can still read the record.
"""


def topic_id_headers(topic_ids: Mapping[str, str]) -> Headers:
    """Return the headers of a progress record for input topics with these ids."""
    return tuple((TOPIC_ID_PREFIX + topic, topic_id.encode()) for topic, topic_id in topic_ids.items())


def topic_ids_of(record: RecordLike) -> dict[str, str]:
    """Read the topic ids of a progress record; a record of an earlier version has none."""
    return {
        name.removeprefix(TOPIC_ID_PREFIX): value.decode("ascii", "replace")
        for name, value in record.headers
        if name.startswith(TOPIC_ID_PREFIX) and value
    }


class MissedRecordError(LoggableError):
    """The changelog refers to a record of a lookup topic that was not read; the next restore will read it."""


class LaterVersionError(LoggableError):
    """A changelog contains a record of a later version, so its state is unknown."""

    def __init__(self, record: RecordLike) -> None:
        super().__init__(
            f"{record.topic}, partition {record.partition}: cannot read the record at offset {record.offset}: "
            "a later version of Sotto wrote it, or another program; run that version or a later one"
        )


def decode_changelog_record(record: RecordLike, decode: Callable[[bytes], Decoded]) -> Decoded:
    """Decode a changelog record; raise LaterVersionError if this version cannot read it."""
    try:
        return decode(record.value or b"")
    except (*DECODE_ERRORS, MalformedEventError):
        raise LaterVersionError(record) from None


def keep_latest(latest: dict[bytes, RecordLike], records: Iterable[RecordLike]) -> None:
    """Add changelog records to ``latest``, by key; a record without a value deletes its key."""
    for record in records:
        key = record.key or b""
        if record.value is None:
            latest.pop(key, None)
        else:
            latest[key] = record


class _ControlIdentity(msgspec.Struct):
    incarnation: str


class _ControlSummary(msgspec.Struct):
    kind: str
    identity: _ControlIdentity
    extensions: tuple[msgspec.Raw, ...] = ()
    version: int = 1

    @property
    def rank(self) -> tuple[int, bool]:
        """The event's place in the order in which the budget service publishes a stream's events.

        Extensions and data versions grow only while a stream is open or exhausted, and the event of an
        exhausted stream has the kind ``halted``. So if two events have equal sums of extensions and
        version, the later event is the one that is not ``opened``.
        """
        return len(self.extensions) + self.version, self.kind != "opened"


_decode_control = msgspec.json.Decoder(_ControlSummary).decode
_encode_control = msgspec.json.Encoder().encode

RETIRED_PREFIX: Final = b"@retired|"
"""Prefix of the keys of ``RetiredStreams`` records; stream names never start with an at-sign."""

REPEATED_HEADER: Final = "sotto-repeated"
"""The header of a control event or ledger record that repeats an earlier one, so that its time says nothing."""


def control_summary(value: bytes) -> bytes:
    """Return a control event with only the fields that ``is_stale`` needs, in about 100 bytes."""
    return _encode_control(_decode_control(value))


def is_stale(known: bytes | None, received: bytes | None) -> bool:
    """Return True if ``received`` is an older control event than ``known`` of the same incarnation.

    Workers follow a stream's latest control event. Events are repeated or out of order only if
    another client writes to the topic; then the event with the highest ``rank`` counts.
    """
    if known is None or received is None:
        return False
    try:
        known_event, received_event = _decode_control(known), _decode_control(received)
    except DECODE_ERRORS:
        return False
    return (
        received_event.rank < known_event.rank
        and received_event.identity.incarnation == known_event.identity.incarnation
    )


PERIOD_OVER_REASON: Final = "its period is over"
"""The reason with which the stream of a period is closed after the period's last questions."""

MODEL_NOT_ASKED_REASON: Final = "each period has a stream of its own, and this one is never asked"
"""The reason why a worker does not answer a model (docs/live.md, "A period at a time"); it is not an error."""


class InputRefusedError(LoggableError):
    """An input topic is invalid and is not read until it is repaired; the message has no private data."""


@dataclass(frozen=True)
class Batch:
    """Records of one step, read by ``Processor.prepare``.

    ``needs_lookup_topics`` is True if a record has a key, such as a stream, that the processor has not read in
    a lookup topic. The engine must then read the lookup topics to their ends, and prepare the records again.
    """

    records: Sequence[RecordLike]
    needs_lookup_topics: bool = False


class Processor(Protocol):
    """One partition's state machine."""

    @property
    def inputs(self) -> Sequence[str]:
        """Topics of which each record is processed once."""

    @property
    def lookup_topics(self) -> Sequence[str]:
        """Compacted topics that are read from their beginning at each restore, and then followed."""

    @property
    def runs_in_thread(self) -> bool:
        """True if a step may be slow, for example because it counts rows; it then runs in a thread.

        It may become True when the processor applies a record of a lookup topic.
        """

    @property
    def changelog(self) -> str:
        """The compacted topic that this processor writes and is restored from."""

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Read records of a lookup topic or of the changelog; all lookup topics come before the changelog."""

    @property
    def answers_are_repeatable(self) -> bool:
        """True if a processor that is restored from an older changelog gives the same bytes as before."""

    def end_restore(self) -> Mapping[str, int]:
        """End the restore and return each input's next offset according to the changelog."""

    @property
    def topic_ids(self) -> dict[str, str]:
        """The id of each input topic at the time when the changelog's offsets were written.

        A recreated topic has another id. If the changelog has no id of a topic, the engine adds it, and
        later progress records contain it.
        """

    def restart_input(self, topic: str) -> None:
        """Restart an input at offset 0 after its topic was deleted and created again.

        Raises:
            InputRefusedError: the state that came from the old topic does not fit the new topic.
        """

    def apply_lookup_records(self, records: Sequence[RecordLike]) -> Outputs:
        """Process new records of the lookup topics.

        Raises:
            MissedRecordError: the restored changelog refers to these records, which the restore did not read.
        """

    def prepare(self, records: Sequence[RecordLike]) -> Batch:
        """Decode the first records of one input topic, at least one, as many as one step processes.

        The number of records depends on public facts only. The method changes no state. The batch is valid
        until the next call of ``apply_lookup_records`` or ``process``.
        """

    def process(self, batch: Any) -> Outputs:
        """Process a batch that this processor has prepared; it may be empty.

        The outputs do not depend on how the records are divided into batches.
        """

    def collect_due_outputs(self, now: float) -> Outputs:
        """Return outputs due at ``now``, in monotonic seconds; called between batches."""


@runtime_checkable
class RefusingProcessor(Protocol):
    """A processor that may lack noise keys or tables of some streams."""

    def refusals(self) -> Mapping[str, int]:
        """Return the number of open streams that are not answered, for each public reason."""


@runtime_checkable
class ReadingProcessor(Protocol):
    """A processor that reads tables in its own threads, between its steps."""

    @property
    def has_finished_readings(self) -> bool:
        """True if ``collect_due_outputs`` has work that waited for a table; the call may then be slow."""

    def cancel_readings(self) -> None:
        """Cancel all readings, because the partition is given up."""


@runtime_checkable
class AnchoredProcessor(Protocol):
    """A processor that writes the audit trail, whose head is anchored outside Kafka."""

    @property
    def trail_head(self) -> TrailHead | None:
        """The trail's head after all outputs so far; None if there is no trail."""

    def take_largest_grant(self) -> float | None:
        """Return the largest ε granted since the last call; None if nothing was granted."""


@runtime_checkable
class TimedProcessor(Protocol):
    """A processor with outputs that are due at a time, or at the end of its input."""

    def note_end_of_input(self, moment: float) -> None:
        """Note that all records before ``moment``, in seconds since 1970, have been processed."""

    @property
    def due_at(self) -> float | None:
        """Time in seconds since 1970 from which ``note_end_of_input`` can cause outputs; None if it cannot."""

    @property
    def closing_timestamp(self) -> float | None:
        """Least timestamp, in seconds since 1970, with which a record causes outputs; None if timestamps cause none."""

    @property
    def has_more_outputs(self) -> bool:
        """True if ``collect_due_outputs`` must be called again, because it did not return all due outputs."""
