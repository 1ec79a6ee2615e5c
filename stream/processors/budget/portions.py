"""How many requests are handled in one step: many that are quick, and few that may take long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from schemas import TableSource
from schemas.wire import UNREADABLE
from stream.accounting.ledger import Ledger
from stream.processors.base import RecordLike

PLANS_AT_ONCE: Final = 16
"""So many requests of one step may have to be planned, or have a table read: each may take a second or two."""
REQUESTS_AT_ONCE: Final = 400
"""So many requests are handled in one step at most: about 0.2 s of work, and one transaction."""

_ITS_OWN: Final = {"source", "epsilon", "delta", "population", "renews"}
"""What of a source a plan does not depend on."""
_QUICK: Final = ("close", "halt")


class _Peeked(msgspec.Struct):
    """As much of a request as tells how long it may take."""

    kind: str = ""
    stream: Any = None
    source: Any = None


_peek = msgspec.json.Decoder(_Peeked).decode
_encode = msgspec.json.Encoder(order="sorted").encode


def requests_at_once(records: Sequence[RecordLike], ledger: Ledger) -> int:
    """As many requests, from the first, as need no more than ``PLANS_AT_ONCE`` plans; at least one.

    Streams that differ in their names and thresholds alone, on sources that differ in their names and budgets alone, share a plan.
    """
    plans: set[bytes] = set()
    for count, record in enumerate(records[:REQUESTS_AT_ONCE]):
        plan = _plan_of(record, count, ledger)
        if plan is not None:
            plans.add(plan)
            if len(plans) > PLANS_AT_ONCE:
                return count
    return min(len(records), REQUESTS_AT_ONCE)


def _plan_of(record: RecordLike, place: int, ledger: Ledger) -> bytes | None:
    """What tells requests apart that are not planned alike; None for one that is quick."""
    if not isinstance(record.value, bytes):
        return None
    try:
        request = _peek(record.value)
    except UNREADABLE:
        return None  # refused unread
    if request.kind == "open" and isinstance(request.stream, dict):
        mechanism = request.stream.get("mechanism")
        plain = {name: value for name, value in request.stream.items() if name != "stream"}
        if isinstance(mechanism, dict):
            plain["mechanism"] = {name: value for name, value in mechanism.items() if name != "threshold"}
        return _encode(plain | {"source": _facts_of(request.stream.get("source"), ledger)})
    quick = request.kind in _QUICK or (
        request.kind == "register" and isinstance(request.source, dict) and request.source.get("kind") != "table"
    )
    return None if quick else place.to_bytes(4, "big")


def _facts_of(source: Any, ledger: Ledger) -> Any:
    """What a plan depends on of a source; its name where that is not known beforehand."""
    account = ledger.accounts.get(source) if isinstance(source, str) else None
    if account is None or isinstance(account.source, TableSource):
        return source
    return account.source.model_dump(exclude=_ITS_OWN)
