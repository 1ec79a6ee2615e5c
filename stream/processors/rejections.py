"""Refusing one event without stopping the others."""

from __future__ import annotations

import msgspec

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


INTERNAL = Rejection("internal", "event: a fault on our side; report its position, and send it again once mended")
"""For an event that is within the contract and still breaks the processor."""


class _Address(msgspec.Struct):
    id: str
    stream: str


_decode_address = msgspec.json.Decoder(_Address).decode


def address_of(value: bytes | None) -> tuple[str, str] | None:
    """The id and stream of an event that may be wrong in any other way, if they can be read and are in bounds."""
    if value is None:
        return None
    try:
        address = _decode_address(value)
    except UNREADABLE:
        return None
    bounded = 0 < len(address.id) <= 128 and 0 < len(address.stream) <= 128
    return (address.id, address.stream) if bounded else None
