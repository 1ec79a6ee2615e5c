"""The changelog's records of each stream's hypothesis: one small record per ⊤, never what follows from them."""

from __future__ import annotations

from typing import Any

import msgspec

from schemas import HypothesisUpdate, Measurement
from schemas.wire import UNREADABLE, struct
from stream.processing.protocol import LaterVersionError, RecordLike

UPDATE_PREFIX = b"@update|"
"""How the changelog's keys of updates begin; no stream's name starts with an at-sign."""

Update = HypothesisUpdate | Measurement
"""What a ⊤ leaves in the changelog: a step of multiplicative weights, or what was measured."""

_Measurement: Any = struct(Measurement)
_decode_step: Any = msgspec.json.Decoder(struct(HypothesisUpdate)).decode
_decode_measurement: Any = msgspec.json.Decoder(_Measurement).decode


def update_key(stream: str, number: int) -> bytes:
    """The changelog key of one update of a stream."""
    return UPDATE_PREFIX + f"{number}|{stream}".encode()


def encode_update(update: Update) -> bytes:
    """An update as compact JSON."""
    return update.model_dump_json(exclude_defaults=True).encode()


def _decode(value: bytes) -> Any:
    """Every step says which way it went; a measurement names attributes instead."""
    try:
        return _decode_step(value)
    except msgspec.ValidationError:
        return _decode_measurement(value)


class UpdateLog:
    """The updates found in a changelog, by stream and number."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], Any] = {}

    def take(self, record: RecordLike) -> None:
        """Take in one record; LaterVersionError for what this version cannot read."""
        number, _, stream = (record.key or b"").removeprefix(UPDATE_PREFIX).decode().partition("|")
        try:
            self._found[stream, int(number)] = _decode(record.value or b"")
        except UNREADABLE:
            raise LaterVersionError(record) from None

    def of(self, stream: str, incarnation: str, count: int) -> list[Any] | None:
        """The first ``count`` updates of a stream in order; None if any is missing or another incarnation's."""
        updates = [self._found.get((stream, number)) for number in range(count)]
        if any(update is None or update.incarnation != incarnation for update in updates):
            return None
        return updates
