"""Compares a trail that is read with the anchors of witnesses, and says in words what was found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from schemas import TrailHead
from stream.settings import Settings
from stream.witnesses.addresses import open_witnesses
from stream.witnesses.anchor import Anchor, WitnessError, newest_generation


class WitnessChecks:
    """The anchors of each witness, and the digests of the trail at their positions."""

    def __init__(
        self, anchors: dict[str, Sequence[Anchor]], unread: Sequence[str] = (), *, is_copy: bool = False
    ) -> None:
        """``anchors`` are those that bind, by witness; ``unread`` says which witnesses were not read.

        A copy of the trail may be older than an anchor.
        """
        self._anchors = anchors
        self._unread = unread
        self._is_copy = is_copy
        self._digests: dict[int, str | None] = {
            anchor.head.entries: None for found in anchors.values() for anchor in found
        }
        self._entries = 0

    @classmethod
    def open(cls, settings: Settings, *, is_copy: bool) -> Self:
        """Read the witnesses of the settings."""
        anchors: dict[str, Sequence[Anchor]] = {}
        unread = []
        for witness in open_witnesses(settings.witnesses):
            try:
                anchors[witness.name] = newest_generation(witness.read_newest(settings.prefix))
            except WitnessError as error:
                unread.append(f"witness not checked: {error}")
        return cls(anchors, unread, is_copy=is_copy)

    def note_head(self, head: TrailHead) -> None:
        """Note the trail's head after an entry."""
        self._entries = head.entries
        if head.entries in self._digests:
            self._digests[head.entries] = head.digest

    def findings(self) -> list[str]:
        """Return a sentence for each anchor that the trail lacks, and for each witness that was not read."""
        return [
            *(
                f"{name}: the trail lacks the head {anchor.head.entries}:{anchor.head.digest} that was anchored at "
                f"{anchor.time}; it has {self._entries} entries"
                + ("" if anchor.head.entries > self._entries else ", with another one there")
                for name in self._anchors
                for anchor in self._comparable(name)
                if not self._matches(anchor)
            ),
            *self._unread,
        ]

    def matches(self) -> list[str]:
        """Return a sentence for each witness whose anchors the trail contains."""
        return [self._describe(name) for name in self._anchors if all(map(self._matches, self._comparable(name)))]

    def _describe(self, name: str) -> str:
        found, compared = self._anchors[name], self._comparable(name)
        if not found:
            return f"{name}: has no anchor yet, so nothing was compared with it"
        later = len(found) - len(compared)
        if not compared:
            return f"{name}: all {later} anchors read are later than this copy, so nothing was compared with it"
        newest, reason = compared[0], found[-1].reason
        return (
            f"{name}: the trail contains {len(compared)} anchors, the newest of {newest.head.entries} entries at {newest.time}"
            + (f"; {later} are later than this copy" if later else "")
            + (f"; a rollback was accepted before: {reason}" if reason else "")
        )

    def _comparable(self, name: str) -> list[Anchor]:
        """Return a witness's anchors, of a copy only those that it is long enough for."""
        return [one for one in self._anchors[name] if not self._is_copy or one.head.entries <= self._entries]

    def _matches(self, anchor: Anchor) -> bool:
        return self._digests[anchor.head.entries] == anchor.head.digest
