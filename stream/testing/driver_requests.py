"""The requests of a client, to an installation in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from schemas import (
    MAX_DEFINITION_BYTES,
    MAX_RECORD_BYTES,
    AllotmentRecord,
    LedgerRecord,
    Population,
    PopulationRecord,
    Receipt,
    RegisterSource,
    Request,
    Source,
    StreamSpec,
    subject_of,
)
from schemas.wire import Codec
from stream.errors import Invalid, Refused, Unknown
from stream.formatting import did_you_mean
from stream.privacy.noise import NoiseKey
from stream.processing.receipts import RECEIPT_PREFIX, request_digest
from stream.processing.topic_names import Topics
from stream.questions.question_forms import (
    ALLOTMENT_KEYS,
    POPULATION_KEYS,
    REQUEST_TIMEOUT,
    allotting,
    as_requests,
    as_source,
    closing,
    extension,
    halting,
    is_of,
    joining,
    opening,
    refreshing,
    registration,
)
from stream.tables.rows import in_memory
from stream.testing.memory_installation import Given, Recorded
from stream.worker.fair_shares import Limits


class MemoryBudgetCalls(ABC):
    """What of a client is about budgets that sources and analysts share."""

    @abstractmethod
    def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:
        """Send a request and give its receipt."""

    @abstractmethod
    def _new_id(self) -> str: ...

    @abstractmethod
    def _entries(self, beginning: str) -> Iterator[LedgerRecord]: ...

    def register_population(self, population: Population | Mapping[str, Any]) -> Receipt:
        """Register a population."""
        return self.request(registration(self._new_id, population))

    def join(self, source: str, population: str) -> Receipt:
        """Let a source belong to a population, for good."""
        return self.request(joining(self._new_id, source, population))

    def allot(
        self,
        allotment: str,
        epsilon: float,
        delta: float | None = None,
        *,
        source: str | None = None,
        population: str | None = None,
        analysts: Sequence[str] = (),
    ) -> Receipt:
        """Let analysts have a part of a source's or a population's budget, or change the part that they have."""
        return self.request(allotting(self._new_id, allotment, epsilon, delta, source, population, analysts))

    def list_populations(self) -> list[PopulationRecord]:
        """All populations that are registered, with their budgets."""
        return [one for one in self._entries(POPULATION_KEYS) if isinstance(one, PopulationRecord)]

    def population(self, population: str) -> PopulationRecord:
        """A population's budget as the ledger topic shows it; Unknown if it is not registered."""
        found = {one.population.population: one for one in self.list_populations()}
        if population not in found:
            raise Unknown(f"population '{population}' is not registered{did_you_mean(population, found)}")
        return found[population]

    def list_allotments(
        self, *, source: str | None = None, population: str | None = None
    ) -> list[AllotmentRecord]:
        """The allotments of a source or population, or all that there are."""
        found = (one for one in self._entries(ALLOTMENT_KEYS) if isinstance(one, AllotmentRecord))
        return [one for one in found if is_of(one, source, population)]


_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


class Requesting(Recorded, MemoryBudgetCalls):
    """The calls of a client that change what there is."""

    def __init__(self, key: NoiseKey, topics: Topics, limits: Limits) -> None:
        super().__init__(key, topics, limits)
        self._made = 0
        self._last: Given | None = None

    def register(self, source: Source | Mapping[str, Any], table: Any = None) -> Receipt:
        """Register a source; ``table`` (a polars frame or a mapping of columns) stands in for its path."""
        source = as_source(source)
        self._put(source.source, table)
        return self.request(RegisterSource(request=self._new_id(), source=source))

    def register_all(self, sources: Iterable[Source], table: Any = None) -> None:
        """Register many sources at once, of equal tables if of any; Refused says what is wrong with the first that is refused."""
        frame = None if table is None else as_frame(table)
        requests = []
        for source in sources:
            self._put(source.source, frame)
            requests.append(RegisterSource(request=self._new_id(), source=source))
        for receipt in self.requests(requests):
            require_taken(receipt)

    def refresh(self, source: str, table: Any = None, *, close: bool = False) -> Receipt:
        """Take the data that a source has now for its next version; ``table`` stands in for its path, as in ``register``.

        Streams that keep what they computed of the old version are closed, with ``close`` all are.
        """
        self._put(source, table)
        return self.request(refreshing(self._new_id, source, close=close))

    def _put(self, source: str, table: Any) -> None:
        if table is not None:
            frame = as_frame(table)
            self._frames[source] = frame
            self._tables.put(source, frame)

    def open(self, stream: StreamSpec | Mapping[str, Any], *, analyst: str | None = None) -> Receipt:
        """Open a stream; Refused says what was asked and what is left."""
        return self.request(opening(self._new_id, stream, analyst))

    def extend(
        self, source: str, stream: str, epsilon: float, delta: float = 0.0, *, analyst: str | None = None
    ) -> Receipt:
        """Grant a stream as many further charged answers as ``epsilon`` pays for."""
        fields = {"source": source, "stream": stream, "epsilon": epsilon, "delta": delta, "analyst": analyst}
        return self.request(extension(self._new_id, **fields))

    def close(self, source: str, stream: str, reason: str = "closed on request") -> Receipt:
        """Close a stream and refund what it did not spend."""
        return self.request(closing(self._new_id, source, stream, reason))

    def halt(self, source: str, stream: str | None = None, reason: str = "halted on request") -> Receipt:
        """Halt a stream, or a source with all its streams."""
        return self.request(halting(self._new_id, source, stream, reason))

    def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:
        """Send a request, which may be of one's own making, and give its receipt."""
        [receipt] = self.requests([request], timeout)
        require_taken(receipt)
        return receipt

    def requests(self, requests: Iterable[Request], timeout: float = REQUEST_TIMEOUT) -> list[Receipt]:  # noqa: ARG002
        """Send many requests and give their receipts in the same order, refusals among them."""
        marks, asked = self._marks(), []
        for request in as_requests(requests):
            self._append((self.topics.requests, 0), subject_of(request)[0].encode(), _requests.encode(request))
            asked.append((request.request, request_digest(request)))
        self._last = None
        self._settle()
        receipts: dict[tuple[str, str], Receipt] = {}
        for record in self._logs[self.topics.ledger, 0][marks.get((self.topics.ledger, 0), 0) :]:
            if record.value is not None and (record.key or b"").startswith(RECEIPT_PREFIX):
                receipt = _ledger.decode(record.value)
                if isinstance(receipt, Receipt):
                    receipts[receipt.request, receipt.digest] = receipt
        return [receipts[one] for one in asked]

    def _new_id(self) -> str:
        self._made += 1
        return f"made-{self._made}"


def as_frame(table: Any) -> pl.DataFrame:
    """A table as a frame: it is one, or a mapping of columns, of which those of mixed cells are read as a file's.

    Invalid if its columns have different lengths, or mix what a file of text has no one spelling for.
    """
    if isinstance(table, pl.DataFrame):
        return table
    try:
        return pl.DataFrame(table)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        if not isinstance(table, Mapping):
            raise Invalid(
                f"table: {type(table).__name__} is no table; give a polars frame or a mapping of columns"
            ) from None
    columns = [_column(str(name), cells) for name, cells in table.items()]
    first = columns[0]
    other = next((one for one in columns if len(one) != len(first)), None)
    if other is not None:
        raise Invalid(
            f"table: column '{first.name}' has {len(first)} cells and column '{other.name}' has {len(other)}; give each row a cell in "
            "every column, None where it has none"
        )
    return pl.DataFrame(columns)


def _column(name: str, cells: Any) -> pl.Series:
    try:
        return pl.Series(name, cells)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        if not isinstance(cells, Sequence):
            raise Invalid(
                f"table: column '{name}' is of type {type(cells).__name__}; give a list of cells"
            ) from None
    kinds = {type(cell) for cell in cells}
    if not kinds <= {str, int, float, type(None)}:
        mixed = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise Invalid(
            f"table: column '{name}' has cells of types {mixed}; give texts, numbers and None, or one other type alone"
        )
    return in_memory({name: cells}, [name])[name]


def require_taken(receipt: Receipt) -> None:
    """Raise Refused where a receipt says so."""
    if receipt.outcome == "refused":
        raise Refused(receipt.reason or "refused", receipt.asked, receipt.left)
