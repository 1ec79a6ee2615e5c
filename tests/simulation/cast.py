"""The installation of every schedule: its settings, its streams, and what breaks its processor."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

from schemas import StreamSpec
from sotto import Driver
from stream.processing.protocol import Outputs, Record
from stream.settings import Settings
from stream.tables.store import TableStore
from stream.worker.admission import QueryBatch
from stream.worker.fair_shares import Limits
from stream.worker.worker_processor import QueryProcessor
from tests.builders import KEY
from tests.chaos.load import ROWS, sources, specs
from tests.simulation.clock import EPOCH

PARTITIONS = 2
PLAIN_STREAMS = 2
CASTS = 4
"""The number of schedules among which the mechanisms are divided, for speed; every schedule has plain sparse vectors."""
LIMITS = Limits.from_seconds(0.006, 0.002)
"""Limits that accept about ten questions that cost work at once, and a few more in each second."""
EDGE = 5.0
"""Seconds into a schedule at which the budgets that renew begin a new period, in the middle of the load."""
EVERYBODY = "everybody"
"""The population of the table; the survey joins it later."""
SETTINGS = Settings(
    prefix="sim",
    partitions=PARTITIONS,
    session_timeout_ms=4000,
    heartbeat_ms=1000,
    transaction_timeout_ms=4000,
    anchor_seconds=2.0,
)


class FragileProcessor(QueryProcessor):
    """Fails at each event as many times as `failures` says, after it has already changed its state."""

    failures: Counter[bytes]

    def process(self, batch: QueryBatch) -> Outputs:
        outputs = super().process(batch)
        for record in batch.records:
            if self.failures[record.value or b""] > 0:
                self.failures[record.value or b""] -= 1
                raise ZeroDivisionError
        return outputs


def group_of(role: str) -> str:
    """Return the consumer group of a role."""
    return f"{SETTINGS.prefix}-{role}"


def tables() -> TableStore:
    """Return a store for the tables of one process."""
    store = TableStore.keyed_by(KEY)
    store.put("people", ROWS)
    return store


@cache
def cast(number: int) -> list[StreamSpec]:
    """Return the streams of a schedule."""
    everything = specs(PLAIN_STREAMS)
    return everything[:PLAIN_STREAMS] + everything[PLAIN_STREAMS + number :: CASTS]


@cache
def installed(number: int) -> tuple[Record, ...]:
    """Return the requests, control, ledger and trail of an installation with open streams."""
    driver = Driver(KEY, partitions=PARTITIONS)
    driver.wait(EPOCH + EDGE - 3600)
    driver.register_population({"population": EVERYBODY, "epsilon": 500.0, "delta": 0.1, "renews": "1h"})
    for source in sources(Path("people.csv")):
        shared = {"feed": {"renews": "1h"}, "people": {"population": EVERYBODY}}.get(source.source, {})
        driver.register(source.model_copy(update=shared), ROWS if source.source == "people" else None)
    for spec in cast(number):
        driver.open(spec, acknowledge=True)
    topics = driver.topics
    return tuple(
        record._replace(topic=record.topic.replace(topics.prefix, SETTINGS.prefix))
        for topic in (topics.requests, topics.control, topics.ledger, topics.trail)
        for record in driver.records(topic)
    )
