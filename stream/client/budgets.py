"""The asynchronous client's calls about populations and allotments."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from schemas import AllotmentRecord, Population, PopulationRecord, Receipt, Request
from stream.asking.budgets import allotting, is_of, joining, registration
from stream.asking.questions import REQUEST_TIMEOUT
from stream.client.ledger import Ledger


def new_id() -> str:
    """An id that nobody else uses."""
    return uuid.uuid4().hex


class BudgetCalls(ABC):
    """What of a client is about budgets that sources and analysts share."""

    @abstractmethod
    async def request(self, request: Request, timeout: float = REQUEST_TIMEOUT) -> Receipt:  # noqa: ASYNC109
        """Send a request and wait for its receipt."""

    @abstractmethod
    async def _ledger(self) -> Ledger: ...

    async def register_population(self, population: Population | Mapping[str, Any]) -> Receipt:
        """Register a population. Refused if the name stands for something else already."""
        return await self.request(registration(new_id, population))

    async def join(self, source: str, population: str) -> Receipt:
        """Let a source belong to a population, for good. Refused unless what it has granted fits there."""
        return await self.request(joining(new_id, source, population))

    async def allot(
        self,
        allotment: str,
        epsilon: float,
        delta: float | None = None,
        *,
        source: str | None = None,
        population: str | None = None,
        analysts: Sequence[str] = (),
    ) -> Receipt:
        """Let analysts have a part of a source's or a population's budget, or change the part that they have.

        Without ``analysts`` it is for the one that it is named after. Refused below what they were granted already.
        """
        return await self.request(allotting(new_id, allotment, epsilon, delta, source, population, analysts))

    async def list_populations(self) -> list[PopulationRecord]:
        """All populations that are registered as of now, with their budgets."""
        return list((await self._ledger()).populations.values())

    async def population(self, population: str) -> PopulationRecord:
        """A population's budget as of now. Unknown if it is not registered."""
        return (await self._ledger()).population(population)

    async def list_allotments(
        self, *, source: str | None = None, population: str | None = None
    ) -> list[AllotmentRecord]:
        """The allotments of a source or population as of now, or all that there are."""
        return [one for one in (await self._ledger()).allotments if is_of(one, source, population)]
