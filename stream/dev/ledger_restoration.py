"""Continues from an earlier state: restores a backup, or accepts that topics were rolled back.

Requests and answers after that state are lost, but may have been published. So each stream that is
not closed is halted and counts as wholly spent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Final, TypeVar

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)

from schemas import LedgerProgress, LedgerRecord, Progress, TrailHead, ledger_codec
from schemas.ledger import LostTimeStatement
from stream.budget.decision_records import ControlPublisher, TrailWriter
from stream.budget.receipts import EMPTY_TRAIL_HEAD, RECEIPT_KEY_PREFIX, BrokenTrailError
from stream.budget.trail_verification import TrailCheck
from stream.dev.backup_file import BackupError, BackupFile, BackupRecord, check_backup
from stream.engine.restore import create_reader, read_ends, read_to_end
from stream.engine.writer import Writer
from stream.kafka.client.broker_connections import admin_client
from stream.kafka.client.client_patches import RefusedTimeError, group_members
from stream.kafka.topic_creation import read_topics, require_topics
from stream.kafka.topic_layouts import budget_group, layout, worker_group
from stream.privacy.ledger.ledger_records import restore_ledger
from stream.privacy.ledger.state_machine import Ledger
from stream.processing.protocol import PROGRESS_KEY, REPEATED_HEADER, Outputs
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of
from stream.settings import Settings
from stream.witnesses.anchor import Anchor, begin_generation, largest_end, read_newest_generations
from stream.witnesses.witness_kinds import open_witnesses

TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Brokers' default of ``transaction.max.timeout.ms``."""
RECORDS_PER_BATCH: Final = 1_000
_COORDINATOR_TIMEOUT_SECONDS: Final = 60.0
Result = TypeVar("Result")
_NO_COORDINATOR_ERRORS: Final = (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)
_UPDATE_KEY_PREFIX: Final = b"@update|"


async def restore_backup(
    settings: Settings, backup: BackupFile, since: LostTimeStatement, noted: Iterable[TrailHead] = ()
) -> tuple[int, int]:
    """Restore a backup into an installation's empty topics, in one transaction.

    Returns the number of sources, and the number of streams that were not closed and are lost.

    Args:
        settings: the settings of the new installation.
        backup: the file.
        since: the operator's knowledge of grants after the backup, as in ``make_outputs``.
        noted: heads of the trail that the operator has noted; the backup must contain them.

    Raises:
        BackupError: the backup is incomplete or invalid, or the installation is not empty, is running,
            or has another prefix or number of partitions.
    """
    witnesses = open_witnesses(settings.witnesses)
    anchored = chain.from_iterable(read_newest_generations(witnesses, settings.prefix))
    checked = check_backup(backup, [*noted, *(anchor.head for anchor in anchored)])
    if since == "nothing" and checked.missing_heads:
        raise BackupError(f"{checked.missing_heads[0]}; so there were requests since the backup, see '--since'")
    if findings := checked.findings:
        more = f"; and {len(findings) - 1} more, see 'sotto ledger verify'" if len(findings) > 1 else ""
        raise BackupError(f"{backup.path} is invalid: {findings[0]}{more}")
    topics = await require_topics(settings)
    _require_same_layout(backup, topics)
    await _require_empty(settings, topics)
    restored = RestoredLedger(topics, checked.ledger_records)
    streams = {stream.encode() for _, stream in restored.streams()}
    lost = restored.count_lost_streams()
    writer = await _fence_budget_service(settings)
    changes = restored.make_outputs(since, checked.ending.digest)
    try:
        trail_entries = next(changes)
        reason = f"import of a backup, since {since}"
        await asyncio.to_thread(begin_generation, witnesses, topics.prefix, restored.head, reason)
        await writer.commit_parts(chain(_records_of_backup(backup, topics, streams), [trail_entries], changes))
    finally:
        await writer.close()
    return len(restored.ledger.accounts), lost


def _records_of_backup(backup: BackupFile, topics: Topics, streams: set[bytes]) -> Iterator[Outputs]:
    for records in _batches(_convert_record(record, streams) for record in backup.records()):
        outputs = Outputs()
        for record in records:
            if record is not None:
                headers = [(REPEATED_HEADER, b"")] if record.topic == "ledger" else ()
                outputs.add(getattr(topics, record.topic), record.partition, (record.key, record.value, headers))
        yield outputs


def _convert_record(record: BackupRecord, streams: set[bytes]) -> BackupRecord | None:
    """Convert a record for the restore; None if it is not restored.

    The ledger's position in the old topics, and the state of streams that the ledger lacks, are not restored.
    """
    if record.topic == "trail":
        return record
    if record.topic == "ledger":
        return None if record.key == PROGRESS_KEY else record
    if record.key == PROGRESS_KEY:
        # The new topic of queries is read from offset 0.
        progress = Progress.model_validate_json(record.value or b"").model_copy(update={"offset": 0})
        return record._replace(value=progress.model_dump_json(exclude_defaults=True).encode())
    stream = (
        record.key.removeprefix(_UPDATE_KEY_PREFIX).partition(b"|")[2]
        if record.key.startswith(_UPDATE_KEY_PREFIX)
        else record.key
    )
    return record if stream in streams else None


def _require_same_layout(backup: BackupFile, topics: Topics) -> None:
    heading = backup.heading
    if heading.prefix != topics.prefix:
        raise BackupError(
            f"{backup.path} is of the installation '{heading.prefix}', and this one is '{topics.prefix}'; set SOTTO_PREFIX"
        )
    if heading.partitions != topics.partitions:
        raise BackupError(
            f"{backup.path} is of {heading.partitions} partitions, and the topics here have {topics.partitions}; delete "
            f"them and run 'sotto topics create --partitions {heading.partitions}'"
        )


async def _require_empty(settings: Settings, topics: Topics) -> None:
    """Refuse an installation with records, running services, or committed offsets, or with topics that are hidden."""
    visible = (await read_topics(settings)).replicas
    if hidden := sorted(one.name for one in layout(topics) if one.name not in visible):
        raise BackupError(f"Kafka hides from this principal: {', '.join(hidden)}; import as an administrator")
    partitions = [
        TopicPartition(topic.name, number) for topic in layout(topics) for number in range(topic.partitions)
    ]
    async with create_reader(settings, isolation_level="read_uncommitted") as consumer:
        ends: Mapping[TopicPartition, int] = await consumer.end_offsets(partitions)
    if filled := sorted({partition.topic for partition, end in ends.items() if end}):
        raise BackupError(f"not empty: {', '.join(filled)}; restore a backup only into newly created topics")
    async with admin_client(settings) as admin:
        for group in (budget_group(settings), worker_group(settings)):
            await _require_stopped(admin, group)
            committed: dict[TopicPartition, Any] = await _retry_until_coordinated(
                partial(admin.list_consumer_group_offsets, group)
            )
            if any(partition.topic.startswith(f"{topics.prefix}.") for partition in committed):
                raise BackupError(
                    f"group {group} has offsets of topics that are gone; delete it with kafka-consumer-groups.sh"
                )


async def _require_stopped(admin: AIOKafkaAdminClient, group: str) -> None:
    if await _retry_until_coordinated(partial(group_members, admin, group)):
        raise BackupError(f"services run in group {group}; stop them first")


async def _fence_budget_service(settings: Settings) -> Writer:
    """Start a producer with the transactional id of the budget service: a running service is fenced."""
    patient_settings = settings.model_copy(update={"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS})
    try:
        return await Writer.fence(patient_settings, f"{budget_group(settings)}-0", budget_group(settings))
    except RefusedTimeError:
        raise BackupError(
            f"Kafka refuses a transaction of {TRANSACTION_TIMEOUT_MS} ms, which a restore may need; raise the brokers' "
            "transaction.max.timeout.ms to that"
        ) from None


async def _retry_until_coordinated(call: Callable[[], Awaitable[Result]]) -> Result:
    """Retry a call until the group has a coordinator; a new broker needs time to elect one."""
    deadline = time.monotonic() + _COORDINATOR_TIMEOUT_SECONDS
    while True:
        try:
            return await call()
        except _NO_COORDINATOR_ERRORS:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


LOST_ANSWERS_REASON: Final = "restored from a backup: its answers since the backup are not known"
HALTED_REASON: Final = "restored from a backup: grants since the backup are not known"
ROLLBACK_REASONS: Final = (
    "a rollback was accepted: later answers are not known",
    "a rollback was accepted: later grants are not known",
)
"""Reasons for streams, and for sources and populations, if topics are older than an anchor and no backup was imported."""


class RestoredLedger:
    """The ledger of a backup; makes further records, so that no budget is spent twice.

    Streams that were not closed may have answered after the backup. They are halted for ever and count as
    wholly spent: their noise is never drawn for another question, and their grants are never refunded.
    """

    def __init__(self, topics: Topics, records: Iterable[LedgerRecord]) -> None:
        """Restore the ledger from the latest record of each key, without receipts."""
        records = list(records)
        self._topics = topics
        self._control_publisher = ControlPublisher(topics)
        self.ledger = Ledger()
        restore_ledger(self.ledger, records)
        self._trail = TrailWriter(topics, self.ledger)
        for record in records:
            if isinstance(record, LedgerProgress):
                self._trail.restore(record.trail)

    def streams(self) -> list[tuple[str, str]]:
        """Return the source and the name of each stream that was ever opened."""
        return [(name, stream) for name, account in self.ledger.accounts.items() for stream in account.grants]

    def count_lost_streams(self) -> int:
        """Return the number of streams that were not closed."""
        grants = (grant for account in self.ledger.accounts.values() for grant in account.grants.values())
        return sum(grant.state != "closed" for grant in grants)

    @property
    def head(self) -> TrailHead:
        """The trail's head; after the first outputs, the head of the trail with the restoration's entries."""
        return self._trail.head or EMPTY_TRAIL_HEAD

    def make_outputs(
        self,
        since: LostTimeStatement,
        backup_digest: str,
        reason: str | None = None,
        *,
        requests: int = 0,
        charges: int = 0,
    ) -> Iterator[Outputs]:
        """Yield all changed records and a control event for each stream, in batches.

        The first outputs have all new entries of the trail. ``requests`` and ``charges`` are the next
        offsets of these topics, which are 0 in new topics.

        ``since`` is the operator's knowledge of the time after the backup:

        - ``nothing``: no grant was made.
        - ``halt``: grants are unknown; all sources and populations are halted.
        - ``accept_loss``: grants are unknown; all sources and populations continue.

        ``backup_digest`` is the digest of the file. ``reason`` is the operator's, if a rollback is accepted.
        """
        lost_answers, lost_grants = (LOST_ANSWERS_REASON, HALTED_REASON) if reason is None else ROLLBACK_REASONS
        lost = sum([self.ledger.halt_lost_stream(*names, lost_answers) for names in self.streams()])
        if since == "halt":
            for name, account in self.ledger.accounts.items():
                if account.state == "open":
                    self.ledger.halt_source(name, lost_grants)
            # The backup lacks sources that joined later, and their grants.
            for name, people in self.ledger.populations.items():
                if people.state == "open":
                    self.ledger.halt_population(name, lost_grants)
        outputs = Outputs()
        self._trail.write_restored(since, lost, backup_digest, outputs, reason)
        yield outputs
        for changes in _batches(self.ledger.drain_changes()):
            outputs = Outputs()
            for change in changes:
                self._write(outputs, *change)
            yield outputs
        for streams in _batches(self.streams()):
            outputs = Outputs()
            for source, stream in streams:
                found = self.ledger.find_stream(source, stream)
                self._control_publisher.publish_control(*found, outputs, repeats=True)
            yield outputs
        outputs = Outputs()
        progress = LedgerProgress(requests=requests, charges=charges, trail=self._trail.head)
        self._write(outputs, "", PROGRESS_KEY, progress)
        yield outputs

    def _write(self, outputs: Outputs, source: str, key: bytes, record: LedgerRecord | None) -> None:
        value = None if record is None else ledger_codec.encode(record)
        partition = partition_of(source.encode(), LEDGER_PARTITIONS)
        outputs.add(self._topics.ledger, partition, (key, value, ()))


def _batches(items: Iterable[Result]) -> Iterator[list[Result]]:
    remaining = iter(items)
    while batch := list(islice(remaining, RECORDS_PER_BATCH)):
        yield batch


async def accept_rollback(settings: Settings, since: LostTimeStatement, reason: str) -> tuple[int, int]:
    """Continue from the topics as they are; the trail and each witness get the reason.

    Returns the number of sources, and the number of lost streams, which count as wholly spent.

    Args:
        settings: the settings of the installation.
        since: the operator's statement about grants in the lost time, as in ``TrailRestored``.
        reason: the operator's reason.

    Raises:
        BackupError: no witness has a later anchor, the ledger does not follow from its trail, the
            budget service runs, or ``since`` contradicts an anchor.
        WitnessError: a witness cannot be read or written; in this case nothing was changed in Kafka.
    """
    witnesses = open_witnesses(settings.witnesses)
    if not witnesses:
        raise BackupError("SOTTO_WITNESSES: is not set; give the addresses that the budget service has")
    anchors_by_witness = await asyncio.to_thread(read_newest_generations, witnesses, settings.prefix)
    topics = await require_topics(settings)
    async with admin_client(settings) as admin:
        await _require_stopped(admin, budget_group(settings))
    records = await _read_ledger(settings, topics)
    if not records:
        raise BackupError("the ledger is empty; import a backup, see 'sotto ledger import'")
    check = TrailCheck(one[0].head for one in anchors_by_witness if one)
    differs = await _check_trail(settings, topics, check, records)
    missing = [*differs, *check.missing_heads()]
    ends = await read_ends(settings, topics)
    if not missing and not _are_behind(ends, anchors_by_witness):
        raise BackupError("no witness has a later anchor than the topics; there is nothing to accept")
    if since == "nothing" and missing:
        raise BackupError(f"{missing[0]}; so there were requests after this state, see '--since'")
    restored = RestoredLedger(topics, records)
    lost = restored.count_lost_streams()
    progress = next((one for one in records if isinstance(one, LedgerProgress)), None)
    positions = {} if progress is None else {"requests": progress.requests, "charges": progress.charges}
    writer = await _fence_budget_service(settings)
    try:
        changes = restored.make_outputs(since, restored.head.digest, reason, **positions)
        trail_entries = next(changes)
        await asyncio.to_thread(begin_generation, witnesses, settings.prefix, restored.head, reason, ends)
        await writer.commit_parts(chain([trail_entries], changes))
    finally:
        await writer.close()
    return len(restored.ledger.accounts), lost


async def _read_ledger(settings: Settings, topics: Topics) -> list[LedgerRecord]:
    latest: dict[bytes, bytes | None] = {
        record.key: record.value
        async for record in _read_records(settings, topics.ledger)
        if not record.key.startswith(RECEIPT_KEY_PREFIX)
    }
    return [ledger_codec.decode(value) for value in latest.values() if value is not None]


async def _read_records(settings: Settings, topic: str) -> AsyncIterator[Any]:
    async with create_reader(settings) as consumer:
        async for records in read_to_end(consumer, TopicPartition(topic, 0), settings.batch_events, whole=True):
            for record in records:
                yield record


async def _check_trail(
    settings: Settings, topics: Topics, check: TrailCheck, records: Sequence[LedgerRecord]
) -> list[str]:
    """Add the trail's entries to a check; return how it differs from the anchors.

    Raises:
        BackupError: the trail is broken, or the ledger does not follow from it.
    """
    try:
        async for record in _read_records(settings, topics.trail):
            check.add_entry(record.value)
    except BrokenTrailError as broken:
        faults = [str(broken)]
    else:
        faults = check.compare_ledger(records)
    if faults:
        raise BackupError(
            f"the ledger does not follow from its trail: {faults[0]}; first restore both topics to the same moment"
        )
    return check.findings()


def _are_behind(ends: dict[str, tuple[int, ...]], anchors_by_witness: Sequence[Sequence[Anchor]]) -> bool:
    return any(
        largest_end(anchors, name, partition) > end
        for name, offsets in ends.items()
        for partition, end in enumerate(offsets)
        for anchors in anchors_by_witness
    )
