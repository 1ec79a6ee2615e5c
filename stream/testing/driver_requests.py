"""The driver's calls that send requests."""

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
from stream.testing.memory_installation import Delivery, ReadCalls
from stream.worker.fair_shares import Limits


class MemoryBudgetCalls(ABC):
    """The client's calls for populations and allotments."""

    @abstractmethod
    def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:
        """Send a request and return its receipt."""

    @abstractmethod
    def _new_id(self) -> str: ...

    @abstractmethod
    def _entries(self, beginning: str) -> Iterator[LedgerRecord]: ...

    def register_population(self, population: Population | Mapping[str, Any]) -> Receipt:
        """Register a population; ``Refused`` if its name has another definition."""
        return self.request(registration(self._new_id, population))

    def join(self, source: str, population: str) -> Receipt:
        """Add a source to a population for good; ``Refused`` if its grants exceed that budget."""
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
        """Create or change an allotment: the analysts' part of a source's or population's budget."""
        return self.request(allotting(self._new_id, allotment, epsilon, delta, source, population, analysts))

    def list_populations(self) -> list[PopulationRecord]:
        """Return all registered populations with their budgets."""
        return [one for one in self._entries(POPULATION_KEYS) if isinstance(one, PopulationRecord)]

    def population(self, population: str) -> PopulationRecord:
        """Return a population's budget; ``Unknown`` if it is not registered."""
        found = {one.population.population: one for one in self.list_populations()}
        if population not in found:
            raise Unknown(f"population '{population}' is not registered{did_you_mean(population, found)}")
        return found[population]

    def list_allotments(
        self, *, source: str | None = None, population: str | None = None
    ) -> list[AllotmentRecord]:
        """Return the allotments of a source or population, or all allotments."""
        found = (one for one in self._entries(ALLOTMENT_KEYS) if isinstance(one, AllotmentRecord))
        return [one for one in found if is_of(one, source, population)]


_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


class RequestCalls(ReadCalls, MemoryBudgetCalls):
    """The client's calls that send requests."""

    def __init__(self, key: NoiseKey, topics: Topics, limits: Limits) -> None:
        super().__init__(key, topics, limits)
        self._made = 0
        self._last: Delivery | None = None

    def register(self, source: Source | Mapping[str, Any], table: Any = None) -> Receipt:
        """Register a source; ``table`` (a polars frame or mapping of columns) replaces its file."""
        source = as_source(source)
        self._put(source.source, table)
        return self.request(RegisterSource(request=self._new_id(), source=source))

    def register_all(self, sources: Iterable[Source], table: Any = None) -> None:
        """Register many sources with the same table; ``Refused`` for the first refusal."""
        frame = None if table is None else as_frame(table)
        requests = []
        for source in sources:
            self._put(source.source, frame)
            requests.append(RegisterSource(request=self._new_id(), source=source))
        for receipt in self.requests(requests):
            require_taken(receipt)

    def refresh(self, source: str, table: Any = None, *, close: bool = False) -> Receipt:
        """Make ``table`` the next version of a source's data; see ``Client.refresh``."""
        self._put(source, table)
        return self.request(refreshing(self._new_id, source, close=close))

    def _put(self, source: str, table: Any) -> None:
        if table is not None:
            frame = as_frame(table)
            self._frames[source] = frame
            self._tables.put(source, frame)

    def open(self, stream: StreamSpec | Mapping[str, Any], *, analyst: str | None = None) -> Receipt:
        """Open a stream and reserve its grant; ``Refused`` carries ``asked`` and ``left``."""
        return self.request(opening(self._new_id, stream, analyst))

    def extend(
        self, source: str, stream: str, epsilon: float, delta: float = 0.0, *, analyst: str | None = None
    ) -> Receipt:
        """Extend a stream's grant by as many charged answers as ``epsilon`` pays for."""
        fields = {"source": source, "stream": stream, "epsilon": epsilon, "delta": delta, "analyst": analyst}
        return self.request(extension(self._new_id, **fields))

    def close(self, source: str, stream: str, reason: str = "closed on request") -> Receipt:
        """Close a stream and refund the rest of its grant."""
        return self.request(closing(self._new_id, source, stream, reason))

    def halt(self, source: str, stream: str | None = None, reason: str = "halted on request") -> Receipt:
        """Halt a stream, or a source with all its streams."""
        return self.request(halting(self._new_id, source, stream, reason))

    def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:
        """Send a request and return its receipt; ``Refused`` if it is refused."""
        [receipt] = self.requests([request], timeout)
        require_taken(receipt)
        return receipt

    def requests(self, requests: Iterable[Request], timeout: float = REQUEST_TIMEOUT) -> list[Receipt]:  # noqa: ARG002
        """Send many requests and return their receipts, refusals included, in the same order."""
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
    """Convert a polars frame or a mapping of columns; mixed columns are read as from a text file.

    Raises:
        Invalid: columns have different lengths, or mix types that a text file cannot hold.
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
    """Raise ``Refused`` for a refusal's receipt."""
    if receipt.outcome == "refused":
        raise Refused(receipt.reason or "refused", receipt.asked, receipt.left)
