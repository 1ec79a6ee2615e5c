"""Changelog records of hypotheses, estimates and released texts: one record per charged answer."""

from __future__ import annotations

from typing import Any

import msgspec

from schemas import HypothesisUpdate, Measurement, ReleasedTexts
from schemas.wire import struct
from stream.processing.protocol import RecordLike, decode_changelog_record

UPDATE_PREFIX = b"@update|"
"""Prefix of the changelog keys of updates; stream names never start with an at-sign."""

Update = HypothesisUpdate | Measurement | ReleasedTexts
"""The record of a charged answer: a step of multiplicative weights, a measurement, or released texts."""

_DECODERS: Any = tuple(
    msgspec.json.Decoder(struct(kind)).decode for kind in (HypothesisUpdate, ReleasedTexts, Measurement)
)


def update_key(stream: str, number: int) -> bytes:
    """Return the changelog key of one update of a stream."""
    return UPDATE_PREFIX + f"{number}|{stream}".encode()


def encode_update(update: Update) -> bytes:
    """Encode an update as compact JSON."""
    return update.model_dump_json(exclude_defaults=True).encode()


def _decode_update(value: bytes) -> Any:
    """Decode a record by its fields: each kind requires or allows fields that the others refuse."""
    *others, last = _DECODERS
    for decode in others:
        try:
            return decode(value)
        except msgspec.ValidationError:
            continue
    return last(value)


class UpdateLog:
    """The updates found in a changelog, by stream and number."""

    def __init__(self) -> None:
        self._updates: dict[tuple[str, int], Any] = {}

    def add(self, record: RecordLike) -> None:
        """Add one record; LaterVersionError if this release of Sotto cannot read it."""
        number, _, stream = (record.key or b"").removeprefix(UPDATE_PREFIX).decode().partition("|")
        self._updates[stream, int(number)] = decode_changelog_record(record, _decode_update)

    def first_updates(self, stream: str, incarnation: str, count: int) -> list[Any] | None:
        """Return the first ``count`` updates of an incarnation, in order; None if any is missing."""
        updates = [self._updates.get((stream, number)) for number in range(count)]
        if any(update is None or update.incarnation != incarnation for update in updates):
            return None
        return updates
