"""Which totals a worker may report: those that follow from what the ledger itself has granted and ended."""

from __future__ import annotations

from schemas import StreamState
from stream.accounting.charged import charged_answers
from stream.accounting.costs import PARTS
from stream.accounting.grants import Grant
from stream.accounting.prices import takes_alpha
from stream.accounting.refusals import RefusedError


def check_report(grant: Grant, answered: int, tops: int, surplus: int, state: StreamState) -> None:
    """Refuse totals that do not follow from what the ledger itself has granted and ended."""
    paid, parts = grant.cutoff * PARTS, tops * PARTS + surplus
    if tops > answered:
        raise RefusedError("tops: more charged answers than answers")
    if surplus and not takes_alpha(grant.calibration):
        raise RefusedError("surplus: every charged answer of this stream costs the same")
    # A charged answer costs a part at least.
    if parts - grant.parts < tops - grant.tops or (tops == grant.tops and parts != grant.parts):
        raise RefusedError("surplus: not what so many more charged answers cost")
    if paid and parts > paid:
        raise RefusedError("tops: more charged answers than the grant pays for")
    if state == "exhausted" and (parts == 0 or parts not in _cutoffs(grant)):
        raise RefusedError("state: exhausted, with charged answers left")
    if state == "closed" and grant.ending != "closed":
        raise RefusedError("state: closed, and the ledger has not closed the stream")
    if grant.state == "closed" and (answered > grant.answered or tops > grant.tops):
        raise RefusedError("answered: more than the last totals of a stream that is closed")


def _cutoffs(grant: Grant) -> set[int]:
    """After how many parts a worker may have had none left, by what it had been told."""
    extensions = grant.extensions
    return {PARTS * charged_answers(grant.calibration, extensions[:known]) for known in range(len(extensions) + 1)}
