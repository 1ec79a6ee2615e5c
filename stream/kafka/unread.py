"""What becomes of records that could not be read, by who reads them: an input's are refused, a table's are passed over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiokafka import ConsumerRecord, TopicPartition

from stream.log import get_logger
from stream.processors.unread import Unread

if TYPE_CHECKING:  # a client counts nothing
    from prometheus_client import Counter

log = get_logger("unread")


class UnreadableChangelogError(RuntimeError):
    """A changelog holds what cannot be read: nobody knows what its partition has answered."""

    def __init__(self, source: TopicPartition, offset: int) -> None:
        super().__init__(
            f"{source.topic}, partition {source.partition}: what ends at offset {offset} cannot be read; somebody else than "
            f"the service has written there: take the right away and bring back a copy of {source.topic}"
        )


def tell_of_unread(records: Sequence[ConsumerRecord], counter: Counter | None = None) -> int:
    """Count those of a batch that could not be read, and log the first of them; nothing of what they hold."""
    if getattr(records, "all_are_read", False):
        return 0
    found = [record for record in records if isinstance(record.value, Unread)]
    if found:
        first = found[0]
        batch = first.value.batch
        log.error(
            "refused unread",
            topic=first.topic,
            partition=first.partition,
            offset=first.offset if batch is None else batch.first,
            last=found[-1].offset,
            count=len(found),
            reason=first.value.rejection.message,
        )
        if counter is not None:
            counter.inc(len(found))
    return len(found)


def readable(records: Sequence[ConsumerRecord], counter: Counter | None = None) -> Sequence[ConsumerRecord]:
    """Those that could be read. The log tells of the others."""
    if not tell_of_unread(records, counter):
        return records
    return [record for record in records if not isinstance(record.value, Unread)]
