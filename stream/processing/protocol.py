"""What processors and the engines that run them have in common.

A processor is a deterministic state machine over one partition: restored from changelogs, fed batches of records,
it changes its state and says what to write. It knows nothing of Kafka. An engine writes the outputs of a batch, the
position reached among them, in one transaction, and on any failure throws the processor away and restores another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, Protocol, runtime_checkable

Headers = Sequence[tuple[str, bytes]]


class RecordLike(Protocol):
    """What a processor reads of a Kafka record."""

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
"""Key, value and headers of a record to be written; no value deletes the key from a compacted topic."""


class Messages(Collection[Message]):
    """Messages to one partition, in order: lists of them, and whole sequences that stay as they came."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[Collection[Message]] = []

    def add(self, message: Message) -> None:
        """Write one message."""
        if self.parts and isinstance(last := self.parts[-1], list):
            last.append(message)
        else:
            self.parts.append([message])

    def extend(self, messages: Collection[Message]) -> None:
        """Write several messages."""
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

    __hash__ = None  # type: ignore[assignment]  # it changes


@dataclass(slots=True)
class Outputs:
    """What one step writes, by topic and partition, in order; ``busy`` counts the questions that must come again."""

    messages: dict[tuple[str, int], Messages] = field(default_factory=dict)
    busy: int = 0

    def add(self, topic: str, partition: int, message: Message) -> None:
        """Write one message."""
        self._at(topic, partition).add(message)

    def extend(self, topic: str, partition: int, messages: Collection[Message]) -> None:
        """Write several messages to one partition."""
        self._at(topic, partition).extend(messages)

    def _at(self, topic: str, partition: int) -> Messages:
        place = (topic, partition)
        if (found := self.messages.get(place)) is None:
            found = self.messages[place] = Messages()
        return found

    def __iter__(self) -> Iterator[tuple[str, int, Messages]]:
        return ((topic, partition, messages) for (topic, partition), messages in self.messages.items() if messages)

    def __bool__(self) -> bool:
        return any(self.messages.values())


PROGRESS_KEY = b"@progress"
"""Key of the progress record in a changelog; no stream's name starts with an at-sign."""


TOPIC_ID: Final = "topic-id "
"""How the name of a progress record's header begins that has the id of an input; the topic's name follows.

Headers are no part of an event: a version that does not know them reads the record all the same.
"""


def with_topic_ids(topic_ids: Mapping[str, str]) -> Headers:
    """Give the headers of a progress record whose offsets are of topics with these ids."""
    return tuple((TOPIC_ID + topic, topic_id.encode()) for topic, topic_id in topic_ids.items())


def topic_ids_of(record: RecordLike) -> dict[str, str]:
    """Read the ids of the topics that a progress record's offsets are of; none if an earlier version wrote it."""
    return {
        name.removeprefix(TOPIC_ID): value.decode("ascii", "replace")
        for name, value in record.headers
        if name.startswith(TOPIC_ID) and value
    }


class TableMissedError(RuntimeError):
    """A table told of something too late for this restore to be right; the next restore finds it in its place."""


class LaterVersionError(RuntimeError):
    """A changelog holds a record that this version cannot read: nobody knows what its partition has answered."""

    def __init__(self, record: RecordLike) -> None:
        super().__init__(
            f"{record.topic}, partition {record.partition}: this version cannot read the record at offset {record.offset}, "
            "which a later one must have written; run that version or one after it"
        )


class InputRefusedError(RuntimeError):
    """An input is not as it must be, and nothing of it is taken before somebody mends it; the message quotes nothing private."""


class Processor(Protocol):
    """One partition's state machine."""

    @property
    def inputs(self) -> Sequence[str]:
        """Topics whose records are answered, each once."""

    @property
    def tables(self) -> Sequence[str]:
        """Compacted topics read from the beginning at restore and followed from there, never committed."""

    @property
    def heavy(self) -> bool:
        """Whether a step may take long, as when it counts rows: an engine then runs it beside its heartbeats.

        It may become so with what a table tells.
        """

    @property
    def changelog(self) -> str:
        """The compacted topic that this processor writes and is restored from."""

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Take in records of a table or of the changelog; all tables come before the changelog."""

    @property
    def repeatable(self) -> bool:
        """Whether events that were answered may be answered once more if the changelog is behind: with the same bytes."""

    def restored(self) -> Mapping[str, int]:
        """End the restore. Gives each input's next offset by the changelog: written with whatever was answered."""

    @property
    def topic_ids(self) -> dict[str, str]:
        """The ids of the inputs that the offsets of ``restored`` are of, as far as the changelog has them.

        The engine puts in those that are missing, and progress records have them from then on.
        """

    def recreated(self, topic: str) -> None:
        """Take an input from its beginning: the topic that was read before was deleted, and there is another of its name.

        Raises:
            InputRefusedError: what the state holds of the old topic does not go together with the new one.
        """

    def follow(self, records: Sequence[RecordLike]) -> Outputs:
        """Take in new records of the tables.

        Raises:
            TableMissedError: they name what the changelog knew and the tables did not when this state was restored.
        """

    def portion(self, records: Sequence[RecordLike]) -> int:
        """How many records of a batch, from the first, to answer in one step: no more work than one step should do.

        At least one. It tells from public facts, and changes nothing.
        """

    def process(self, records: Sequence[RecordLike]) -> Outputs:
        """Answer a batch of input records of one topic; empty batches are allowed.

        What is written does not depend on how a topic's records are cut into batches.
        """

    def idle(self, now: float) -> Outputs:
        """What is due by the clock, in seconds since the epoch; called between batches."""

    def needs_tables(self, records: Sequence[RecordLike]) -> bool:
        """Whether the tables must be up to date before this batch: it names keys they do not hold yet."""


@runtime_checkable
class Refusing(Protocol):
    """A processor that may lack what some of its streams are answered with: a noise key, or a table."""

    def refusals(self) -> Mapping[str, int]:
        """How many open streams are not answered here, by what is lacking, in words that every asker is told."""


@runtime_checkable
class Timed(Protocol):
    """A processor for which the end of its input tells the time."""

    def reached_end(self, moment: float) -> None:
        """Be told that whatever stood in the input at a moment has been taken in, in seconds since 1970."""

    @property
    def due_at(self) -> float | None:
        """The moment from which on an input that has ended makes something due, in seconds since 1970; None if none does."""

    @property
    def closes_at(self) -> float | None:
        """The moment from which on what comes makes something due, in seconds since 1970; None if that does not hang on moments."""

    @property
    def behind(self) -> bool:
        """Whether more is due by the clock than one step does: ``idle`` does more of it at each call."""
