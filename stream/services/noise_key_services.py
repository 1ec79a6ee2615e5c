"""Builds the engines of the services that have the noise key: worker and budget service.

Feeds have no key and do not import this module.
"""

from __future__ import annotations

import secrets

from stream.engine.group_engine import Engine
from stream.engine.health import ServiceHealth
from stream.engine.session import EngineRole, SessionGuard
from stream.kafka.topics.layouts import budget_group, worker_group
from stream.privacy.noise.keyed_noise import NoiseKey
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics
from stream.settings import MS_PER_DAY, Settings
from stream.tables.engines.statements import EngineLimits
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.store import TableStore


def table_store(settings: Settings, key: NoiseKey, *, keeps_tables: bool = True) -> TableStore:
    """Return the tables that services may read.

    With ``keeps_tables``, the most recently read tables stay in memory.
    """
    limits = ReadingLimits.parse(
        settings.table_roots,
        table_bytes=settings.table_bytes,
        reading_bytes=settings.table_reading_bytes,
        seconds=settings.table_reading_seconds,
        reveals_causes=settings.table_causes,
        engine=EngineLimits.from_settings(settings),
    )
    reader = GuardedReader(limits)
    return TableStore.keyed_by(key, read=reader.read, stamp=reader.stamp, keeps_tables=keeps_tables)


def witness_guard(
    settings: Settings, topics: Topics, health: ServiceHealth, *, anchors: bool = False
) -> SessionGuard:
    """Return the guard that compares partitions with the witnesses, and also writes ``anchors``.

    Raises:
        WitnessError: an address of the setting is none of a witness.
        Missing: a witness needs a package that is not installed.
    """
    if not settings.witnesses:
        return SessionGuard()
    from stream.services.witness_guards import AnchoringGuard, WitnessGuard  # noqa: PLC0415  (few have witnesses)
    from stream.witnesses.addresses import open_witnesses  # noqa: PLC0415

    guard = AnchoringGuard if anchors else WitnessGuard
    return guard(settings, topics, open_witnesses(settings.witnesses), health.metrics)


def build_worker_engine(
    settings: Settings, topics: Topics, key: NoiseKey, health: ServiceHealth | None = None
) -> Engine:
    """Return an engine that answers queries."""
    from stream.worker.fair_shares import Limits  # noqa: PLC0415
    from stream.worker.worker_processor import QueryProcessor  # noqa: PLC0415  (imports of the other role are slow)

    tables = table_store(settings, key)
    limits = Limits.of(settings.work_outstanding, settings.work_rate)
    health = health or ServiceHealth("worker")
    role = EngineRole(
        name="worker",
        group=worker_group(settings),
        status_topic=topics.status,
        make_processor=lambda partition: QueryProcessor(topics, partition, key, tables, limits),
        guard=witness_guard(settings, topics, health),
    )
    return Engine(role, settings, [topics.queries, topics.control], partitions=topics.partitions, health=health)


def build_budget_engine(
    settings: Settings, topics: Topics, key: NoiseKey, health: ServiceHealth | None = None
) -> Engine:
    """Return an engine that decides requests and writes the ledger."""
    from stream.budget.budget_processor import BudgetProcessor  # noqa: PLC0415  (imports of the other role are slow)

    tables = table_store(settings, key, keeps_tables=False)
    health = health or ServiceHealth("budget")
    role = EngineRole(
        name="budget",
        group=budget_group(settings),
        status_topic=topics.status,
        make_processor=lambda partition: BudgetProcessor(
            topics,
            partition,
            key_id=key.key_id,
            tables=tables,
            new_incarnation=lambda _: secrets.token_bytes(16),
            retire_after_ms=round(settings.retire_days * MS_PER_DAY),
        ),
        guard=witness_guard(settings, topics, health, anchors=True),
    )
    return Engine(
        role,
        settings,
        [topics.requests, topics.charges],
        partitions=LEDGER_PARTITIONS,
        copies=False,
        health=health,
    )
