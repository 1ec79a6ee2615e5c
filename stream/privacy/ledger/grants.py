"""Grants: what a stream reserves, extends and spends, and how much counts against each budget."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

from schemas import (
    AnswersCalibration,
    Calibration,
    EdgeTotals,
    Extension,
    Extensions,
    RunningCountCalibration,
    SparseVectorCalibration,
    Standing,
    StreamIdentity,
    StreamSpec,
    StreamState,
    UnknownGroupsCalibration,
)
from schemas.mechanisms import MAX_ANSWERS
from stream.privacy.composition.costs import (
    EPSILON_UNITS,
    NOTHING,
    PARTS,
    BudgetTerms,
    Cost,
    affordable_delta,
    affordable_epsilon,
    charged_answers,
    exact_decimal,
    extension_cost,
    grant_cost,
    realised_cost,
)
from stream.privacy.composition.losses import are_independent, is_pure, losses, summed_loss
from stream.privacy.composition.pure_rounds import optimal_delta, optimal_epsilon, rounded_up
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.prices import takes_alpha

_HOUR_MS: Final = 3_600_000
_UNITS: Final = {"h": ("hour", _HOUR_MS), "d": ("day", 24 * _HOUR_MS)}


def length_ms(renews: str | None) -> int:
    """Return the length of a period in milliseconds; 0 if the budget does not renew."""
    return 0 if renews is None else int(renews[:-1]) * _UNITS[renews[-1]][1]


def meaning(terms: BudgetTerms, number: int) -> str:
    """Describe the promise of a budget in the period ``number`` in plain words."""
    if terms.renews is None:
        return "privacy is for ever: the budget never renews"
    count, (unit, _) = int(terms.renews[:-1]), _UNITS[terms.renews[-1]]
    period = f"{count} {unit}s" if count > 1 else unit
    so_far = (
        "this is the first"
        if number == 1
        else f"this is period {number}, at whose end that may be {number} times as much"
    )
    return (
        f"privacy is per period, not for ever: every {period} a person may lose {_amount(terms.epsilon, terms.delta)} again, "
        f"so that k periods may cost k times as much; {so_far}"
    )


def meaning_of_joining(source: str, population: str, number: int) -> str:
    """Describe the loss in earlier periods, which a population joined later does not bound."""
    return (
        f"what '{source}' was granted before counts in period {number} of population '{population}'; in earlier periods it was not "
        "counted, so that each of them may have cost a person that much more than the population's budget"
    )


def completed_cost(calibration: Calibration, accountant: str, totals: EdgeTotals, extensions: Extensions) -> Cost:
    """Return the cost, rounded down, that belongs to the periods before an edge (a period's start).

    ``totals`` are the stream's totals at that edge. A charge belongs to an earlier period only if
    no later answer uses its noise, and only if charges add up. All other noise counts again in
    each period in which the stream may answer.
    """
    if accountant != "pure" or totals.answered == 0 or any(extension.delta for extension in extensions):
        return NOTHING
    return _added_up(calibration, totals.tops * PARTS + totals.surplus)


@lru_cache(maxsize=4096)
def _added_up(calibration: Calibration, parts: int) -> Cost:
    own = isinstance(calibration, AnswersCalibration | SparseVectorCalibration) and calibration.cutoff > 0
    if not (own and are_independent(calibration) and is_pure(calibration)):
        return NOTHING
    return Cost(math.floor(summed_loss(calibration, Fraction(parts, PARTS)) * EPSILON_UNITS))


def meaning_in_periods(epsilon: float, delta: float, period: str) -> str:
    """Describe the promise of a live topic's budget per period in plain words."""
    return (
        f"{_amount(epsilon, delta)} for a person's events in one period of {period}; events in k periods are protected by k times as "
        "much"
    )


def _amount(epsilon: float, delta: float) -> str:
    return f"ε = {epsilon:g}" + (f", δ = {delta:g}" if delta else "")


@dataclass(slots=True)
class Claim:
    """A grant's amounts in one budget, in the terms of that budget's accountant.

    ``counted`` counts against the budget in the current ``period``. ``edge`` holds the stream's
    totals at the start of the period; None if the stream was opened later.
    """

    accountant: str
    period: int = 0
    edge: EdgeTotals | None = None
    cost: Cost = NOTHING
    spent: Cost = NOTHING
    refunded: Cost = NOTHING
    counted: Cost = NOTHING

    @property
    def figures(self) -> tuple[Cost, Cost, Cost, Cost]:
        """The amounts that budgets add up: cost, spent, refunded and counted."""
        return self.cost, self.spent, self.refunded, self.counted

    @property
    def standing(self) -> Standing | None:
        """Period and edge as ledger records have them; None if the budget does not renew."""
        return Standing(period=self.period, totals=self.edge) if self.period else None


@dataclass(slots=True)
class Grant:
    """One stream's reservation and spending.

    ``claim`` has its amounts in the source's budget, ``shared`` those in the population's.
    ``uneven`` is True if answers may be priced by their ε alone
    (`stream.privacy.planning.prices.are_uneven`).
    """

    spec: StreamSpec
    calibration: Calibration
    identity: StreamIdentity
    claim: Claim
    shared: Claim | None = None
    uneven: bool = False
    analyst: str | None = None
    state: StreamState = "open"
    ending: Literal["halted", "closed"] | None = None
    settled: bool = False
    reason: str | None = None
    answered: int = 0
    tops: int = 0
    surplus: int = 0
    extensions: Extensions = field(default=())
    lost: bool = False
    """The number of answers is unknown: the grant counts as fully spent and is not refunded."""

    @property
    def cost(self) -> Cost:
        """The cost in the source's budget, with all extensions."""
        return self.claim.cost

    @property
    def spent(self) -> Cost:
        """The spent part of the cost."""
        return self.claim.spent

    @property
    def refunded(self) -> Cost:
        """The refunded part of the cost."""
        return self.claim.refunded

    @property
    def parts(self) -> int:
        """Cost of the charged answers so far, in parts of an ordinary charge."""
        return self.tops * PARTS + self.surplus

    @property
    def cutoff(self) -> int:
        """Ordinary charged answers paid for in total; 0 if one charge pays for all."""
        return charged_answers(self.calibration, self.extensions)

    @property
    def totals(self) -> EdgeTotals:
        """The totals, as a period that starts now records them.

        A lost stream may have answered after an unknown edge, so it is settled only once it is
        closed.
        """
        settled = self.settled and (not self.lost or self.state == "closed")
        return _edge(self.answered, self.tops, self.surplus, len(self.extensions), settled)

    def extended_by(self, request: str, accountant: str) -> tuple[Extension, Cost] | None:
        """Return the extension that the request with this digest made, and its cost; else None."""
        for known, extension in enumerate(self.extensions):
            if extension.request == request:
                start = charged_answers(self.calibration, self.extensions[:known])
                return extension, self.cost_of(extension, accountant, start)
        return None

    def cost_of(self, extension: Extension, accountant: str, start: int) -> Cost:
        """Return the cost of an extension after ``start`` charged answers."""
        return extension_cost(self.calibration, accountant, extension, start, uneven=self.uneven)

    def price(self, claim: Claim) -> None:
        """Recompute the cost and all other amounts of a claim, after an opening or an extension."""
        claim.cost = grant_cost(self.calibration, claim.accountant, self.extensions, uneven=self.uneven)
        self.measure(claim)

    def measure(self, claim: Claim) -> None:
        """Recompute the spent, refunded and counted amounts from the current totals."""
        figures = (self.answered, self.tops, self.surplus, self.extensions)
        realised = realised_cost(self.calibration, claim.accountant, *figures, uneven=self.uneven)
        if self.lost:
            claim.spent = claim.cost
        else:
            claim.spent = NOTHING if realised is NOTHING else realised.least(claim.cost)
        claim.refunded = claim.cost - claim.spent if self.state == "closed" else NOTHING
        claim.counted = self.counts(claim)

    def counts(self, claim: Claim, more: Cost = NOTHING) -> Cost:
        """Return the amount that counts in this period; ``more`` is the cost of an extension.

        A stream counts in full, without the charges completed before the period. A stream that
        ended before the period and was not extended since counts nothing.
        """
        edge, held = claim.edge, claim.cost + more - claim.refunded
        if edge is None:
            return held
        known = self.extensions[: edge.extensions]
        if edge.settled and known == self.extensions and more == NOTHING:
            return NOTHING
        return (held - completed_cost(self.calibration, claim.accountant, edge, known)).at_least_nothing()


@lru_cache(maxsize=65536)
def _edge(answered: int, tops: int, surplus: int, extensions: int, settled: bool) -> EdgeTotals:
    """Return totals; equal totals share one object: a period may start with 100,000 streams."""
    return EdgeTotals(answered=answered, tops=tops, surplus=surplus, extensions=extensions, settled=settled)


MOST_EXTENSIONS = 100
"""Most extensions of a stream: its definition lists them all."""


def plan_extension(
    spec: StreamSpec, calibration: Calibration, extensions: Extensions, request: str, epsilon: float, delta: float
) -> Extension:
    """Return the largest extension that ε pays for.

    With δ, equal and independent charges are composed optimally, without earlier charges.

    Raises:
        PlanError: the stream cannot be extended, or ε pays for no answer.
    """
    _require_extensible(spec, calibration, extensions)
    each = losses(calibration).further
    answers = math.floor(exact_decimal(epsilon) / each)
    granted, failing = rounded_up(answers * each), 0.0
    # If answers may have separate prices, charges are not equal rounds.
    if delta > 0.0 and are_independent(calibration) and not takes_alpha(calibration):
        one, most, most_delta = rounded_up(each), affordable_epsilon(epsilon), affordable_delta(delta)
        longest = _longest(one, most, most_delta, answers)
        if longest > answers:
            answers, failing = longest, most_delta
            granted = min(most, optimal_epsilon(one, longest, failing))
    before = charged_answers(calibration, extensions)
    if answers == 0:
        raise PlanError(
            f"epsilon: {epsilon!r} pays for no further charged answer of this stream, each of which costs "
            f"{_written_up(each)!r}; give at least as much"
        )
    if before + answers > MAX_ANSWERS:
        raise PlanError(
            f"epsilon: {epsilon:g} pays for {answers:,} further charged answers, and a stream may give {MAX_ANSWERS:,} in "
            f"all; give at most {max(0.0, float((MAX_ANSWERS - before) * each)):.6g}"
        )
    return Extension(request=request, answers=answers, epsilon=granted, delta=failing)


def _written_up(value: Fraction) -> float:
    found = rounded_up(value)
    return found if exact_decimal(found) >= value else math.nextafter(found, math.inf)


def _require_extensible(spec: StreamSpec, calibration: Calibration, extensions: Extensions) -> None:
    if calibration.cutoff == 0:
        raise PlanError(
            f"stream: {spec.mechanism.kind} is charged once, for all answers there may be; nothing can be added to it, "
            "open another stream"
        )
    if isinstance(calibration, RunningCountCalibration):
        raise PlanError(
            f"stream: its noise was planned for a horizon of {calibration.steps:,} windows, all of them charged once; none can be "
            "added, open another stream"
        )
    if isinstance(calibration, UnknownGroupsCalibration):
        raise PlanError(
            "stream: unknown_groups has a δ for each answer, planned for all of its answers together; none can be added, open another "
            "stream"
        )
    if losses(calibration).gaussian:
        raise PlanError(
            "stream: its noise is Gaussian, planned for all of its charged answers together; none can be added, open another "
            "stream"
        )
    if len(extensions) >= MOST_EXTENSIONS:
        raise PlanError(f"stream: it was extended {MOST_EXTENSIONS} times already; open another stream")


def _longest(one: float, epsilon: float, delta: float, least: int) -> int:

    def holds(rounds: int) -> bool:
        return optimal_delta(one, rounds, epsilon) <= delta

    low, high = least, max(1, 2 * least)
    while high <= MAX_ANSWERS and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def check_report(grant: Grant, answered: int, tops: int, surplus: int, state: StreamState) -> None:
    """Refuse reported totals that contradict the grant or the stream's state in the ledger."""
    paid, parts = grant.cutoff * PARTS, tops * PARTS + surplus
    if tops > answered:
        raise RefusedError("tops: more charged answers than answers")
    if surplus and not takes_alpha(grant.calibration):
        raise RefusedError("surplus: every charged answer of this stream costs the same")
    # A charged answer costs at least one part.
    if parts - grant.parts < tops - grant.tops or (tops == grant.tops and parts != grant.parts):
        raise RefusedError("surplus: does not match the cost of the new charged answers")
    if paid and parts > paid:
        raise RefusedError("tops: more charged answers than the grant pays for")
    if state == "exhausted" and (parts == 0 or parts not in _cutoffs(grant)):
        raise RefusedError("state: exhausted, with charged answers left")
    if state == "closed" and grant.ending != "closed":
        raise RefusedError("state: closed, and the ledger has not closed the stream")
    if grant.state == "closed" and (answered > grant.answered or tops > grant.tops):
        raise RefusedError("answered: more than the last totals of a stream that is closed")


def _cutoffs(grant: Grant) -> set[int]:
    """Return the totals, in parts, at which a worker that missed some extensions is exhausted."""
    extensions = grant.extensions
    return {PARTS * charged_answers(grant.calibration, extensions[:known]) for known in range(len(extensions) + 1)}
