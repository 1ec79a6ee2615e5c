"""The records of an installation in memory, in the form that the checker reads."""

from __future__ import annotations

from sotto import Driver
from stream.processing.protocol import Record

Log = dict[tuple[str, int], list[Record]]


def logs_of(driver: Driver, *live: str) -> Log:
    """Return all records of an installation that the checks of a run read, and those of the topics ``live``."""
    topics = driver.topics
    checked = (
        topics.queries,
        topics.control,
        topics.answers,
        topics.state,
        topics.charges,
        topics.ledger,
        topics.trail,
        topics.requests,
    )
    found: Log = {}
    for topic in (*checked, *live):
        for record in driver.records(topic):
            found.setdefault((topic, record.partition), []).append(record)
    return found
