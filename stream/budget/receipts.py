"""Receipts of the latest requests, the chain of the audit trail, and the ledger's records of a restore.

A receipt belongs to a request's id and to the digest of its content. A request with the same id and
content gets the same receipt again.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cache
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from struct import Struct
from typing import Final, cast

from blake3 import blake3
from pydantic import TypeAdapter
from pydantic_core import to_json

from schemas import (
    GrantRecord,
    LedgerRecord,
    OpenStream,
    Pmw,
    Receipt,
    Request,
    RetiredNames,
    TrailHead,
    TrailRecord,
    ledger_codec,
    receipt_codec,
    subject_of,
    trail_codec,
)
from schemas.ledger import NO_PREVIOUS_DIGEST
from schemas.wire import MalformedEventError
from stream.privacy.ledger.retirement import NAMES_KEY_PREFIX, NameDigests
from stream.processing.protocol import Record, RecordLike, decode_changelog_record, keep_latest

MAX_RECEIPTS = 100_000
"""Maximum number of receipts that are kept; if there are more, the oldest is deleted, also from the ledger."""

RECEIPT_KEY_PREFIX = b"receipt|"
WAITING_KEY_PREFIX = b"waiting|"

LedgerWrite = tuple[bytes, bytes | None]
"""Key and value of one record that is written to the ledger; a null value deletes the key."""


@cache
def _request_adapter() -> TypeAdapter[Request]:
    return TypeAdapter(Request)


def request_digest(request: Request) -> str:
    """Return a digest of a request's content, independent of its JSON encoding.

    Fields at their defaults do not count, so a later version's optional fields do not change it.
    """
    content = _request_adapter().dump_python(request, mode="json", exclude_defaults=True)
    if isinstance(request, OpenStream) and isinstance(mechanism := request.stream.mechanism, Pmw):
        # Versions with the former default "end" of ``beyond`` must compute equal digests.
        defaults = {name: field.default for name, field in Pmw.model_fields.items()} | {"beyond": "end"}
        values = mechanism.model_dump(mode="json").items()
        content["stream"]["mechanism"] = {name: value for name, value in values if value != defaults[name]}
    return blake3(request.kind.encode() + b"\n" + to_json(content)).hexdigest()


def receipt_key(request: str) -> bytes:
    """Return the ledger key of a request id's first receipt."""
    return RECEIPT_KEY_PREFIX + request.encode()


def refusal_key(request: str, digest: str) -> bytes:
    """Return the key of a refusal for a used id; it has more characters than any receipt's key, so it equals none."""
    return RECEIPT_KEY_PREFIX + f"{digest}|{blake3(request.encode()).hexdigest()}".encode()


def waiting_key(request: str, digest: str) -> bytes:
    """Return the ledger key of a request that waits; a repeat has the same key."""
    return WAITING_KEY_PREFIX + f"{digest}|{request}".encode()


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
        """Return the receipt of a request whose id is known, or None if the id is new.

        A request with the same content gets its receipt again. A request with other content is refused; the
        refusal's record is deleted at once, so that the ledger does not keep it. The result also has the records
        to write, and True if the receipt is such a refusal.
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


EMPTY_TRAIL_HEAD = TrailHead(entries=0, digest=NO_PREVIOUS_DIGEST, time=0)
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


_GRANT_KEY_PREFIX: Final = b"grant|"
_CALIBRATION: Final = b'"calibration":{'
_AFTER_CALIBRATION: Final = b',"identity":'
_Head: Final = Struct("<qqIII")
"""A grant record's offset, timestamp, position and number of its calibration, and the length of its rest."""

_OFFSET_BYTES: Final = 8
BLOCK_BYTES: Final = 1 << 20
_PLACE_BITS: Final = 32
MAX_REPLACED_BYTES: Final = 64 << 20
"""From this number of bytes of replaced grant records on, the other records are moved to new blocks."""


class CollectedRecords:
    """The latest record of each key of the ledger, collected during a restore.

    There are many grants and receipts, and a consumer's record objects are large. So only parts of
    their records are kept. Names of retired streams are applied at once, because they are never removed.
    """

    def __init__(self, topic: str, partition: int, retired_names: NameDigests) -> None:
        self._place = topic, partition
        self._retired_names = retired_names
        self._receipts: dict[bytes, bytes] = {}
        """For each key, the offset of its record in 8 bytes, then the record's value."""
        self._grants = _GrantRecords()
        self._others: dict[bytes, RecordLike] = {}

    def add(self, records: Iterable[RecordLike]) -> None:
        """Add records in the order of the ledger."""
        for record in records:
            key, value = record.key or b"", record.value
            if key.startswith(_GRANT_KEY_PREFIX):
                self._grants.add(key, record)
            elif key.startswith(RECEIPT_KEY_PREFIX):
                self._receipts.pop(key, None)
                if value is not None:
                    self._receipts[key] = record.offset.to_bytes(_OFFSET_BYTES) + value
            elif key.startswith(NAMES_KEY_PREFIX) and value is not None:
                self._retired_names.restore(cast("RetiredNames", _decode_ledger_record(record)))
            else:
                keep_latest(self._others, (record,))

    def take_receipts(self) -> Iterator[tuple[Receipt, bytes]]:
        """Yield decoded receipts, each with its bytes, and drop them."""
        for key in list(self._receipts):
            kept = self._receipts.pop(key)
            offset, value = int.from_bytes(kept[:_OFFSET_BYTES]), kept[_OFFSET_BYTES:]
            yield cast("Receipt", _decode_ledger_record(Record(*self._place, offset, 0, key, value))), value

    def take_grants(self) -> Iterator[tuple[GrantRecord, int]]:
        """Yield decoded grants, each with its record's timestamp, and drop them."""
        for offset, timestamp, value in self._grants.take():
            yield (
                cast("GrantRecord", _decode_ledger_record(Record(*self._place, offset, timestamp, None, value))),
                timestamp,
            )

    def take_others(self) -> list[tuple[RecordLike, LedgerRecord]]:
        """Return all other records, each with its content, and drop them."""
        others, self._others = self._others, {}
        return [(record, _decode_ledger_record(record)) for record in others.values()]


class _GrantRecords:
    """The latest records of grants; each calibration's text, which many streams share, is kept once.

    The records are in blocks of memory. While records are taken, emptied blocks are returned to the
    operating system, because the ledger's objects need the memory.
    """

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        """For each key, in the order of the records: the number of its block, shifted, plus its offset in the block."""
        self._blocks: list[mmap] = []
        self._end = self._replaced_bytes = 0
        self._number_of_calibration: dict[bytes, int] = {}

    def add(self, key: bytes, record: RecordLike) -> None:
        """Add a record; one without a value deletes the grant."""
        if (place := self._places.pop(key, None)) is not None:
            self._replaced_bytes += len(_read_shortened(self._blocks, place))
        if record.value is not None:
            self._places[key] = self._append(self._shorten(record, record.value))
        if self._replaced_bytes > MAX_REPLACED_BYTES:
            self._compact_blocks()

    def take(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, timestamp and value of each record, and drop them."""
        calibrations = list(self._number_of_calibration)
        for short in self._take_shortened():
            offset, timestamp, start, number, _ = _Head.unpack_from(short)
            at = _Head.size + start
            yield offset, timestamp, b"".join((short[_Head.size : at], calibrations[number], short[at:]))

    def _take_shortened(self) -> Iterator[bytes]:
        places = array("Q", self._places.values())
        blocks, self._places, self._blocks = self._blocks, {}, []
        closed = 0
        for place in places:
            while closed < place >> _PLACE_BITS:
                blocks[closed].close()
                closed += 1
            yield _read_shortened(blocks, place)

    def _shorten(self, record: RecordLike, value: bytes) -> bytes:
        # In a JSON string quotation marks are escaped, so a name cannot be mistaken for the field.
        start = value.find(_CALIBRATION)
        end = value.find(_AFTER_CALIBRATION, start)
        if start < 0 or end < 0:
            start = end = 0
        numbers = self._number_of_calibration
        number = numbers.setdefault(value[start:end], len(numbers))
        head = _Head.pack(record.offset, record.timestamp, start, number, len(value) - (end - start))
        return b"".join((head, value[:start], value[end:]))

    def _append(self, short: bytes) -> int:
        if not self._blocks or self._end + len(short) > len(self._blocks[-1]):
            size = max(BLOCK_BYTES, len(short))
            self._blocks.append(mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS))
            self._end = 0
        at, self._end = self._end, self._end + len(short)
        self._blocks[-1][at : self._end] = short
        return len(self._blocks) - 1 << _PLACE_BITS | at

    def _compact_blocks(self) -> None:
        keys = list(self._places)
        for key, short in zip(keys, self._take_shortened(), strict=True):
            self._places[key] = self._append(short)
        self._replaced_bytes = 0


def _read_shortened(blocks: list[mmap], place: int) -> bytes:
    block, at = blocks[place >> _PLACE_BITS], place & (1 << _PLACE_BITS) - 1
    length: int = _Head.unpack_from(block, at)[-1]
    return block[at : at + _Head.size + length]


def _decode_ledger_record(record: RecordLike) -> LedgerRecord:
    return decode_changelog_record(record, ledger_codec.decode_trusted)
