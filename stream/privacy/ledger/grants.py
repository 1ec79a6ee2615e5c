"""Grants: what a stream was given, what it has spent, and what it takes of each budget that it falls under."""

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
    HypothesisCalibration,
    RunningCountCalibration,
    SparsePmw,
    SparseVectorCalibration,
    Standing,
    StreamIdentity,
    StreamSpec,
    StreamState,
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
    extension_cost,
    grant_cost,
    realised_cost,
    told,
)
from stream.privacy.composition.losses import are_independent, is_pure, losses, lost
from stream.privacy.composition.pure_rounds import optimal_delta, optimal_epsilon, rounded_up
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.prices import takes_alpha

_HOUR_MS: Final = 3_600_000
_UNITS: Final = {"h": ("hour", _HOUR_MS), "d": ("day", 24 * _HOUR_MS)}


def length_ms(renews: str | None) -> int:
    """The length of a period in milliseconds; 0 where there is none."""
    return 0 if renews is None else int(renews[:-1]) * _UNITS[renews[-1]][1]


def meaning(terms: BudgetTerms, number: int) -> str:
    """What a budget promises in its period of that number, in plain words; where it does not renew, that it is for ever."""
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
    """State what earlier periods of a population do not bound, after a source with streams has joined in this one."""
    return (
        f"what '{source}' was granted before counts in period {number} of population '{population}'; in earlier periods it was not "
        "counted, so that each of them may have cost a person that much more than the population's budget"
    )


def behind(calibration: Calibration, accountant: str, totals: EdgeTotals, extensions: Extensions) -> Cost:
    """What of a stream's cost belongs to periods before an edge at which it had these totals, rounded down.

    Only charges whose noise is drawn for them and was published with them are done with: completed rounds and answers of
    their own, where what they cost adds up. Anything else, such as noise that later answers are made from, counts in each
    period in which the stream may answer.
    """
    if accountant != "pure" or totals.answered == 0 or any(extension.delta for extension in extensions):
        return NOTHING
    return _added_up(calibration, totals.tops * PARTS + totals.surplus)


@lru_cache(maxsize=4096)
def _added_up(calibration: Calibration, parts: int) -> Cost:
    own = isinstance(calibration, AnswersCalibration | SparseVectorCalibration) and calibration.cutoff > 0
    if not (own and are_independent(calibration) and is_pure(calibration)):
        return NOTHING
    return Cost(math.floor(lost(calibration, Fraction(parts, PARTS)) * EPSILON_UNITS))


def meaning_in_periods(epsilon: float, delta: float, period: str) -> str:
    """What the budget of each period of a live topic promises, in plain words."""
    return (
        f"{_amount(epsilon, delta)} for what a person does in one period of {period}; what a person does in k of them is protected by k times as "
        "much"
    )


def _amount(epsilon: float, delta: float) -> str:
    return f"ε = {epsilon:g}" + (f", δ = {delta:g}" if delta else "")


@dataclass(slots=True)
class Claim:
    """What a grant takes of one budget, by that budget's accountant.

    ``counted`` is what counts against it in the present ``period``; ``edge`` has the stream's totals when that began, if it was
    there by then.
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
        """What budgets add up: cost, spent, refunded and counted."""
        return self.cost, self.spent, self.refunded, self.counted

    @property
    def standing(self) -> Standing | None:
        """As the ledger topic shows it; nothing where the budget does not renew."""
        return Standing(period=self.period, totals=self.edge) if self.period else None


@dataclass(slots=True)
class Grant:
    """One stream's reservation and what is known of its spending; ``shared`` is its part in its source's population.

    ``uneven`` says whether its answers may be priced by their ε alone (`stream.privacy.planning.prices.are_uneven`).
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
    """What it has answered is not known: it counts as wholly spent, and nothing of it goes back."""

    @property
    def cost(self) -> Cost:
        """What it takes of its source with all extensions."""
        return self.claim.cost

    @property
    def spent(self) -> Cost:
        """What its answers have spent of that."""
        return self.claim.spent

    @property
    def refunded(self) -> Cost:
        """What went back to its source."""
        return self.claim.refunded

    @property
    def parts(self) -> int:
        """What the charged answers have cost."""
        return self.tops * PARTS + self.surplus

    @property
    def cutoff(self) -> int:
        """How many ordinary charged answers it pays for in all; 0 where one charge pays for all answers."""
        return charged_answers(self.calibration, self.extensions)

    @property
    def totals(self) -> EdgeTotals:
        """What it has come to, as a period that begins now finds it.

        One that is lost may have answered past an edge that nobody knows of: it has ended for good when it is closed.
        """
        settled = self.settled and (not self.lost or self.state == "closed")
        return _edge(self.answered, self.tops, self.surplus, len(self.extensions), settled)

    def extended_by(self, request: str, accountant: str) -> tuple[Extension, Cost] | None:
        """What a request, by its digest, has added, and what that cost; None if it has not extended the stream."""
        for known, extension in enumerate(self.extensions):
            if extension.request == request:
                start = charged_answers(self.calibration, self.extensions[:known])
                return extension, self.cost_of(extension, accountant, start)
        return None

    def cost_of(self, extension: Extension, accountant: str, start: int) -> Cost:
        """What an extension costs that ``start`` charged answers come before."""
        return extension_cost(self.calibration, accountant, extension, start, uneven=self.uneven)

    def price(self, claim: Claim) -> None:
        """Work out anew what it costs, after an opening or an extension."""
        claim.cost = grant_cost(self.calibration, claim.accountant, self.extensions, uneven=self.uneven)
        self.measure(claim)

    def measure(self, claim: Claim) -> None:
        """Work out anew what of the cost is spent, refunded and counted: from what it has come to, and nothing else."""
        figures = (self.answered, self.tops, self.surplus, self.extensions)
        realised = realised_cost(self.calibration, claim.accountant, *figures, uneven=self.uneven)
        if self.lost:
            claim.spent = claim.cost
        else:
            claim.spent = NOTHING if realised is NOTHING else realised.least(claim.cost)
        claim.refunded = claim.cost - claim.spent if self.state == "closed" else NOTHING
        claim.counted = self.counts(claim)

    def counts(self, claim: Claim, more: Cost = NOTHING) -> Cost:
        """What counts in the present period, and would with an extension that costs ``more``.

        All of a stream that may still answer, but for the charges that were over and done with when the period began;
        nothing of one that had ended by then and was not extended since.
        """
        edge, held = claim.edge, claim.cost + more - claim.refunded
        if edge is None:
            return held
        known = self.extensions[: edge.extensions]
        if edge.settled and known == self.extensions and more == NOTHING:
            return NOTHING
        return (held - behind(self.calibration, claim.accountant, edge, known)).at_least_nothing()


@lru_cache(maxsize=65536)
def _edge(answered: int, tops: int, surplus: int, extensions: int, settled: bool) -> EdgeTotals:
    """One object for all streams that have come to the same: at an edge there may be a hundred thousand."""
    return EdgeTotals(answered=answered, tops=tops, surplus=surplus, extensions=extensions, settled=settled)


MOST_EXTENSIONS = 100
"""So many times a stream may be extended: its definition, which lists them, stays short."""


def plan_extension(
    spec: StreamSpec, calibration: Calibration, extensions: Extensions, request: str, epsilon: float, delta: float
) -> Extension:
    """As many further charged answers as ε pays for; with δ equal and independent ones are composed optimally, by themselves.

    Raises:
        PlanError: the stream has nothing to be extended, or ε pays for none; the message says what to do.
    """
    _require_extensible(spec, calibration, extensions)
    each = losses(calibration).further
    answers = math.floor(told(epsilon) / each)
    granted, failing = rounded_up(answers * each), 0.0
    # Where answers may have prices of their own, charges are no equal rounds.
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
    """Return the least double whose decimal is not below the value."""
    found = rounded_up(value)
    return found if told(found) >= value else math.nextafter(found, math.inf)


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
    if losses(calibration).gaussian:
        raise PlanError(
            "stream: its noise is Gaussian, planned for all of its charged answers together; none can be added, open another "
            "stream"
        )
    if len(extensions) >= MOST_EXTENSIONS:
        raise PlanError(f"stream: it was extended {MOST_EXTENSIONS} times already; open another stream")
    if (
        isinstance(spec.mechanism, SparsePmw)
        and isinstance(calibration, HypothesisCalibration)
        and calibration.places is None
    ):
        raise PlanError(
            "stream: it was opened by an earlier version, whose hypothesis has room for the updates of its opening alone; "
            "open another stream"
        )


def _longest(one: float, epsilon: float, delta: float, least: int) -> int:
    """The largest number of rounds that are together (``epsilon``, ``delta``)-DP, of which ``least`` are known to be."""

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
    """Refuse totals that do not follow from what the ledger itself has granted and ended."""
    paid, parts = grant.cutoff * PARTS, tops * PARTS + surplus
    if tops > answered:
        raise RefusedError("tops: more charged answers than answers")
    if surplus and not takes_alpha(grant.calibration):
        raise RefusedError("surplus: every charged answer of this stream costs the same")
    # A charged answer costs a part at least.
    if parts - grant.parts < tops - grant.tops or (tops == grant.tops and parts != grant.parts):
        raise RefusedError("surplus: not what so many more charged answers cost")
    if paid and parts > paid:
        raise RefusedError("tops: more charged answers than the grant pays for")
    if state == "exhausted" and (parts == 0 or parts not in _cutoffs(grant)):
        raise RefusedError("state: exhausted, with charged answers left")
    if state == "closed" and grant.ending != "closed":
        raise RefusedError("state: closed, and the ledger has not closed the stream")
    if grant.state == "closed" and (answered > grant.answered or tops > grant.tops):
        raise RefusedError("answered: more than the last totals of a stream that is closed")


def _cutoffs(grant: Grant) -> set[int]:
    """After how many parts a worker may have had none left, by what it had been told."""
    extensions = grant.extensions
    return {PARTS * charged_answers(grant.calibration, extensions[:known]) for known in range(len(extensions) + 1)}
