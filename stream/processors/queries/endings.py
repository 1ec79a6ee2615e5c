"""An ending is final: an opening that comes late, behind the halt that followed it, does not undo it."""

from __future__ import annotations

import msgspec


class _Identity(msgspec.Struct):
    incarnation: str


class _Brief(msgspec.Struct):
    kind: str
    identity: _Identity


_decode = msgspec.json.Decoder(_Brief).decode


def undoes(known: bytes | None, later: bytes | None) -> bool:
    """Whether a control event would open the very incarnation of a stream again that the known one has ended.

    The workers answer to the latest control event of a stream. Events can come twice and out of order only if somebody
    beside the budget service writes to the topic; then the ending counts.
    """
    if known is None or later is None:
        return False
    try:
        before, after = _decode(known), _decode(later)
    except msgspec.DecodeError:
        return False
    return after.kind == "opened" != before.kind and after.identity.incarnation == before.identity.incarnation
