"""An ending is final: an opening that comes late, behind the halt that followed it, does not undo it.

Nor does anything that was told of a stream before it was extended count after that.
"""

from __future__ import annotations

import msgspec

from schemas.wire import UNREADABLE


class _Identity(msgspec.Struct):
    incarnation: str


class _Brief(msgspec.Struct):
    kind: str
    identity: _Identity
    extensions: tuple[msgspec.Raw, ...] = ()
    version: int = 1

    @property
    def rank(self) -> tuple[int, bool]:
        """In which order the budget service tells of a stream: it extends what is open, or what has run dry and was halted.

        Extensions and versions of the data only ever grow, and nothing grows behind an ending.
        """
        return len(self.extensions) + self.version, self.kind != "opened"


_decode = msgspec.json.Decoder(_Brief).decode
_encode = msgspec.json.Encoder().encode


def essence(value: bytes) -> bytes:
    """What of a control event says whether it takes back another, or is taken back by one: a hundred bytes of thousands."""
    return _encode(_decode(value))


def undoes(known: bytes | None, later: bytes | None) -> bool:
    """Whether a control event would take back what the known one says of the very same incarnation of a stream.

    The workers answer to the latest control event of a stream. Events can come twice and out of order only if somebody
    beside the budget service writes to the topic; then the most extensions count, and of equally many the ending.
    """
    if known is None or later is None:
        return False
    try:
        before, after = _decode(known), _decode(later)
    except UNREADABLE:
        return False
    return after.rank < before.rank and after.identity.incarnation == before.identity.incarnation
