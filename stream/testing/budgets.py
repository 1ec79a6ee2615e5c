"""The driver's calls about populations and allotments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from schemas import AllotmentRecord, LedgerRecord, Population, PopulationRecord, Receipt, Request
from stream.asking.budgets import ALLOTMENT_KEYS, POPULATION_KEYS, allotting, is_of, joining, registration
from stream.asking.questions import REQUEST_TIMEOUT
from stream.errors import Unknown
from stream.suggestions import did_you_mean


class BudgetCalls(ABC):
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
