"""Checks budgets that are shared or renew, by recomputing them from the grants' records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from schemas import (
    AllotmentRecord,
    EdgeTotals,
    GrantPeriod,
    GrantRecord,
    LedgerRecord,
    Period,
    PopulationRecord,
    RetiredClaim,
    RetiredTotals,
    SourceRecord,
)
from stream.privacy.composition.costs import (
    EPSILON_UNITS,
    PARTS_PER_CHARGE,
    BudgetTerms,
    grant_cost,
    realised_cost,
)
from stream.privacy.composition.losses import has_independent_answers, is_pure, losses
from stream.privacy.planning.promises import period_length_ms

ROUNDING: Final = 1e-9


def check_budgets(history: Iterable[LedgerRecord], latest: Iterable[LedgerRecord]) -> list[str]:
    """Check that grants count in full for sources, populations and allotments, and that each period follows the last one.

    ``history`` has all committed records that are not compacted, in order; ``latest`` has the last record of each key.
    """
    records = list(latest)
    grants = [one for one in records if isinstance(one, GrantRecord)]
    sources = {one.source.source: one for one in records if isinstance(one, SourceRecord)}
    totals = [one for one in records if isinstance(one, RetiredTotals)]
    violations = _check_periods(history)
    for record in records:
        match record:
            case SourceRecord():
                mine = [(one, one.standing) for one in grants if one.spec.source == record.source.source]
                retired = [one.own for one in totals if one.source == record.source.source]
                violations += _check(f"source {record.source.source}", record, record.source, mine, retired)
            case PopulationRecord():
                name = record.population.population
                mine = _of_population(name, grants, sources)
                members = [one for one in totals if sources[one.source].population == name]
                retired = [one.shared for one in members if one.shared is not None]
                violations += _check(f"population {name}", record, record.population, mine, retired)
                if record.streams != (streams := len(mine) + sum(one.streams for one in members)):
                    violations.append(f"population {name} has {record.streams} streams, and its sources {streams}")
            case AllotmentRecord():
                theirs = [one for one in totals if one.analyst in record.analysts]
                violations += _check_allotment(record, records, grants, sources, theirs)
            case _:
                pass
    return violations


def _of_population(
    name: str, grants: Iterable[GrantRecord], sources: dict[str, SourceRecord]
) -> list[tuple[GrantRecord, GrantPeriod | None]]:
    return [(one, one.population_standing) for one in grants if sources[one.spec.source].population == name]


def _check_allotment(
    record: AllotmentRecord,
    records: Iterable[LedgerRecord],
    grants: Iterable[GrantRecord],
    sources: dict[str, SourceRecord],
    totals: Iterable[RetiredTotals],
) -> list[str]:
    if record.source is not None:
        terms: BudgetTerms = sources[record.source].source
        retired = [one.own for one in totals if one.source == record.source]
        mine = [(one, one.standing) for one in grants if one.spec.source == record.source]
    else:
        found = (one for one in records if isinstance(one, PopulationRecord))
        terms = next(one.population for one in found if one.population.population == record.population)
        mine = _of_population(record.population or "", grants, sources)
        members = [one for one in totals if sources[one.source].population == record.population]
        retired = [one.shared for one in members if one.shared is not None]
    theirs = [one for one in mine if one[0].analyst in record.analysts]
    return _check(f"allotment {record.allotment}", record, terms, theirs, retired)


def _check(
    name: str,
    record: SourceRecord | PopulationRecord | AllotmentRecord,
    terms: BudgetTerms,
    grants: Sequence[tuple[GrantRecord, GrantPeriod | None]],
    retired: Sequence[RetiredClaim],
) -> list[str]:
    budget = record.epsilon if isinstance(record, AllotmentRecord) else terms.epsilon
    cost = sum(_cost(one, terms.accountant) for one, _ in grants)
    cost += sum(int(one.cost.loss) for one in retired) / EPSILON_UNITS
    counted = sum(_counts(one, standing, terms.accountant, record.period) for one, standing in grants)
    present = [one for one in retired if record.period is None or one.period == record.period.number]
    counted += sum(int(one.counted.loss) for one in present) / EPSILON_UNITS
    left, violations = max(budget - counted, 0.0), []
    if abs(record.granted.epsilon - cost) > ROUNDING:
        violations.append(f"{name} granted {record.granted.epsilon}, and its grants cost {cost}")
    if counted > budget + ROUNDING and terms.accountant == "pure":
        violations.append(f"{name} counts {counted} of {budget}")
    if abs(record.left.epsilon - left) > ROUNDING:
        violations.append(f"{name} has {record.left.epsilon} left, and {counted} of {budget} counts")
    return violations


def _cost(grant: GrantRecord, accountant: str, extensions: int | None = None) -> float:
    return grant_cost(grant.calibration, accountant, grant.extensions[:extensions]).loss / EPSILON_UNITS


def _counts(grant: GrantRecord, standing: GrantPeriod | None, accountant: str, period: Period | None) -> float:
    """Return the ε for which a grant counts: its cost, or its charges if it is closed, less the charges of earlier periods."""
    figures = (grant.answered, grant.tops, grant.surplus, grant.extensions)
    spent = realised_cost(grant.calibration, accountant, *figures).loss / EPSILON_UNITS
    held = min(spent, _cost(grant, accountant)) if grant.state == "closed" else _cost(grant, accountant)
    if period is None or standing is None:
        return held
    edge = standing.totals
    if standing.period < period.number:
        edge = EdgeTotals(
            answered=grant.answered,
            tops=grant.tops,
            surplus=grant.surplus,
            extensions=len(grant.extensions),
            settled=grant.settled,
        )
    if edge is None:
        return held
    if edge.settled and edge.extensions == len(grant.extensions):
        return 0.0
    if grant.calibration.kind not in {"answers", "sparse_vector"} or accountant != "pure":
        return held
    added_up = is_pure(grant.calibration) and not any(one.delta for one in grant.extensions[: edge.extensions])
    if not (added_up and has_independent_answers(grant.calibration) and edge.answered):
        return held
    behind = (edge.tops + edge.surplus / PARTS_PER_CHARGE) * float(losses(grant.calibration).loss_per_answer)
    return max(held - behind, 0.0)


def _check_periods(history: Iterable[LedgerRecord]) -> list[str]:
    """Check that the periods of each budget have one length, follow each other without gaps, and never go back."""
    periods: dict[str, list[tuple[Period, str]]] = defaultdict(list)
    for one in history:
        match one:
            case SourceRecord(period=Period() as period):
                periods[f"source {one.source.source}"].append((period, one.source.renews or ""))
            case PopulationRecord(period=Period() as period):
                periods[f"population {one.population.population}"].append((period, one.population.renews or ""))
            case _:
                pass
    violations = []
    for name, seen in periods.items():
        numbers = [period.number for period, _ in seen]
        if numbers != sorted(numbers):
            violations.append(f"{name} went back to an earlier period: {numbers}")
        beginnings = {period.starts - (period.number - 1) * period_length_ms(renews) for period, renews in seen}
        if len(beginnings) > 1:
            violations.append(f"{name} began a period more than once: it would have begun at {sorted(beginnings)}")
    return violations
