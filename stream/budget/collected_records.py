"""The ledger's records of a restore, in little memory until the last one of each key is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, cast

from schemas import GrantRecord, LedgerRecord, Receipt, RetiredNames
from schemas.codecs import ledger_codec
from stream.budget.receipts import RECEIPT_KEY_PREFIX
from stream.privacy.ledger.retirement import NAMES_KEY_PREFIX, NameDigests
from stream.processing.protocol import Record, RecordLike, decode_changelog_record, keep_latest

_GRANT_KEY_PREFIX: Final = b"grant|"
_CALIBRATION: Final = b'"calibration":{'
_AFTER_CALIBRATION: Final = b',"identity":'
_Head: Final = Struct("<qqII")
"""Offset and timestamp of a grant's record, and place and number of its calibration."""


class CollectedRecords:
    """The latest record of each key.

    Of grants and receipts only a part of the record is kept: they are many, and a consumer's records
    are large. Names of retired streams are not collected, because they are never removed.
    """

    def __init__(self, topic: str, partition: int, retired_names: NameDigests) -> None:
        self._place = topic, partition
        self._retired_names = retired_names
        self._receipts: dict[bytes, bytes] = {}
        self._grants: dict[bytes, bytes] = {}
        """Records without the texts of their calibrations, which most streams share."""
        self._number_of_calibration: dict[bytes, int] = {}
        self._others: dict[bytes, RecordLike] = {}

    def add(self, records: Iterable[RecordLike]) -> None:
        """Add records in the order of the ledger."""
        for record in records:
            key, value = record.key or b"", record.value
            if key.startswith(RECEIPT_KEY_PREFIX):
                _keep(self._receipts, key, value)
            elif key.startswith(_GRANT_KEY_PREFIX):
                _keep(self._grants, key, None if value is None else self._shorten(record, value))
            elif key.startswith(NAMES_KEY_PREFIX) and value is not None:
                self._retired_names.restore(cast("RetiredNames", _decode(record)))
            else:
                keep_latest(self._others, (record,))

    def take_receipts(self) -> Iterator[tuple[Receipt, bytes]]:
        """Yield decoded receipts, each with its bytes, and drop them."""
        for key in list(self._receipts):
            value = self._receipts.pop(key)
            yield cast("Receipt", _decode(Record(*self._place, -1, 0, key, value))), value

    def take_grants(self) -> Iterator[tuple[GrantRecord, int]]:
        """Yield decoded grants, each with its record's timestamp, and drop them."""
        calibrations = list(self._number_of_calibration)
        for key in list(self._grants):
            short = self._grants.pop(key)
            offset, timestamp, start, number = _Head.unpack_from(short)
            at = _Head.size + start
            value = b"".join((short[_Head.size : at], calibrations[number], short[at:]))
            yield cast("GrantRecord", _decode(Record(*self._place, offset, timestamp, key, value))), timestamp

    def take_others(self) -> list[tuple[RecordLike, LedgerRecord]]:
        """Return all other records, each with its content, and drop them."""
        others, self._others = self._others, {}
        return [(record, _decode(record)) for record in others.values()]

    def _shorten(self, record: RecordLike, value: bytes) -> bytes:
        # Within a string of JSON the quotation marks are escaped, so a name cannot look like the field.
        start = value.find(_CALIBRATION)
        end = value.find(_AFTER_CALIBRATION, start)
        if start < 0 or end < 0:
            start = end = 0
        numbers = self._number_of_calibration
        number = numbers.setdefault(value[start:end], len(numbers))
        return b"".join((_Head.pack(record.offset, record.timestamp, start, number), value[:start], value[end:]))


def _keep(latest: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
    if value is None:
        latest.pop(key, None)
    else:
        latest[key] = value


def _decode(record: RecordLike) -> LedgerRecord:
    return decode_changelog_record(record, ledger_codec.decode_trusted)
