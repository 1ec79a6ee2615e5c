"""Checks that a trail contains an anchored head, and that a ledger's head follows it."""

from __future__ import annotations

from schemas import TrailHead
from schemas.codecs import trail_codec
from schemas.wire import MalformedEventError
from stream.budget.receipts import EMPTY_TRAIL_HEAD, BrokenTrailError, check_next_entry, entry_digest


class AnchoredTrail:
    """Follows a trail from an anchored head to the ledger's head; the digests chain all earlier entries."""

    def __init__(self, anchored: TrailHead, ledger: TrailHead | None) -> None:
        """``ledger`` is the trail's head in the ledger; None if the ledger has no trail."""
        self._anchored = anchored
        self._ledger = ledger or EMPTY_TRAIL_HEAD
        self._head = EMPTY_TRAIL_HEAD if anchored.entries == 0 else None
        self._finding: str | None = None
        if self._ledger.entries < anchored.entries:
            self._finding = (
                f"the ledger was last written with {self._ledger.entries} entries of the trail, but "
                f"{anchored.entries} were anchored"
            )

    @property
    def first_entry(self) -> int:
        """The number of the first entry that must be added."""
        return max(0, self._anchored.entries - 1)

    @property
    def is_decided(self) -> bool:
        """True if further entries cannot change the finding."""
        return self._finding is not None or (self._head is not None and self._head.entries >= self._ledger.entries)

    def add_entry(self, value: bytes | None) -> None:
        """Check the next entry's bytes; entries before ``first_entry`` do not count."""
        if self.is_decided:
            return
        if self._head is not None:
            try:
                self._head, _ = check_next_entry(self._head, value)
            except BrokenTrailError as broken:
                self._finding = str(broken)
            return
        try:
            entry = trail_codec.decode(value)
        except MalformedEventError:
            return  # the anchored entry is missing, unless it comes later
        if entry.number != self.first_entry:
            return
        digest = entry_digest(value or b"")
        if digest != self._anchored.digest:
            self._finding = f"entry {entry.number} of the trail differs from the anchored one"
        self._head = TrailHead(entries=entry.number + 1, digest=digest, time=entry.time)

    def finding(self) -> str | None:
        """Return the difference from the anchor after the last entry; None if there is none."""
        if self._finding is not None:
            return self._finding
        if self._head is None:
            return f"the trail has no entry {self.first_entry}, which was anchored"
        if self._head.entries < self._ledger.entries:
            return f"the trail ends after {self._head.entries} entries, but the ledger has {self._ledger.entries}"
        if self._head.digest != self._ledger.digest:
            return f"the ledger was written with another entry {self._head.entries - 1} than the trail has"
        return None
