"""Changelog records of hypotheses, estimates and released texts: one record per charged answer."""

from __future__ import annotations

from collections.abc import Callable
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


def decode_update(value: bytes) -> Any:
    """Decode a record by its fields: each kind requires or allows fields that the others refuse."""
    *others, last = _DECODERS
    for decode in others:
        try:
            return decode(value)
        except msgspec.ValidationError:
            continue
    return last(value)


def _stream_and_number(key: bytes) -> tuple[str, int]:
    number, _, stream = key.removeprefix(UPDATE_PREFIX).decode().partition("|")
    return stream, int(number)


class UpdateLog:
    """The updates found in a changelog, by stream and number."""

    def __init__(self) -> None:
        self._updates: dict[tuple[str, int], tuple[str, bytes]] = {}

    def add(self, record: RecordLike) -> None:
        """Add one record; LaterVersionError if this release of Sotto cannot read it."""
        update = decode_changelog_record(record, decode_update)
        self._updates[_stream_and_number(record.key or b"")] = update.incarnation, record.value or b""

    def remove(self, key: bytes) -> None:
        """Remove the record with this key, if there is one."""
        self._updates.pop(_stream_and_number(key), None)

    def keys_of(self, is_chosen: Callable[[str], bool]) -> list[bytes]:
        """Return the keys of the records of some streams."""
        chosen = {stream for stream in {stream for stream, _ in self._updates} if is_chosen(stream)}
        return [update_key(stream, number) for stream, number in self._updates if stream in chosen]

    def first_updates(self, stream: str, incarnation: str, count: int) -> list[bytes] | None:
        """Return the first ``count`` updates of an incarnation, in order; None if any is missing."""
        updates = [self._updates.get((stream, number), ("", b"")) for number in range(count)]
        return [value for _, value in updates] if all(one == incarnation for one, _ in updates) else None
