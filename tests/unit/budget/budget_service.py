"""A budget service without an engine, its input of requests and charges, and its ledger."""

from __future__ import annotations

import json
from concurrent.futures import Executor
from typing import Any

from blake3 import blake3

from schemas import MAX_DEFINITION_BYTES, GrantRecord, LedgerProgress, LedgerRecord, Receipt, Request
from schemas.wire import Codec
from stream.budget.budget_processor import BudgetProcessor
from stream.processing.protocol import PROGRESS_KEY, Outputs, Record
from stream.processing.topic_names import Topics
from stream.tables.store import TableStore
from tests.builders import KEY, source
from tests.processing import process_records
from tests.unit.installation import messages_to, spec, table_store

TOPICS = Topics(partitions=1)
request_codec: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
ledger_codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=4 * MAX_DEFINITION_BYTES)


class Service:
    """A budget service, its input topics and its changelog; ``now`` is the timestamp in ms of all records.

    ``tables`` and ``threads`` are those of the processor.
    """

    def __init__(
        self, retire_after_ms: int = 0, *, tables: TableStore | None = None, threads: Executor | None = None
    ) -> None:
        self.offset = 0
        self._tables = tables or table_store()
        self._threads = threads
        self.now = 0
        self.changelog: dict[bytes, bytes] = {}
        self._retire_after_ms = retire_after_ms
        self._timestamps: dict[bytes, int] = {}
        self.processor = self._new()

    def _new(self) -> BudgetProcessor:
        def new_incarnation(record: Any) -> bytes:
            return blake3(str(record.offset).encode()).digest(16)

        return BudgetProcessor(
            TOPICS,
            0,
            key_id=KEY.key_id,
            tables=self._tables,
            new_incarnation=new_incarnation,
            retire_after_ms=self._retire_after_ms,
            threads=self._threads,
        )

    def send(self, *values: bytes | None, topic: str = TOPICS.requests) -> Outputs:
        start, self.offset = self.offset, self.offset + len(values)
        outputs = process_records(
            self.processor,
            [Record(topic, 0, start + number, self.now, b"feed", value) for number, value in enumerate(values)],
        )
        self._keep(outputs)
        return outputs

    def collect_due_outputs(self) -> Outputs:
        """Let the service collect the outputs that are due without input."""
        outputs = self.processor.collect_due_outputs(self.now / 1000)
        self._keep(outputs)
        return outputs

    def _keep(self, outputs: Outputs) -> None:
        for key, value, _ in messages_to(outputs, TOPICS.ledger):
            if value is None:
                self.changelog.pop(key, None)
            else:
                self.changelog[key], self._timestamps[key] = value, self.now

    def accounts(self) -> dict[bytes, bytes]:
        """Return all records of the ledger except its progress."""
        return {key: value for key, value in self.changelog.items() if key != PROGRESS_KEY}

    def restart(self) -> None:
        self.processor = self._new()
        log = list(self.changelog.items())
        self.processor.restore(
            Record(TOPICS.ledger, 0, n, self._timestamps.get(k, 0), k, v) for n, (k, v) in enumerate(reversed(log))
        )
        self.processor.end_restore()


def register(request: str = "register", **changes: Any) -> bytes:
    return json.dumps({"kind": "register", "request": request, "source": {**source(), **changes}}).encode()


def opening(request: str, stream: str, **changes: Any) -> bytes:
    return json.dumps({"kind": "open", "request": request, "stream": spec(stream, **changes)}).encode()


def ending(kind: str, request: str, stream: str, **more: Any) -> bytes:
    return json.dumps({"kind": kind, "request": request, "source": "feed", "stream": stream, **more}).encode()


def charge(stream: str, incarnation: str, **changes: Any) -> bytes:
    fields = {"state": "open", "answered": 1, "tops": 0, "spent": {"epsilon": 0.1, "delta": 0.0}, **changes}
    return json.dumps({"stream": stream, "source": "feed", "incarnation": incarnation, **fields}).encode()


def ledger_in(outputs: Outputs) -> list[LedgerRecord]:
    values = [value for _, value, _ in messages_to(outputs, TOPICS.ledger) if value is not None]
    return [record for record in map(ledger_codec.decode, values) if not isinstance(record, LedgerProgress)]


def receipts_in(outputs: Outputs) -> list[Receipt]:
    return [record for record in ledger_in(outputs) if isinstance(record, Receipt)]


def grant_in(outputs: Outputs) -> GrantRecord:
    [grant] = [record for record in ledger_in(outputs) if isinstance(record, GrantRecord)]
    return grant


def ready() -> Service:
    service = Service()
    service.send(register())
    return service
