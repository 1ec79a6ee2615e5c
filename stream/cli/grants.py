"""Grants as commands show them: the ledger's record, and what the stream's worker last said of it.

The ledger hears of a stream when it is charged, and at its end. In between answers may be free: their number is in the
digests that workers show every few seconds, and so is that a worker does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from schemas import Amount, GrantRecord, StreamStatus
from stream.accounting.charged import charged_answers
from stream.accounting.costs import shown_state, whole_left
from stream.client import AsyncClient
from stream.errors import Forbidden
from stream.processors.periods import IN_PERIODS

_ENDINGS = {"closed": "closing", "halted": "halting"}


@dataclass(frozen=True, slots=True)
class ShownGrant:
    """A grant with its worker's last digest, and when that was written, in seconds since the epoch."""

    grant: GrantRecord
    digest: StreamStatus | None = None
    written: float | None = None

    @property
    def _newer(self) -> StreamStatus | None:
        """The digest, where it knows at least as much as the ledger."""
        digest, grant = self.digest, self.grant
        if digest is None or digest.incarnation != grant.identity.incarnation or grant.settled:
            return None
        return digest if (digest.answered, digest.tops) >= (grant.answered, grant.tops) else None

    @property
    def answered(self) -> int:
        """Answers so far."""
        return (self._newer or self.grant).answered

    @property
    def tops(self) -> int:
        """Charged answers so far."""
        return (self._newer or self.grant).tops

    @property
    def spent(self) -> Amount:
        """What is spent so far."""
        return (self._newer or self.grant).spent

    @property
    def state(self) -> str:
        """What the stream does: its state, the ending that is asked for, or that its worker does not answer."""
        grant, newer = self.grant, self._newer
        if grant.state != "open":
            return grant.state
        if grant.ending is not None:
            return _ENDINGS[grant.ending]
        if newer is None:
            return "open"
        if newer.refused not in {None, IN_PERIODS}:
            return "not answering"
        # A worker that says that it is exhausted may not know of an extension yet.
        left = whole_left(self._cutoff, newer.tops, newer.surplus) if self._cutoff else None
        state = "open" if newer.state == "exhausted" else newer.state
        return shown_state(state, left, getattr(grant.spec.mechanism, "beyond", "end"))

    @property
    def reason(self) -> str | None:
        """Why it is so; a reason that begins with the state is told without it."""
        newer = self._newer
        reason = (
            newer.refused if newer is not None and newer.refused not in {None, IN_PERIODS} else self.grant.reason
        )
        return None if reason is None else reason.removeprefix(f"{self.state}: ")

    @property
    def as_of(self) -> str:
        """What the figures are as of: the end, the worker's digest, or the last charge that the ledger has."""
        if self.grant.settled:
            return "its end"
        if self._newer is None or self.written is None:
            return "the last charge" if self.grant.answered else "the opening"
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.written))

    @property
    def charged(self) -> str:
        """How many ordinary charges are used, of how many; or that one charge pays for all."""
        left = whole_left(self._cutoff, self.tops, (self._newer or self.grant).surplus)
        return f"{self._cutoff - left} / {self._cutoff}" if self._cutoff else "once"

    @property
    def _cutoff(self) -> int:
        return charged_answers(self.grant.calibration, self.grant.extensions)


async def shown_grants(client: AsyncClient, grants: Iterable[GrantRecord]) -> list[ShownGrant]:
    """Grants with what their workers last said; without it where Kafka does not let us read ``status``."""
    listed = list(grants)
    try:
        digests = await client.digests(grant.spec.stream for grant in listed if not grant.settled)
    except Forbidden:
        digests = {}
    return [ShownGrant(grant, *digests.get(grant.spec.stream, (None, None))) for grant in listed]
