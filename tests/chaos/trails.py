"""Checks the audit trail: each request has exactly one entry, and the entries determine the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from schemas import (
    MAX_DEFINITION_BYTES,
    LedgerRecord,
    Receipt,
    Request,
    TrailBeginning,
    TrailRequest,
    WaitingRequest,
    split_period_name,
    subject_of,
)
from schemas.wire import Codec, MalformedEventError
from stream.budget.receipts import BrokenTrailError, entry_digest, request_digest
from stream.budget.trail_verification import TrailCheck
from stream.processing.dead_letters import UnreadableValue
from stream.processing.protocol import RecordLike
from stream.witnesses.anchor import Anchor

_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)


def check_trail(
    trail: Iterable[RecordLike],
    requested: Iterable[RecordLike],
    ledger: Sequence[LedgerRecord],
    latest: Collection[LedgerRecord],
) -> list[str]:
    """Check that the chain is unbroken and ends at the ledger's head, and that each request has one entry, equal to its receipt.

    No request may still wait.
    """
    check, entries = TrailCheck(), []
    try:
        entries = [check.add_entry(record.value) for record in trail]
    except BrokenTrailError as broken:
        return [f"trail: {broken}"]
    if not entries:
        return []
    violations = [f"trail: {finding}" for finding in [*check.findings(), *check.compare_ledger(latest)]]
    decided = [one for one in entries if isinstance(one, TrailRequest) and not _is_of_period(one)]
    requests = list(_readable(requested))
    violations += [f"trail: {one.value} still waits" for one in latest if isinstance(one, WaitingRequest)]
    violations += _check_order(requests, decided)
    noted = Counter((one.request, one.digest) for one in decided)
    violations += [f"trail: request {one[0]} has {times} entries" for one, times in noted.items() if times != 1]
    # Only the ledger has the requests from before the beginning of the trail.
    begun = isinstance(entries[0], TrailBeginning) and not entries[0].sources
    asked = {(one.request, request_digest(one)) for one in requests} if begun else set()
    violations += [f"trail: request {one[0]} has no entry" for one in asked - noted.keys()]
    receipts = {(one.request, one.digest): one for one in decided}
    violations += [
        f"trail: request {one.request} was {entry.outcome} there, and its receipt says {one.outcome}"
        for one in ledger
        if isinstance(one, Receipt)
        and (entry := receipts.get((one.request, one.digest))) is not None
        and (entry.outcome, entry.reason) != (one.outcome, one.reason)
    ]
    return violations


def check_anchors(anchors: Iterable[Anchor], trail: Iterable[RecordLike]) -> list[str]:
    """Check that there are anchors, and that each anchored head is the trail's head after the anchored number of entries."""
    heads = {number: entry_digest(record.value or b"") for number, record in enumerate(trail, 1)}
    anchored = [one.head for one in anchors]
    return [
        *(
            f"anchors: a head of {head.entries} entries was never committed"
            for head in anchored
            if heads.get(head.entries) != head.digest
        ),
        *(["anchors: there is none"] if heads and not anchored else []),
    ]


def _is_of_period(entry: TrailRequest) -> bool:
    """Return whether an entry belongs to the request that begins a period: it registers the account and opens the streams."""
    return entry.outcome in {"registered", "opened"} and split_period_name(entry.source or "") is not None


def _check_order(requests: Iterable[Request], decided: Iterable[TrailRequest]) -> list[str]:
    """Check that requests about one source or population are decided in the order of their first arrival."""
    place: dict[tuple[str, str], tuple[str, int]] = {}
    for number, one in enumerate(requests):
        place.setdefault((one.request, request_digest(one)), (subject_of(one)[0], number))
    last: dict[str, int] = {}
    violations = []
    for entry in decided:
        subject, number = place.get((entry.request, entry.digest), ("", 0))
        if number < last.get(subject, 0):
            violations.append(f"trail: request {entry.request} was overtaken by a later one about {subject}")
        last[subject] = max(number, last.get(subject, 0))
    return violations


def _readable(requests: Iterable[RecordLike]) -> Iterator[Request]:
    for record in requests:
        if record.value is None or isinstance(record.value, UnreadableValue):
            continue
        with suppress(MalformedEventError):
            yield _requests.decode(record.value)
