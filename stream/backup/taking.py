"""Taking a backup, of an installation that may go on meanwhile.

The ledger is read to its last stable offset, and its progress record says where its trail ends: both were written in the same
transactions, so the two fit whatever is written meanwhile. The workers' changelog is read after that: what the ledger knows of a
stream's end, the changelog then has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import IO, Any

from aiokafka import TopicPartition

from schemas import MAX_RECORD_BYTES, LedgerProgress, LedgerRecord, TrailHead
from schemas.wire import Codec, MalformedEventError
from stream.backup.files import BackupError, BackupRecord, BackupWriter, Ending, Heading, TopicName
from stream.kafka.restore import read_to_end, reader, require_visible
from stream.kafka.topics import look_up
from stream.processors.base import PROGRESS_KEY
from stream.processors.topics import Topics
from stream.processors.trails import trail_codec
from stream.settings import Settings
from stream.version import VERSION

_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


async def take_backup(settings: Settings, file: IO[bytes]) -> Ending:
    """Write a backup of what is committed now into a file; memory does not grow with it.

    Raises:
        BackupError: the ledger has no trail yet, or the trail ends before the ledger says.
    """
    # Whatever their partitions: an installation that has to move because some differ is the one to be backed up.
    topics = (await look_up(settings)).topics
    began = datetime.now(UTC).isoformat(timespec="seconds")
    heading = Heading(prefix=topics.prefix, partitions=topics.partitions, began=began, sotto=VERSION)
    writer = BackupWriter(file, heading)
    consumer = reader(settings)
    await consumer.start()
    try:
        taking = _Taking(settings, topics, consumer)
        head = await taking.ledger(writer)
        await taking.trail(writer, head)
        await taking.state(writer)
    finally:
        await consumer.stop()
    return writer.end(taking.offsets, head)


class _Taking:
    """Reads the topics one after another; ``offsets`` is up to where."""

    def __init__(self, settings: Settings, topics: Topics, consumer: Any) -> None:
        self.offsets: dict[str, int] = {}
        self._topics = topics
        self._consumer = consumer
        self._batch = settings.batch_events

    async def ledger(self, writer: BackupWriter) -> TrailHead:
        """The whole ledger; gives the end of its trail."""
        progress = None
        async for record in self._read("ledger", 0):
            writer.write(record)
            if record.key == PROGRESS_KEY:
                progress = _ledger.decode(record.value)
        if not isinstance(progress, LedgerProgress) or progress.trail is None:
            raise BackupError(
                "the ledger has no trail yet; start this version's budget service and send it a request first"
            )
        return progress.trail

    async def trail(self, writer: BackupWriter, head: TrailHead) -> None:
        """The trail up to its end by the ledger."""
        count = 0
        async for record in self._read("trail", 0):
            if count == 0:
                _require_beginning(record.value)
            if count < head.entries:
                writer.write(record)
                count += 1
        if count < head.entries:
            raise BackupError(f"the trail ends after {count} entries, and the ledger knows of {head.entries}")

    async def state(self, writer: BackupWriter) -> None:
        """The workers' changelog, partition by partition."""
        for partition in range(self._topics.partitions):
            async for record in self._read("state", partition):
                writer.write(record)

    async def _read(self, name: TopicName, number: int) -> AsyncIterator[BackupRecord]:
        topic = getattr(self._topics, name)
        await require_visible(self._consumer, topic)
        partition = TopicPartition(topic, number)
        async for records in read_to_end(self._consumer, partition, self._batch, whole=True):
            for record in records:
                yield BackupRecord(name, number, record.key or b"", record.value)
        self.offsets[f"{name}/{number}"] = await self._consumer.position(partition)


def _require_beginning(first: bytes | None) -> None:
    """BackupError where what is there of a trail does not begin with its first entry: no such file would verify."""
    try:
        number = trail_codec.decode(first).number
    except MalformedEventError:
        return  # verifying says what is wrong with it
    if number:
        raise BackupError(
            f"the trail begins with entry {number}, and what was before it is lost: nothing vouches for the ledger any more; back "
            "up copies of the topics instead"
        )
