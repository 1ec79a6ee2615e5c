"""Refusing one event without stopping the others."""

from __future__ import annotations

import json
import re

import msgspec

from schemas.shape import STRING
from schemas.wire import UNREADABLE

MAX_REASON = 512

BUSY = "busy"
"""The code of a question that is right and came too soon."""

PRICE = "price"
"""The code of a question that is right and costs more than is left of its stream's grant."""


class Rejection(Exception):  # noqa: N818  (a verdict on an event, not a fault of ours)
    """Why an event is refused: a code from a fixed list, and a message that names the field and the remedy.

    Both stand on public topics. Of the event they hold words of the contract, declared names and positions alone; the rest
    of it stays in the dead letter.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message[:MAX_REASON]

    @property
    def reason(self) -> str:
        """Code and message in one line, as an answer carries them."""
        return f"{self.code}: {self.message}"


class _Address(msgspec.Struct):
    id: str
    stream: str


_decode_address = msgspec.json.Decoder(_Address).decode
_decode_pairs = json.JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str).decode

_STRING_OR_CONSTANT = re.compile(STRING + rb"|NaN|-?Infinity", re.DOTALL)


def without_constants(value: bytes) -> bytes:
    """The event with null for NaN and Infinity: they are no JSON, but many write them, and the contract's parser reads past them."""
    if b"NaN" not in value and b"Infinity" not in value:
        return value
    return _STRING_OR_CONSTANT.sub(lambda match: match[0] if match[0].startswith(b'"') else b"null", value)


def address_of(value: bytes | None) -> tuple[str, str] | None:
    """The id and stream of an event that may be wrong in any other way, if they can be read, are in bounds, and are one each."""
    if value is None:
        return None
    try:
        address = _decode_address(without_constants(value))
        bounded = 0 < len(address.id) <= 128 and 0 < len(address.stream) <= 128
        return (address.id, address.stream) if bounded and not _names_others(value, address) else None
    except UNREADABLE:
        return None


def _names_others(value: bytes, address: _Address) -> bool:
    """Whether an event that was read gives its id or stream twice, and differently."""
    if value.count(b'"id"') == 1 == value.count(b'"stream"') and b"\\u" not in value:
        return False
    kept = {"id": address.id, "stream": address.stream}
    return any(kept.get(name, given) != given for name, given in _decode_pairs(value.decode(errors="replace")))
