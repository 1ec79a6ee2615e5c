"""Receipts of the latest requests, and the chain of the audit trail.

A receipt belongs to a request's id and to the digest of its content: a repeated request gets its
receipt again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cache

from blake3 import blake3
from pydantic import TypeAdapter

from schemas import MAX_RECORD_BYTES, Receipt, Request, TrailHead, TrailRecord, subject_of
from schemas.trail import BEFORE_THE_FIRST
from schemas.wire import Codec, MalformedEventError

MAX_RECEIPTS = 100_000
"""Most receipts; beyond that, the oldest is deleted, also from the ledger."""

RECEIPT_PREFIX = b"receipt|"

Write = tuple[str, bytes, Receipt | None]
"""Source, key and record of one ledger write; a null record deletes the key."""


@cache
def _requests() -> TypeAdapter[Request]:
    return TypeAdapter(Request)


def request_digest(request: Request) -> str:
    """Return a digest of a request's content, independent of its JSON encoding.

    Fields at their defaults do not count, so a later version's optional fields do not change it.
    """
    body = _requests().dump_json(request, exclude_defaults=True)
    return blake3(request.kind.encode() + b"\n" + body).hexdigest()


def receipt_key(request: str) -> bytes:
    """Return the ledger key of a request id's first receipt."""
    return RECEIPT_PREFIX + request.encode()


def refusal_key(request: str, digest: str) -> bytes:
    """Return the key of a refusal for a used id, longer than any receipt's key."""
    return RECEIPT_PREFIX + f"{digest}|{blake3(request.encode()).hexdigest()}".encode()


class Receipts:
    """The receipts of the latest ``MAX_RECEIPTS`` request ids, in order of sequence."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Receipt] = OrderedDict()
        self.sequence = 0

    def restore(self, receipts: Iterable[Receipt]) -> None:
        """Load the ledger's receipts."""
        found = sorted(receipts, key=lambda receipt: receipt.sequence)
        self._known = OrderedDict((receipt.request, receipt) for receipt in found)
        self.sequence = found[-1].sequence + 1 if found else 0

    def find_repeat(self, request: Request, digest: str) -> list[Write] | None:
        """Return the writes for a request with a known id; None if the id is new.

        An equal request gets its receipt again. Another request with the id is refused; the key of
        this refusal is deleted at once.
        """
        known = self._known.get(request.request)
        if known is None:
            return None
        if known.digest == digest:
            return [(known.source, receipt_key(known.request), known)]
        source, stream = subject_of(request)
        refused = Receipt(
            request=known.request,
            digest=digest,
            sequence=known.sequence,
            source=source,
            stream=stream,
            outcome="refused",
            reason="request: the id was used for another request; choose another id",
        )
        key = refusal_key(known.request, digest)
        return [(source, key, refused), (source, key, None)]

    def keep(self, receipt: Receipt) -> Iterator[Write]:
        """Add a new request's receipt, and delete the oldest one if there are too many."""
        self.sequence += 1
        self._known[receipt.request] = receipt
        yield receipt.source, receipt_key(receipt.request), receipt
        if len(self._known) > MAX_RECEIPTS:
            oldest, dropped = self._known.popitem(last=False)
            yield dropped.source, receipt_key(oldest), None


trail_codec: Codec[TrailRecord] = Codec(TrailRecord, limit=MAX_RECORD_BYTES)

EMPTY = TrailHead(entries=0, digest=BEFORE_THE_FIRST, time=0)
"""The head of an empty trail."""


class BrokenTrailError(ValueError):
    """A trail was changed; the message names the entry and the fault."""


def entry_digest(value: bytes) -> str:
    """Return the digest of an entry's bytes."""
    return blake3(value).hexdigest()


def follow_chain(head: TrailHead, value: bytes | None) -> tuple[TrailHead, TrailRecord]:
    """Check and add the entry after a head.

    Raises:
        BrokenTrailError: the entry does not follow the head.
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
