"""Receipts: what became of the latest requests, so that one sent again is told the same and does nothing.

A receipt belongs to a request's id and to the digest of what was asked under it.
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
"""Requests that are remembered; the oldest is forgotten, and its receipt deleted from the ledger, beyond that."""

RECEIPT_PREFIX = b"receipt|"

Write = tuple[str, bytes, Receipt | None]
"""Source, key and record of one line of the ledger; no record deletes the key."""


@cache
def _requests() -> TypeAdapter[Request]:
    return TypeAdapter(Request)


def request_digest(request: Request) -> str:
    """What tells two requests of one id apart: equal for equal requests, however they were written down.

    Fields at their defaults do not count, so that a later version's optional fields leave it as it is.
    """
    body = _requests().dump_json(request, exclude_defaults=True)
    return blake3(request.kind.encode() + b"\n" + body).hexdigest()


def _whole_digest(request: Request) -> str:
    """The digest of earlier versions, over all fields."""
    return blake3(_requests().dump_json(request)).hexdigest()


def receipt_key(request: str) -> bytes:
    """The ledger's key of a request id's first receipt."""
    return RECEIPT_PREFIX + request.encode()


def refusal_key(request: str, digest: str) -> bytes:
    """The key of what is told to whoever uses another's id: longer than any id, so that it is no receipt's key."""
    return RECEIPT_PREFIX + f"{digest}|{blake3(request.encode()).hexdigest()}".encode()


class Receipts:
    """The first receipt of each of the latest ``MAX_RECEIPTS`` request ids, in the order of their sequence."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Receipt] = OrderedDict()
        self.sequence = 0

    def restore(self, receipts: Iterable[Receipt]) -> None:
        """Take the ledger's receipts."""
        found = sorted(receipts, key=lambda receipt: receipt.sequence)
        self._known = OrderedDict((receipt.request, receipt) for receipt in found)
        self.sequence = found[-1].sequence + 1 if found else 0

    def again(self, request: Request, digest: str) -> list[Write] | None:
        """What to write if the request's id was used before; None if it is new.

        The same request gets its receipt again. Another one is refused, under a key that is deleted at once.
        """
        known = self._known.get(request.request)
        if known is None:
            return None
        if known.digest == _whole_digest(request):
            known = self._known[request.request] = known.model_copy(update={"digest": digest})
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
        """Remember a new request's receipt, and forget the oldest where there are too many."""
        self.sequence += 1
        self._known[receipt.request] = receipt
        yield receipt.source, receipt_key(receipt.request), receipt
        if len(self._known) > MAX_RECEIPTS:
            oldest, dropped = self._known.popitem(last=False)
            yield dropped.source, receipt_key(oldest), None


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
