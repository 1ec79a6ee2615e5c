"""Dead letters: whole where they can be, cut where what was refused is larger than anything that comes in one piece."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final, Self

import msgspec
from blake3 import blake3

from schemas import Calibration, RejectedHeaders
from schemas.json_limits import STRING
from schemas.wire import UNREADABLE
from stream.processing.protocol import Headers, Message, RecordLike

MAX_REASON = 512

BUSY = "busy"
"""The code of a question that is right and came too soon."""

PRICE = "price"
"""The code of a question that is right and costs more than is left of its stream's grant."""


class Rejection(Exception):  # noqa: N818  (a verdict on an event, not a fault of ours)
    """Why an event is refused: a code from a fixed list, and a message that names the field and the remedy.

    Both stand on public topics. Of the event they hold words of the contract, declared names and positions alone; the rest
    of it stays in the dead letter.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message[:MAX_REASON]

    @property
    def reason(self) -> str:
        """Code and message in one line, as an answer carries them."""
        return f"{self.code}: {self.message}"


class _Address(msgspec.Struct):
    id: str
    stream: str


_decode_address = msgspec.json.Decoder(_Address).decode
_decode_pairs = json.JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str).decode

_STRING_OR_CONSTANT = re.compile(STRING + rb"|NaN|-?Infinity", re.DOTALL)


def without_constants(value: bytes) -> bytes:
    """The event with null for NaN and Infinity: they are no JSON, but many write them, and the contract's parser reads past them."""
    if b"NaN" not in value and b"Infinity" not in value:
        return value
    return _STRING_OR_CONSTANT.sub(lambda match: match[0] if match[0].startswith(b'"') else b"null", value)


def address_of(value: bytes | None) -> tuple[str, str] | None:
    """The id and stream of an event that may be wrong in any other way, if they can be read, are in bounds, and are one each."""
    if value is None:
        return None
    try:
        address = _decode_address(without_constants(value))
        bounded = 0 < len(address.id) <= 128 and 0 < len(address.stream) <= 128
        return (address.id, address.stream) if bounded and not _names_others(value, address) else None
    except UNREADABLE:
        return None


def _names_others(value: bytes, address: _Address) -> bool:
    """Whether an event that was read gives its id or stream twice, and differently."""
    if value.count(b'"id"') == 1 == value.count(b'"stream"') and b"\\u" not in value:
        return False
    kept = {"id": address.id, "stream": address.stream}
    return any(kept.get(name, given) != given for name, given in _decode_pairs(value.decode(errors="replace")))


UNFOLDED_BYTES: Final = 4 * 1024 * 1024
"""What is unfolded of a batch at a time, as much as the largest message of any topic that a service reads: larger ones take their turns."""
MOST_UNFOLDED_BYTES: Final = 64 * 1024 * 1024
"""Most that a compressed batch may unfold to.

A batch is refused whole beyond it, with the events of everybody in it, so that no producer's usual batch may come near: whose event
made it larger would decide about other people's.
"""
MAX_RECORDS: Final = 1_000_000
"""Most records of a batch: about so many of the smallest events unfold to the bound above."""
MAX_RECORD_BYTES: Final = 128 * 1024
"""Largest record that is read in a batch that takes turns: twice what the largest event may have."""
MAX_HEADERS: Final = 64
"""Most headers of a record. Each takes some hundred bytes of memory, and two of Kafka's."""

BAD_NAME = Rejection("unreadable", "headers: a name is not UTF-8; send the event again without it")
TOO_MANY_HEADERS = Rejection("unreadable", f"headers: more than {MAX_HEADERS}; send the event again with fewer")
TOO_MANY_RECORDS = Rejection(
    "unreadable", f"batch: more than {MAX_RECORDS:,} records; have the producer send smaller ones"
)
TOO_LARGE = Rejection(
    "unreadable",
    f"batch: does not unfold, or to more than {MOST_UNFOLDED_BYTES // 1024**2} MiB; have the producer send smaller ones",
)
RECORD_TOO_LARGE = Rejection(
    "unreadable",
    f"record: more than {MAX_RECORD_BYTES // 1024} KiB in a batch that unfolds to more than {UNFOLDED_BYTES // 1024**2} MiB; "
    "have the producer send smaller ones",
)
BROKEN = Rejection("unreadable", "batch: what follows in it is not laid out as Kafka's records are")


@dataclass(frozen=True)
class UnreadBatch:
    """What is known of a batch, or of its rest, without reading it.

    ``first`` and ``last`` are offsets; ``length`` and ``digest`` (BLAKE3) are of the batch's bytes as Kafka keeps them.
    """

    first: int
    last: int
    codec: str
    length: int
    digest: str


class Unread(bytes):
    """A record's value where reading failed, and why.

    For a single record these are the bytes of its value. For a ``batch`` they are the batch's first bytes, the record has
    the offset of its last one, and nothing of it may be taken for an event.
    """

    rejection: Rejection
    batch: UnreadBatch | None

    def __new__(cls, value: bytes, rejection: Rejection, batch: UnreadBatch | None = None) -> Self:
        """Take the bytes that a dead letter is to show."""
        made = super().__new__(cls, value)
        made.rejection, made.batch = rejection, batch
        return made


WHOLE_BYTES: Final = 1024 * 1024
"""Largest event that is set aside whole, key and headers included: what the input topics take uncompressed."""
VALUE_BYTES: Final = 64 * 1024
"""What is left of the value of a larger one."""
KEY_BYTES: Final = 1024
"""What is left of its key."""
HEADER_BYTES: Final = 16 * 1024
"""What is left of its headers: the first of them, names and values together."""
HEADERS: Final = MAX_HEADERS - 16
"""Most headers of an event that its dead letter keeps: with the letter's own, a reader of ours still takes them."""


def dead_letter(record: RecordLike, rejection: Rejection) -> Message:
    """The original bytes and headers, with the reason in headers of Kafka Connect's naming.

    Of what is larger than ``WHOLE_BYTES``, and of a batch that was not read, there is the beginning, with the whole's length
    and digest. So no dead letter is larger than what Kafka takes, whatever came.
    """
    key, value, headers = record.key, record.value, record.headers
    facts = RejectedHeaders(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        code=rejection.code,
        message=rejection.message,
    )
    if isinstance(value, Unread) and (batch := value.batch) is not None:
        facts = facts.model_copy(
            update={
                "offset": batch.first,
                "last_offset": batch.last,
                "codec": batch.codec,
                "length": batch.length,
                "digest": batch.digest,
            }
        )
    elif _size(key, value, headers) > WHOLE_BYTES:
        cut = None if value is None else {"length": len(value), "digest": blake3(value).hexdigest()}
        facts = facts.model_copy(
            update={**(cut or {}), "key_length": len(key or b""), "header_count": len(headers)}
        )
        key = None if key is None else key[:KEY_BYTES]
        value, headers = None if value is None else value[:VALUE_BYTES], _first(headers)
    elif len(headers) > HEADERS:
        facts = facts.model_copy(update={"header_count": len(headers)})
        headers = headers[:HEADERS]
    return (key, None if value is None else bytes(value), [*headers, *facts.to_kafka()])


def _size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    return (
        len(key or b"")
        + len(value or b"")
        + sum(len(name.encode()) + len(given or b"") for name, given in headers)
    )


def _first(headers: Headers) -> Headers:
    """As many headers as there is room for."""
    kept, left = [], HEADER_BYTES
    for name, value in headers[:HEADERS]:
        left -= len(name.encode()) + len(value or b"") + 8
        if left < 0:
            break
        kept.append((name, value))
    return kept


def exhausted_reason(calibration: Calibration, cutoff: int) -> str:
    """Why a stream that has given all charged answers, ``cutoff`` with its extensions, does not answer any more."""
    match calibration.kind:
        case "sparse_vector":
            return f"exhausted: all {cutoff} 'above' answers of the cutoff are out"
        case "hypothesis":
            return f"exhausted: all {cutoff} updates of the hypothesis are used"
        case "estimate":
            return f"exhausted: all {cutoff} measurements of the estimate are made"
        case "running_count":
            return f"exhausted: the counts of all {calibration.steps} windows of the horizon are out"
        case _:
            return f"exhausted: all {cutoff} answers of the grant are given"


_UNPAID: Final = f"{PRICE}: query:"
"""The beginning of the refusal of a question that asks for no more than an ordinary charged answer."""


def says_exhausted(reason: str | None) -> bool:
    """Whether this is the reason of an answer or a stream whose grant pays for no ordinary charged answer any more."""
    return reason is not None and reason.startswith(("exhausted:", _UNPAID))
