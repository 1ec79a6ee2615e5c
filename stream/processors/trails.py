"""The chain of a trail: how an entry is tied to the one before it, and how a whole trail is checked."""

from __future__ import annotations

from blake3 import blake3

from schemas import MAX_RECORD_BYTES, TrailHead, TrailRecord
from schemas.trail import BEFORE_THE_FIRST
from schemas.wire import Codec, MalformedEventError

trail_codec: Codec[TrailRecord] = Codec(TrailRecord, limit=MAX_RECORD_BYTES)

EMPTY = TrailHead(entries=0, digest=BEFORE_THE_FIRST, time=0)
"""The head of a trail without any entry."""


class BrokenTrailError(ValueError):
    """A trail is not the one that was written; the message names the entry and what is wrong with it."""


def entry_digest(value: bytes) -> str:
    """The digest of an entry, byte for byte as it was written."""
    return blake3(value).hexdigest()


def follow_chain(head: TrailHead, value: bytes | None) -> tuple[TrailHead, TrailRecord]:
    """Take one more entry behind a head.

    Raises:
        BrokenTrailError: it is not the entry that follows.
    """
    number = head.entries
    try:
        entry = trail_codec.decode(value)
    except MalformedEventError as error:
        raise BrokenTrailError(f"entry {number}: cannot be read ({error})") from None
    if entry.number != number:
        raise BrokenTrailError(f"entry {number}: entry {entry.number} stands in its place")
    if entry.previous != head.digest:
        if number == 0:
            raise BrokenTrailError("entry 0: it follows another one; the trail's beginning is missing")
        raise BrokenTrailError(f"entry {number}: it does not follow entry {number - 1} as that stands here")
    if (number == 0) != (entry.kind == "beginning"):
        raise BrokenTrailError(f"entry {number}: a trail has one beginning, at its entry 0")
    if entry.time < head.time:
        raise BrokenTrailError(f"entry {number}: the ledger's clock goes backwards")
    return TrailHead(entries=number + 1, digest=entry_digest(value or b""), time=entry.time), entry
