"""Populations and allotments as the ledger last told them: pure state, like the other tables."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from schemas import Amount
from stream.accounting.budgets import AllottedTerms
from stream.accounting.costs import to_amount, total_budget
from stream.accounting.renewal import meaning
from stream.monitor.digests import AmountShape, PeriodShape, read


class PopulationShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.Population."""

    population: str
    epsilon: float
    delta: float = 0.0
    accountant: Literal["pure", "zcdp"] = "pure"
    renews: str | None = None


class PopulationRecordShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.PopulationRecord."""

    population: PopulationShape
    granted: AmountShape
    spent: AmountShape
    refunded: AmountShape
    left: AmountShape
    sources: int
    streams: int
    state: Literal["open", "halted"] = "open"
    reason: str | None = None
    period: PeriodShape | None = None


class AllotmentRecordShape(msgspec.Struct, frozen=True, gc=False):
    """See schemas.AllotmentRecord."""

    allotment: str
    analysts: tuple[str, ...]
    epsilon: float
    delta: float
    granted: AmountShape
    spent: AmountShape
    refunded: AmountShape
    left: AmountShape
    streams: int
    source: str | None = None
    population: str | None = None
    period: PeriodShape | None = None


class Owner(NamedTuple):
    """Whose budget it is."""

    source: str | None
    population: str | None


class SharedBudgets:
    """Populations by name, and allotments by whose budget they are of and their name."""

    def __init__(self) -> None:
        self.populations: dict[str, tuple[PopulationRecordShape, float]] = {}
        self.allotments: dict[tuple[Owner, str], AllotmentRecordShape] = {}

    def take_population(self, value: bytes, time: float) -> None:
        """Take a population's record."""
        record = read(PopulationRecordShape, value)
        self.populations[record.population.population] = (record, time)

    def take_allotment(self, value: bytes) -> None:
        """Take an allotment's record."""
        record = read(AllotmentRecordShape, value)
        self.allotments[Owner(record.source, record.population), record.allotment] = record

    def are_parted(self, source: str, population: str | None) -> bool:
        """Whether a part of the source's budget, or of its population's, is anybody's: then the ledger lets in nobody else."""
        return any(
            owner.source == source or (population is not None and owner.population == population)
            for owner, _ in self.allotments
        )


def whole(epsilon: float, delta: float, accountant: str, renews: str | None = None) -> Amount:
    """The whole of a budget that was declared so."""
    terms = AllottedTerms(epsilon, delta, accountant, renews)
    return to_amount(total_budget(terms), terms)


def meaning_of(period: PeriodShape | None) -> str:
    """What a budget promises, in plain words."""
    return period.meaning if period is not None else meaning(AllottedTerms(1.0, 0.0, "pure", None), 0)
