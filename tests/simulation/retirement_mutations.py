"""Services with one possible mistake in the retirement of streams each; the simulation must find all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from schemas import RetiredAnswer
from stream.budget.budget_processor import BudgetProcessor
from stream.budget.decision_records import ControlPublisher
from stream.privacy.ledger.retirement import NameDigests, RetiredGrants
from stream.processing.protocol import Message, Outputs, RecordLike
from stream.worker.stream_control import StreamControl
from stream.worker.stream_records import RetiredStreamTable
from stream.worker.worker_processor import QueryProcessor
from tests.simulation.replacements import replacing


@replacing(NameDigests, "restore")
def retired_names_forgotten(*_: Any) -> None:
    """The budget service does not restore the names of retired streams."""


@replacing(RetiredGrants, "restore")
def sums_of_retired_streams_lost(*_: Any) -> None:
    """The budget service restores the budgets without the sums of retired streams."""


@replacing(RetiredStreamTable, "find")
def questions_to_retired_streams_refused(*_: Any) -> None:
    """Workers drop retired streams and forget their answers."""


@contextmanager
def definitions_deleted_before_the_digests() -> Iterator[None]:
    """The budget service writes the digests of retired streams in a transaction after that of the deletions."""
    publish, idle = ControlPublisher.publish_retired, BudgetProcessor.collect_due_outputs
    late: list[tuple[str, int, Message]] = []

    def deletions(self: ControlPublisher, retired: Mapping[str, RetiredAnswer], outputs: Outputs) -> None:
        written = Outputs()
        publish(self, retired, written)
        for topic, partition, messages in written:
            for message in messages:
                if message[1] is None:
                    outputs.add(topic, partition, message)
                else:
                    late.append((topic, partition, message))

    def digests(self: BudgetProcessor, now: float) -> Outputs:
        earlier, late[:] = list(late), []
        outputs = idle(self, now)
        for one in earlier:
            outputs.add(*one)
        return outputs

    with (
        patch.object(ControlPublisher, "publish_retired", deletions),
        patch.object(BudgetProcessor, "collect_due_outputs", digests),
    ):
        yield


@replacing(StreamControl, "drain_stale_keys")
def changelog_of_retired_streams_kept(*_: Any) -> list[Any]:
    """Workers drop retired streams and leave their records in the changelog."""
    return []


@replacing(QueryProcessor, "apply_lookup_records")
def a_late_opening_revives_a_retired_stream(
    _: Any, self: QueryProcessor, records: Sequence[RecordLike]
) -> Outputs:
    """Workers drop a retired stream once, and host it again when another client repeats its opening."""
    slots = self._control.apply_events(records)
    self._control.drop_retired(self._control.find_deleted_slots(records))
    left = [slot for slot in slots if self.streams.columns.start_number[slot]]
    self._control.refuse_unanswerable_streams(np.array(left, dtype=np.intp))
    return self._end_streams()


RETIREMENT = (
    retired_names_forgotten,
    sums_of_retired_streams_lost,
    questions_to_retired_streams_refused,
    definitions_deleted_before_the_digests,
    changelog_of_retired_streams_kept,
    a_late_opening_revives_a_retired_stream,
)
"""Contexts in which one thing in a service is broken."""
