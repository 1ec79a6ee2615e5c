"""Restores a ledger from a backup without spending any budget twice.

Streams that were not closed may have answered after the backup. They are halted for good and count
as wholly spent: their noise is never drawn for another question, and they are never refunded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

from schemas import MAX_RECORD_BYTES, LedgerProgress, LedgerRecord
from schemas.trail import Since
from schemas.wire import Codec
from stream.budget.openings import ControlPublisher
from stream.budget.trail_writer import TrailWriter
from stream.privacy.ledger.ledger_records import restore
from stream.privacy.ledger.state_machine import Ledger
from stream.processing.protocol import PROGRESS_KEY, Outputs
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of

LOST: Final = "brought back from a backup: what it answered since is not known"
HALTED: Final = "brought back from a backup: what was granted since is not known"

RECORDS_AT_ONCE: Final = 1_000

Item = TypeVar("Item")
_ledger_codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


class LedgerReturn:
    """Makes the records to write after a backup's records, so that its ledger continues safely."""

    def __init__(self, topics: Topics, records: Iterable[LedgerRecord]) -> None:
        """Take the latest records of each key, without receipts."""
        records = list(records)
        self._topics = topics
        self._workers = ControlPublisher(topics)
        self.ledger = Ledger()
        restore(self.ledger, records)
        self._trail = TrailWriter(topics, self.ledger)
        for record in records:
            if isinstance(record, LedgerProgress):
                self._trail.restore(record.trail)

    def streams(self) -> list[tuple[str, str]]:
        """Return the source and the name of each stream that was ever opened."""
        return [(name, stream) for name, account in self.ledger.accounts.items() for stream in account.grants]

    def lost(self) -> int:
        """Return the number of streams that were not closed."""
        grants = (grant for account in self.ledger.accounts.values() for grant in account.grants.values())
        return sum(grant.state != "closed" for grant in grants)

    def outputs(self, since: Since, backup: str) -> Iterator[Outputs]:
        """Yield all changed records and a control event for each stream, in batches.

        ``since`` says what the operator knows about the time after the backup: ``nothing`` was
        granted; or it is unknown, and sources and populations must ``halt`` or continue anyway
        (``accept_loss``). ``backup`` is the digest of the file.
        """
        lost = sum([self.ledger.lose(source, stream, LOST) for source, stream in self.streams()])
        if since == "halt":
            for name, account in self.ledger.accounts.items():
                if account.state == "open":
                    self.ledger.halt_source(name, HALTED)
            # The backup lacks sources that joined later, and their grants.
            for name, people in self.ledger.populations.items():
                if people.state == "open":
                    self.ledger.halt_population(name, HALTED)
        outputs = Outputs()
        self._trail.write_restored(since, lost, backup, outputs)
        yield outputs
        for changes in _batches(self.ledger.changes()):
            outputs = Outputs()
            for change in changes:
                self._write(outputs, *change)
            yield outputs
        for streams in _batches(self.streams()):
            outputs = Outputs()
            for source, stream in streams:
                self._workers.publish_control(*self.ledger.find(source, stream), outputs)
            yield outputs
        outputs = Outputs()
        # The topics of requests and charges are new: they are read from offset 0.
        self._write(outputs, "", PROGRESS_KEY, LedgerProgress(requests=0, charges=0, trail=self._trail.head))
        yield outputs

    def _write(self, outputs: Outputs, source: str, key: bytes, record: LedgerRecord) -> None:
        partition = partition_of(source.encode(), LEDGER_PARTITIONS)
        outputs.add(self._topics.ledger, partition, (key, _ledger_codec.encode(record), ()))


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    each = iter(items)
    while batch := list(islice(each, RECORDS_AT_ONCE)):
        yield batch
