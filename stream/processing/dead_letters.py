"""Refused events: rejections with their reasons, unreadable records, and dead letters.

Dead letters are as private as the refused events. The share of a live topic's latest events that feeds
refused is private too, because one person may send any number of events. Only operators may see it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import msgspec
from blake3 import blake3

from schemas import RejectedHeaders
from schemas.base import STRING
from schemas.wire import DECODE_ERRORS
from stream.errors import SottoError
from stream.formatting import format_count
from stream.processing.protocol import Headers, Message, RecordLike

MAX_REASON_LENGTH = 512

BUSY = "busy"
"""Code for a valid question that is refused because too much work is outstanding."""

PRICE = "price"
"""Code for a valid question whose price exceeds the rest of its grant or its ``max_price``."""


class Rejection(Exception):  # noqa: N818  (a refused event is not a program error)
    """The refusal of an event: a code from a fixed list, and a message with the remedy.

    Code and message are published. They quote nothing of the event except field names of the contract,
    declared names and positions.

    Raise a constant only ``with_traceback(None)``; otherwise it keeps the frames of all earlier raises.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message[:MAX_REASON_LENGTH]

    @property
    def reason(self) -> str:
        """Code and message in one line, as in an answer."""
        return f"{self.code}: {self.message}"


def malformed_rejection(message: str) -> Rejection:
    """Return the refusal of an event that is not valid, or does not fit its stream."""
    return Rejection("malformed", message)


class _Address(msgspec.Struct):
    id: str
    stream: str


_decode_address = msgspec.json.Decoder(_Address).decode
_decode_pairs = json.JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str).decode

_STRING_OR_CONSTANT = re.compile(STRING + rb"|NaN|-?Infinity", re.DOTALL)


def replace_nan_and_infinity(value: bytes) -> bytes:
    """Replace NaN and Infinity, which are not JSON but accepted by the parser, with null."""
    if b"NaN" not in value and b"Infinity" not in value:
        return value
    return _STRING_OR_CONSTANT.sub(lambda match: match[0] if match[0].startswith(b'"') else b"null", value)


def address_of(value: bytes | None) -> tuple[str, str] | None:
    """Return the id and stream of an event; None if one of them is missing, invalid or given twice."""
    if value is None:
        return None
    try:
        address = _decode_address(replace_nan_and_infinity(value))
        bounded = 0 < len(address.id) <= 128 and 0 < len(address.stream) <= 128
        return (address.id, address.stream) if bounded and not _has_second_address(value, address) else None
    except DECODE_ERRORS:
        return None


def _has_second_address(value: bytes, address: _Address) -> bool:
    """Return True if the event has a second id or stream with another value."""
    if value.count(b'"id"') == 1 == value.count(b'"stream"') and b"\\u" not in value:
        return False
    first = {"id": address.id, "stream": address.stream}
    return any(
        first.get(name, content) != content for name, content in _decode_pairs(value.decode(errors="replace"))
    )


DECOMPRESSED_PART_BYTES: Final = 4 * 1024 * 1024
"""Maximum number of bytes that are decompressed at once: the largest message of any topic that Sotto reads."""
MAX_DECOMPRESSED_BYTES: Final = 64 * 1024 * 1024
"""Largest decompressed size of a batch.

A larger batch is refused with all of its events. The limit is far above usual batches, because
otherwise one person's event could cause the refusal of other people's events.
"""
MAX_BATCH_RECORDS: Final = 1_000_000
"""Maximum number of records of a batch; this many of the smallest events have about ``MAX_DECOMPRESSED_BYTES``."""
MAX_RECORD_BYTES: Final = 128 * 1024
"""Largest record in a batch that is decompressed in parts: twice the largest event of a live topic."""
MAX_HEADERS: Final = 64
"""Maximum number of headers of a record; a header that takes 2 bytes in Kafka takes about 100 bytes of memory."""

INVALID_HEADER_NAME = Rejection("unreadable", "headers: a name is not UTF-8; send the event again without it")
TOO_MANY_HEADERS = Rejection("unreadable", f"headers: more than {MAX_HEADERS}; send the event again with fewer")
TOO_MANY_RECORDS = Rejection(
    "unreadable", f"batch: more than {MAX_BATCH_RECORDS:,} records; have the producer send smaller batches"
)
OVERSIZED_BATCH = Rejection(
    "unreadable",
    f"batch: cannot be decompressed, or has more than {MAX_DECOMPRESSED_BYTES // 1024**2} MiB decompressed; have the producer send smaller batches",
)
OVERSIZED_RECORD = Rejection(
    "unreadable",
    f"record: more than {MAX_RECORD_BYTES // 1024} KiB in a batch of more than {DECOMPRESSED_PART_BYTES // 1024**2} MiB decompressed; "
    "have the producer send smaller records",
)
MALFORMED_BATCH = Rejection("unreadable", "batch: the rest of its records is malformed; check the producer")


@dataclass(frozen=True)
class UnreadableBatch:
    """A batch that could not be read in whole or in part.

    ``first`` and ``last`` are its offsets; ``length`` and ``digest`` (BLAKE3) describe its bytes in Kafka.
    """

    first: int
    last: int
    codec: str
    length: int
    digest: str


class UnreadableValue(bytes):
    """Value of a record that could not be read, with the reason.

    One record represents an unreadable ``batch``: its value has the batch's first bytes, and its offset is
    the batch's last offset.
    """

    rejection: Rejection
    batch: UnreadableBatch | None

    def __new__(cls, value: bytes, rejection: Rejection, batch: UnreadableBatch | None = None) -> Self:  # noqa: D102
        unreadable = super().__new__(cls, value)
        unreadable.rejection, unreadable.batch = rejection, batch
        return unreadable


MAX_WHOLE_BYTES: Final = 1024 * 1024
"""Largest event, with key and headers, that a dead letter contains whole; larger ones are cut to the limits below."""
MAX_VALUE_BYTES: Final = 64 * 1024
MAX_KEY_BYTES: Final = 1024
MAX_HEADERS_BYTES: Final = 16 * 1024
MAX_KEPT_HEADERS: Final = MAX_HEADERS - 16
"""Maximum number of headers of an event that a dead letter keeps; it adds up to 16, within ``MAX_HEADERS``."""


def dead_letter(record: RecordLike, rejection: Rejection) -> Message:
    """Return the event's bytes and headers, with the reason in headers as Kafka Connect writes it.

    Events above ``MAX_WHOLE_BYTES`` and unread batches are cut, so that every dead letter is within Kafka's
    limit. Headers have the length and the digest of the whole value.
    """
    key, value, headers = record.key, record.value, record.headers
    size = (
        len(key or b"") + len(value or b"") + sum(len(name.encode()) + len(text or b"") for name, text in headers)
    )
    facts: dict[str, Any] = {"offset": record.offset}
    if isinstance(value, UnreadableValue) and (batch := value.batch) is not None:
        facts = {"offset": batch.first, "last_offset": batch.last, "codec": batch.codec}
        facts |= {"length": batch.length, "digest": batch.digest}
    elif size > MAX_WHOLE_BYTES:
        facts |= {"key_length": len(key or b""), "header_count": len(headers)}
        if value is not None:
            facts |= {"length": len(value), "digest": blake3(value).hexdigest()}
            value = value[:MAX_VALUE_BYTES]
        key, headers = key and key[:MAX_KEY_BYTES], _fitting_headers(headers)
    elif len(headers) > MAX_KEPT_HEADERS:
        facts["header_count"] = len(headers)
        headers = headers[:MAX_KEPT_HEADERS]
    facts |= {"topic": record.topic, "partition": record.partition}
    added = RejectedHeaders(code=rejection.code, message=rejection.message, **facts).to_kafka()
    return (key, None if value is None else bytes(value), [*headers, *added])


def _fitting_headers(headers: Headers) -> Headers:
    """Return the first headers that fit together into ``MAX_HEADERS_BYTES``."""
    kept, left_bytes = [], MAX_HEADERS_BYTES
    for name, value in headers[:MAX_KEPT_HEADERS]:
        left_bytes -= len(name.encode()) + len(value or b"") + 8
        if left_bytes < 0:
            break
        kept.append((name, value))
    return kept


_UNPAID_PREFIX: Final = f"{PRICE}: query:"
"""First words of the refusal of a question that does not request an error, because of its price."""


def says_exhausted(reason: str | None) -> bool:
    """Return True if a reason says that the grant pays for no further ordinary answer."""
    return reason is not None and reason.startswith(("exhausted:", _UNPAID_PREFIX))


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A refused event with the ``code`` and ``message`` of its refusal.

    ``topic``, ``partition`` and ``offset`` locate the event; ``key``, ``value`` and ``headers`` are its
    bytes. ``time`` is the time of the refusal in Unix seconds. If ``value`` is cut, ``length`` is the
    length of the whole value in bytes.

    Examples:
        >>> rejected = client.ask("counts", where="height > 2", outcomes=True)
        >>> [letter.reason == rejected.reason for letter in client.dead_letters()]
        [True]
    """

    topic: str
    partition: int
    offset: int
    code: str
    message: str
    time: float
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    length: int | None = None

    @property
    def reason(self) -> str:
        """``code: message``."""
        return f"{self.code}: {self.message}"


def read_dead_letter(record: RecordLike) -> DeadLetter:
    """Parse a record of the topic ``rejected``.

    Raises:
        SottoError: the record has no dead-letter headers.
    """
    try:
        facts = RejectedHeaders.from_kafka(record.headers)
    except ValueError:
        raise SottoError(
            f"{record.topic}, partition {record.partition}, offset {record.offset}: not a dead letter of Sotto; find out "
            "which other program writes to this topic"
        ) from None
    return DeadLetter(
        topic=facts.topic,
        partition=facts.partition,
        offset=facts.offset,
        code=facts.code,
        message=facts.message,
        time=record.timestamp / 1000,
        key=record.key,
        value=None if record.value is None else bytes(record.value),
        headers=tuple(record.headers[: len(record.headers) - len(facts.to_kafka())]),
        length=facts.length,
    )


LATEST_EVENTS: Final = 1_000
"""Number of events of each partition whose refused share is shown."""
MAX_REASONS: Final = 64
"""Maximum number of reasons of a partition; feeds have about twenty, and about twenty more for each attribute."""
OTHER_REASON: Final = "other"
SHOWN_SECONDS: Final = 86_400.0
"""Seconds after a topic's latest refused event during which the share is shown."""

SHARES: Final = (
    (0.9, "90 to 100 %"),
    (0.5, "50 to 90 %"),
    (0.1, "10 to 50 %"),
    (0.01, "1 to 10 %"),
    (0.001, "below 1 %"),
)
"""Ranges of refused shares: lower end and text. The lowest range includes all smaller shares above 0."""


@dataclass(frozen=True)
class RefusedShare:
    """The refused share of the latest events: ``share`` is a range as text, ``at_least`` its lower end."""

    events: int
    share: str
    at_least: float
    reason: str
    """The most frequent reason, ``code: message`` with the remedy."""
    last: float = 0.0
    """Unix time of the latest refusal; 0 if unknown."""


class PartitionRefusals:
    """Marks which of one partition's events from the offset ``begin`` on were refused, by reason.

    A mark is a bit, so an event that is added twice counts once.
    """

    def __init__(self, begin: int = 0) -> None:
        self._begin = begin
        self._end = begin
        self._marks: dict[str, int] = {}
        """For each reason a number whose bit i is set if the event at ``_end - 1 - i`` was refused."""

    @property
    def events(self) -> int:
        """The number of latest events of which the marks are kept."""
        return min(LATEST_EVENTS, self._end - self._begin)

    def marks(self) -> dict[str, int]:
        """Return a copy of the marks; another thread may change the original."""
        return self._marks.copy()

    def add(self, offset: int, reason: str) -> bool:
        """Add a refused event; return False if it is known, or ignored because it is before the latest ones."""
        self.advance(offset + 1)
        age = self._end - 1 - offset
        if age >= LATEST_EVENTS:
            return False
        is_new = not any(bits >> age & 1 for bits in self._marks.values())
        if reason not in self._marks and len(self._marks) >= MAX_REASONS:
            reason = OTHER_REASON
        self._marks[reason] = self._marks.get(reason, 0) | 1 << age
        return is_new

    def advance(self, end: int) -> None:
        """Note that all events before offset ``end`` were read."""
        if (step := end - self._end) <= 0:
            return
        self._end = end
        kept, known = (1 << LATEST_EVENTS) - 1, self._marks if step < LATEST_EVENTS else {}
        self._marks = {name: left for name, bits in known.items() if (left := bits << step & kept)}


def describe_refused_share(
    sources: Collection[str], share: str, events: int, reason: str, when: str = ""
) -> tuple[str, str]:
    """Return a topic's ``sources``, and in a sentence the share that one of them or more refused, and the reason.

    ``when`` is the time of the latest refusal, such as ``, 3 min ago``. Marks are counted as records, later accepted
    events are not known, and dead letters do not name the source.
    """
    by = " by at least one of these sources (feeds' logs name it)" if len(sources) > 1 else ""
    records = (
        f"{format_count(events, 'record')} in partitions with refused events, up to the latest refused one{when},"
    )
    text = f"{share} of the {records} were refused{by}; most often: {reason}"
    return ", ".join(sources), text


def share_range(part: int, whole: int) -> tuple[float, str]:
    """Return the range of a share above 0: its lower end and its text."""
    return next((one for one in SHARES if part >= one[0] * whole), SHARES[-1])


def refused_share(partitions: list[PartitionRefusals]) -> RefusedShare | None:
    """Return the refused share over several partitions; None if no event was refused."""
    events = refused = 0
    by_reason: dict[str, int] = {}
    for partition in partitions:
        events += partition.events
        union = 0
        for reason, bits in partition.marks().items():
            by_reason[reason] = by_reason.get(reason, 0) + bits.bit_count()
            union |= bits
        refused += union.bit_count()
    if not refused:
        return None
    at_least, share = share_range(refused, events)
    return RefusedShare(events, share, at_least, max(by_reason, key=lambda reason: (by_reason[reason], reason)))


class TopicRefusals:
    """The events of one live topic that one of its sources or more refused, known from its dead letters.

    Accepted events have no dead letters, so a partition's latest known event is its latest refused one.
    """

    def __init__(self) -> None:
        self.last = 0.0
        """The time of the latest event's first dead letter, in Unix seconds; later sources may read old events again."""
        self._partitions: dict[int, PartitionRefusals] = {}

    def add(self, partition: int, offset: int, reason: str, time: float) -> bool:
        """Add a dead letter's event, its reason and the time of the refusal; return False if the event is not new."""
        is_new = self._partitions.setdefault(partition, PartitionRefusals()).add(offset, reason)
        if is_new:
            self.last = max(self.last, time)
        return is_new

    def share(self, now: float) -> RefusedShare | None:
        """Return the refused share; None if the latest refusal is more than ``SHOWN_SECONDS`` old."""
        found = None if now - self.last > SHOWN_SECONDS else refused_share(list(self._partitions.values()))
        return None if found is None else replace(found, last=self.last)
