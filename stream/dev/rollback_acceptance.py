"""Accepts that topics were rolled back behind the anchors of witnesses.

Requests and answers after the remaining records are lost, but may have been published. So each stream that
is not closed is halted and counts as wholly spent, as after the import of a backup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import NamedTuple

from aiokafka import TopicPartition

from schemas import LedgerProgress, LedgerRecord, ledger_codec
from schemas.ledger import Since
from stream.budget.receipts import RECEIPT_KEY_PREFIX, BrokenTrailError
from stream.budget.trail_verification import TrailCheck
from stream.dev.backup_file import BackupError
from stream.dev.backup_transfer import TRANSACTION_TIMEOUT_MS, RestoredLedger, retry_until_coordinated
from stream.engine.restore import read_to_end, reader
from stream.engine.writer import Writer
from stream.kafka.client.broker_connections import admin_client
from stream.kafka.client.client_patches import group_members
from stream.kafka.topics.creation import require_topics
from stream.kafka.topics.layouts import budget_group
from stream.processing.topic_names import Topics
from stream.services.witness_guards import read_ends
from stream.settings import Settings
from stream.witnesses.anchor import Anchor, begin_generation, largest_end, read_binding_anchors
from stream.witnesses.witness_kinds import open_witnesses


class AcceptedRollback(NamedTuple):
    """Numbers of sources, and of streams that count as wholly spent."""

    sources: int
    lost: int


async def accept_rollback(settings: Settings, since: Since, reason: str) -> AcceptedRollback:
    """Continue from the topics as they are; the trail and each witness get the reason.

    Args:
        settings: of the installation.
        since: the operator's statement about grants in the lost time, as in ``TrailRestored``.
        reason: the operator's reason.

    Raises:
        BackupError: no witness has a later anchor, the ledger does not follow from its trail, the
            budget service runs, or ``since`` contradicts an anchor.
        WitnessError: a witness cannot be read or written; then nothing was changed in Kafka.
    """
    witnesses = open_witnesses(settings.witnesses)
    if not witnesses:
        raise BackupError("SOTTO_WITNESSES: is not set; give the addresses that the budget service has")
    anchors_by_witness = await asyncio.to_thread(read_binding_anchors, witnesses, settings.prefix)
    topics = await require_topics(settings)
    await _require_stopped(settings)
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
    patient_settings = settings.model_copy(update={"transaction_timeout_ms": TRANSACTION_TIMEOUT_MS})
    writer = await Writer.fence(patient_settings, f"{budget_group(settings)}-0", budget_group(settings))
    try:
        changes = restored.make_outputs(since, restored.head.digest, reason, **positions)
        entries = next(changes)
        await asyncio.to_thread(begin_generation, witnesses, settings.prefix, restored.head, reason, ends)
        await writer.commit_parts(chain([entries], changes))
    finally:
        await writer.close()
    return AcceptedRollback(len(restored.ledger.accounts), lost)


async def _require_stopped(settings: Settings) -> None:
    group = budget_group(settings)
    async with admin_client(settings) as admin:
        if await retry_until_coordinated(partial(group_members, admin, group)):
            raise BackupError(f"services run in group {group}; stop the budget service first")


async def _read_ledger(settings: Settings, topics: Topics) -> list[LedgerRecord]:
    """Return the latest record of each key, without receipts."""
    latest: dict[bytes, bytes | None] = {}
    async with reader(settings) as consumer:
        ledger = TopicPartition(topics.ledger, 0)
        async for records in read_to_end(consumer, ledger, settings.batch_events, whole=True):
            latest.update(
                (record.key, record.value) for record in records if not record.key.startswith(RECEIPT_KEY_PREFIX)
            )
    return [ledger_codec.decode(value) for value in latest.values() if value is not None]


async def _check_trail(
    settings: Settings, topics: Topics, check: TrailCheck, records: Sequence[LedgerRecord]
) -> list[str]:
    """Add the trail's entries to a check; return how it differs from the anchors.

    Raises:
        BackupError: the trail is broken, or the ledger does not follow from it.
    """
    try:
        async with reader(settings) as consumer:
            trail = TopicPartition(topics.trail, 0)
            async for batch in read_to_end(consumer, trail, settings.batch_events, whole=True):
                for record in batch:
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
