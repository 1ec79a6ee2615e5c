"""Keeps the receipts of the latest requests, and checks the chain of the audit trail.

A receipt belongs to a request's id and to the digest of its content. A request with the same id and
content gets the same receipt again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from blake3 import blake3
from pydantic import TypeAdapter
from pydantic_core import to_json

from schemas import OpenStream, Pmw, Receipt, Request, TrailHead, TrailRecord, subject_of
from schemas.codecs import receipt_codec, trail_codec
from schemas.ledger import BEFORE_THE_FIRST
from schemas.wire import MalformedEventError

MAX_RECEIPTS = 100_000
"""Maximum number of receipts that are kept; if there are more, the oldest is deleted, also from the ledger."""

RECEIPT_KEY_PREFIX = b"receipt|"

LedgerWrite = tuple[bytes, bytes | None]
"""Key and record of one ledger write; a null record deletes the key."""


@cache
def _request_adapter() -> TypeAdapter[Request]:
    return TypeAdapter(Request)


def request_digest(request: Request) -> str:
    """Return a digest of a request's content, independent of its JSON encoding.

    Fields at their defaults do not count, so a later version's optional fields do not change it.
    """
    content = _request_adapter().dump_python(request, mode="json", exclude_defaults=True)
    if isinstance(request, OpenStream) and isinstance(request.stream.mechanism, Pmw):
        content["stream"]["mechanism"] = _pmw_content(request.stream.mechanism)
    return blake3(request.kind.encode() + b"\n" + to_json(content)).hexdigest()


def _pmw_content(mechanism: Pmw) -> dict[str, Any]:
    # Versions with the former default "end" of ``beyond`` must compute equal digests.
    content = mechanism.model_dump(mode="json")
    defaults = {name: field.default for name, field in Pmw.model_fields.items()} | {"beyond": "end"}
    return {name: value for name, value in content.items() if value != defaults[name]}


def receipt_key(request: str) -> bytes:
    """Return the ledger key of a request id's first receipt."""
    return RECEIPT_KEY_PREFIX + request.encode()


def refusal_key(request: str, digest: str) -> bytes:
    """Return the key of a refusal for a used id; it is longer than any receipt's key."""
    return RECEIPT_KEY_PREFIX + f"{digest}|{blake3(request.encode()).hexdigest()}".encode()


class Receipts:
    """The receipts of the latest ``MAX_RECEIPTS`` request ids as bytes, in the order of the requests."""

    def __init__(self) -> None:
        self._receipt_by_request: OrderedDict[str, bytes] = OrderedDict()
        self.sequence = 0

    def restore(self, receipts: Iterable[tuple[Receipt, bytes]]) -> None:
        """Load the ledger's receipts, each with its record."""
        in_order = sorted((receipt.sequence, receipt.request, record) for receipt, record in receipts)
        self._receipt_by_request = OrderedDict((request, record) for _, request, record in in_order)
        self.sequence = in_order[-1][0] + 1 if in_order else 0

    def find_repeat(self, request: Request, digest: str) -> tuple[Receipt, list[LedgerWrite], bool] | None:
        """Return receipt, ledger writes and True unless it is a repeat; None if the request's id is new.

        A request with the same content gets its receipt again. A request with other content is
        refused; the refusal's record is deleted at once, so that the ledger does not keep it.
        """
        record = self._receipt_by_request.get(request.request)
        if record is None:
            return None
        known = receipt_codec.decode_trusted(record)
        if known.digest == digest:
            return known, [(receipt_key(known.request), record)], False
        source, stream = subject_of(request)
        refused = Receipt(
            request=known.request,
            digest=digest,
            sequence=known.sequence,
            source=source,
            stream=stream,
            outcome="refused",
            reason="request: this id belongs to an earlier request with other content; choose another id",
        )
        key = refusal_key(known.request, digest)
        return refused, [(key, receipt_codec.encode(refused)), (key, None)], True

    def add_receipt(self, receipt: Receipt) -> Iterator[LedgerWrite]:
        """Add a new request's receipt, and delete the oldest one if there are too many."""
        self.sequence += 1
        self._receipt_by_request[receipt.request] = record = receipt_codec.encode(receipt)
        yield receipt_key(receipt.request), record
        if len(self._receipt_by_request) > MAX_RECEIPTS:
            oldest, _ = self._receipt_by_request.popitem(last=False)
            yield receipt_key(oldest), None


EMPTY_TRAIL_HEAD = TrailHead(entries=0, digest=BEFORE_THE_FIRST, time=0)
"""The head of an empty trail."""


class BrokenTrailError(ValueError):
    """A trail was changed; the message names the first wrong entry and its fault."""


def entry_digest(value: bytes) -> str:
    """Return the digest of an entry's bytes."""
    return blake3(value).hexdigest()


def check_next_entry(head: TrailHead, value: bytes | None) -> tuple[TrailHead, TrailRecord]:
    """Check that an entry follows a head; return the new head and the entry.

    Raises:
        BrokenTrailError: the entry does not follow the head.
    """
    number = head.entries
    try:
        entry = trail_codec.decode(value)
    except MalformedEventError as error:
        raise BrokenTrailError(f"entry {number}: cannot be read ({error})") from None
    if entry.number != number:
        raise BrokenTrailError(f"entry {number}: the record at its place is entry {entry.number}")
    if entry.previous != head.digest:
        if number == 0:
            raise BrokenTrailError("entry 0: it follows another entry; the trail's beginning is missing")
        raise BrokenTrailError(
            f"entry {number}: its digest of entry {number - 1} differs from the entry that precedes it here"
        )
    if (number == 0) != (entry.kind == "beginning"):
        raise BrokenTrailError(f"entry {number}: entry 0, and no other, must be the trail's beginning")
    if entry.time < head.time:
        raise BrokenTrailError(f"entry {number}: its time is before that of entry {number - 1}")
    return TrailHead(entries=number + 1, digest=entry_digest(value or b""), time=entry.time), entry
