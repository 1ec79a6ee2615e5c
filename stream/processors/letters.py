"""Dead letters: whole where they can be, cut where what was refused is larger than anything that comes in one piece."""

from __future__ import annotations

from typing import Final

from blake3 import blake3

from schemas import RejectedHeaders
from stream.processors.base import Headers, Message, RecordLike
from stream.processors.rejections import Rejection
from stream.processors.unread import MAX_HEADERS, Unread

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
