"""What stands in the place of an event that could not be read, or of a whole batch of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from stream.processors.rejections import Rejection

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
