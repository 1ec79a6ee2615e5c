"""The retired streams of a partition, as digests with the fields of their answers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from schemas import RetiredStreams
from schemas.wire import DECODE_ERRORS, struct
from stream.privacy.ledger.retirement import name_digest, split_digests
from stream.processing.digest_table import DigestTable, find_retired
from stream.worker.stream_terms import WireAmount

_decode: Any = msgspec.json.Decoder(struct(RetiredStreams)).decode
_Row: Final = Struct("<dddqI")
"""The spent ε, δ and ρ (NaN: none), the charged answers left (-1: none), and the reason's number."""

MAX_REASON_BYTES: Final = 1 << 20
"""Most bytes of different reasons; answers of later streams have ``OTHER_REASON``."""
_REASON_OBJECT_BYTES: Final = 200
OTHER_REASON: Final = "the stream has ended; the audit trail has the reason"


class HaltedAnswer(NamedTuple):
    """Fields of a retired stream's answers."""

    reason: str
    spent: Any
    tops_left: int | None


class RetiredStreamTable:
    """The retired streams, in rows of 52 bytes, beside the texts of different reasons."""

    def __init__(self) -> None:
        self._rows = DigestTable(_Row.size)
        self._reasons = [OTHER_REASON]
        self._number_of_reason: dict[str, int] = {}
        self._reason_bytes = 0

    def __len__(self) -> int:
        return len(self._rows)

    def has(self, stream: str) -> bool:
        """Return whether a stream is retired."""
        return bool(self._rows) and self._rows.find(name_digest("stream", stream)) is not None

    def select(self, streams: Iterable[str]) -> set[str]:
        """Return those of the streams that are retired."""
        return find_retired(self._rows, streams)

    def find(self, stream: str) -> HaltedAnswer | None:
        """Return the fields of a stream's answers; None if it is not retired."""
        row = self._rows.find(name_digest("stream", stream)) if self._rows else None
        if row is None:
            return None
        epsilon, delta, rho, left, reason = _Row.unpack(row)
        spent = WireAmount(epsilon, delta, None if math.isnan(rho) else rho)
        return HaltedAnswer(self._reasons[reason], spent, None if left < 0 else left)

    def add_record(self, value: bytes) -> None:
        """Add the streams of a control record; ignore one that this release of Sotto cannot read."""
        try:
            record = _decode(value)
            digests = split_digests(record.names)
        except (*DECODE_ERRORS, ValueError):
            return
        if len(digests) != len(record.answer_of) or max(record.answer_of, default=0) >= len(record.answers):
            return
        rows = [self._encode(answer) for answer in record.answers]
        self._rows.add_all(zip(digests, (rows[place] for place in record.answer_of), strict=True))

    def _encode(self, answer: Any) -> bytes:
        spent, left = answer.spent, answer.tops_left
        rho = math.nan if spent.rho is None else spent.rho
        reason = self._number_of(answer.reason)
        return _Row.pack(spent.epsilon, spent.delta, rho, -1 if left is None else left, reason)

    def _number_of(self, reason: str) -> int:
        if (known := self._number_of_reason.get(reason)) is not None:
            return known
        size = len(reason.encode()) + _REASON_OBJECT_BYTES
        if self._reason_bytes + size > MAX_REASON_BYTES:
            return 0
        self._reason_bytes += size
        self._number_of_reason[reason] = number = len(self._reasons)
        self._reasons.append(reason)
        return number
