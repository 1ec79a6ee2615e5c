"""Grants of streams: their cost and spending, how much counts in each budget, and the limits that they count against."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from sys import intern
from typing import Any, Final, Literal, NamedTuple, TypedDict

from schemas import (
    Amount,
    AnswersCalibration,
    Calibration,
    EdgeTotals,
    Extension,
    Extensions,
    GrantPeriod,
    SparseVectorCalibration,
    StreamIdentity,
    StreamSpec,
    StreamState,
)
from stream.formatting import floor_left
from stream.privacy.composition.costs import (
    EPSILON_UNITS,
    NO_COST,
    PARTS_PER_CHARGE,
    BudgetTerms,
    Cost,
    RefusedError,
    can_pay,
    charged_answers,
    extension_cost,
    format_amount,
    grant_cost,
    realised_cost,
    to_amount,
)
from stream.privacy.composition.losses import has_independent_answers, is_pure, summed_loss, takes_alpha


def completed_cost(calibration: Calibration, accountant: str, totals: EdgeTotals, extensions: Extensions) -> Cost:
    """Return the part of a stream's cost, rounded down, that counts in earlier periods only.

    ``totals`` are the stream's totals at the start of the current period. A charge counts in earlier periods
    only if no later answer uses its noise and the losses of charges add up. Any other charge counts again in
    each period in which the stream may answer.
    """
    if accountant != "pure" or totals.answered == 0 or any(extension.delta for extension in extensions):
        return NO_COST
    return _cost_of_parts(calibration, totals.tops * PARTS_PER_CHARGE + totals.surplus)


@lru_cache(maxsize=4096)
def _cost_of_parts(calibration: Calibration, charged_parts: int) -> Cost:
    is_charged_per_answer = (
        isinstance(calibration, AnswersCalibration | SparseVectorCalibration) and calibration.cutoff > 0
    )
    if not (is_charged_per_answer and has_independent_answers(calibration) and is_pure(calibration)):
        return NO_COST
    return Cost(math.floor(summed_loss(calibration, Fraction(charged_parts, PARTS_PER_CHARGE)) * EPSILON_UNITS))


class GrantAmounts(NamedTuple):
    """The amounts of a grant that its budgets add up; ``counted`` counts against the limit."""

    granted: Cost = NO_COST
    spent: Cost = NO_COST
    refunded: Cost = NO_COST
    counted: Cost = NO_COST


@dataclass(slots=True)
class Claim:
    """A grant's amounts in one budget, computed by that budget's accountant.

    ``cost`` includes all extensions; parts of it are ``spent`` and ``refunded``. ``counted`` is the amount that
    counts against the budget in the current ``period``. ``start_totals`` has the stream's totals at the start of
    the period; it is None if the stream was opened later.
    """

    accountant: str
    period: int = 0
    start_totals: EdgeTotals | None = None
    cost: Cost = NO_COST
    spent: Cost = NO_COST
    refunded: Cost = NO_COST
    counted: Cost = NO_COST

    @property
    def amounts(self) -> GrantAmounts:
        """The amounts that budgets add up."""
        return GrantAmounts(self.cost, self.spent, self.refunded, self.counted)

    @property
    def grant_period(self) -> GrantPeriod | None:
        """The current period, and the totals at its start, for ledger records; None if the budget never renews."""
        return GrantPeriod(period=self.period, totals=self.start_totals) if self.period else None


_INCARNATION_BYTES: Final = 16
_IDENTITY_BYTES: Final = _INCARNATION_BYTES + 32


@dataclass(slots=True)
class Grant:
    """One stream's reservation and spending.

    A ledger has many grants, so each must take little memory. ``opening`` has the incarnation and the digest
    of the stream's identity in 48 bytes, followed by the stream's specification as JSON without defaults.
    ``claim`` is the claim on the source's budget, ``population_claim`` the claim on the population's budget.
    ``has_uneven_prices`` is True if answers may have different prices with only their ε bounded
    (`stream.privacy.composition.losses.may_have_uneven_prices`). ``settled`` is True if the stream has ended and its last
    totals are recorded; an extension makes it False.
    """

    stream: str
    opening: bytes
    key_id: str
    calibration: Calibration
    claim: Claim
    population_claim: Claim | None = None
    has_uneven_prices: bool = False
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
    """True if the number of answers is unknown; the grant then counts as fully spent and is not refunded."""

    decoded: tuple[StreamSpec, StreamIdentity] | None = field(default=None, repr=False, compare=False)
    """Specification and identity of a new grant, kept until ``Account.grant_record`` has built its record."""

    @classmethod
    def create(
        cls, spec: StreamSpec, identity: StreamIdentity, calibration: Calibration, claim: Claim, **fields: Any
    ) -> Grant:
        """Create a grant from specification and identity; ``fields`` are the grant's other fields."""
        opening = bytes.fromhex(identity.incarnation + identity.digest)
        opening += spec.model_dump_json(exclude_defaults=True).encode()
        return cls(spec.stream, opening, intern(identity.key_id), calibration, claim, **fields)

    def decode_opening(self) -> tuple[StreamSpec, StreamIdentity]:
        """Return the stream's specification and identity, decoded from ``opening``."""
        if self.decoded is not None:
            return self.decoded
        identity = StreamIdentity(incarnation=self.incarnation, digest=self.digest, key_id=self.key_id)
        return StreamSpec.model_validate_json(self.opening[_IDENTITY_BYTES:]), identity

    @property
    def spec(self) -> StreamSpec:
        """The stream's specification."""
        return self.decode_opening()[0]

    @property
    def identity(self) -> StreamIdentity:
        """The identity of the stream's opening."""
        return self.decode_opening()[1]

    @property
    def incarnation(self) -> str:
        """The incarnation of the stream's opening."""
        return self.opening[:_INCARNATION_BYTES].hex()

    @property
    def digest(self) -> str:
        """The digest of the stream's whole definition at its opening."""
        return self.opening[_INCARNATION_BYTES:_IDENTITY_BYTES].hex()

    @property
    def is_over(self) -> bool:
        """True if the stream has ended and its totals are final; a halted stream may still be closed."""
        return self.settled and (self.state == "closed" or (self.ending == "halted" and not self.lost))

    @property
    def streams(self) -> int:
        """The number of streams that this grant counts as."""
        return 1

    @property
    def charged_parts(self) -> int:
        """Cost of the charged answers so far, in parts of an ordinary charge (see ``PARTS_PER_CHARGE``)."""
        return self.tops * PARTS_PER_CHARGE + self.surplus

    @property
    def cutoff(self) -> int:
        """Number of ordinary charged answers that the grant pays for; 0 if one charge pays for all."""
        return charged_answers(self.calibration, self.extensions)

    @property
    def totals(self) -> EdgeTotals:
        """The totals with which claims begin a period that starts now.

        A stream with unknown totals (``lost``) may have answered in any period, so it is settled only when
        it is closed.
        """
        settled = self.settled and (not self.lost or self.state == "closed")
        return _shared_totals(self.answered, self.tops, self.surplus, len(self.extensions), settled)

    def extension_of_request(self, request: str, accountant: str) -> tuple[Extension, Cost] | None:
        """Return the extension by the request with this digest, with its cost; None if there is none."""
        for index, extension in enumerate(self.extensions):
            if extension.request == request:
                start = charged_answers(self.calibration, self.extensions[:index])
                return extension, self.cost_of(extension, accountant, start)
        return None

    def cost_of(self, extension: Extension, accountant: str, start: int) -> Cost:
        """Return the cost of an extension after ``start`` charged answers."""
        return extension_cost(self.calibration, accountant, extension, start, uneven_prices=self.has_uneven_prices)

    def price_claim(self, claim: Claim) -> None:
        """Recompute the cost and all other amounts of a claim, after an opening or an extension."""
        claim.cost = grant_cost(
            self.calibration, claim.accountant, self.extensions, uneven_prices=self.has_uneven_prices
        )
        self.update_claim(claim)

    def update_claim(self, claim: Claim) -> None:
        """Recompute the spent, refunded and counted amounts from the current totals."""
        totals = (self.answered, self.tops, self.surplus, self.extensions)
        realised = realised_cost(self.calibration, claim.accountant, *totals, uneven_prices=self.has_uneven_prices)
        if self.lost:
            claim.spent = claim.cost
        else:
            claim.spent = NO_COST if realised is NO_COST else realised.minimum_with(claim.cost)
        claim.refunded = claim.cost - claim.spent if self.state == "closed" else NO_COST
        claim.counted = self.counted_amount(claim)

    def counted_amount(self, claim: Claim, more: Cost = NO_COST) -> Cost:
        """Return the amount that counts in the current period; ``more`` is the cost of an extension.

        The amount is the whole cost without the part that counts in earlier periods only. It is 0 if the
        stream ended before the current period and was not extended since.
        """
        start_totals, held = claim.start_totals, claim.cost + more - claim.refunded
        if start_totals is None:
            return held
        earlier = self.extensions[: start_totals.extensions]
        if start_totals.settled and earlier == self.extensions and more == NO_COST:
            return NO_COST
        return (held - completed_cost(self.calibration, claim.accountant, start_totals, earlier)).clamp_at_zero()


@lru_cache(maxsize=65536)
def _shared_totals(answered: int, tops: int, surplus: int, extensions: int, settled: bool) -> EdgeTotals:
    """Return totals; equal totals share one object, because very many streams may have the same totals."""
    return EdgeTotals(answered=answered, tops=tops, surplus=surplus, extensions=extensions, settled=settled)


def check_report(grant: Grant, answered: int, tops: int, surplus: int, state: StreamState) -> None:
    """Refuse a worker's report whose totals or state contradict the ledger's grant."""
    paid, charged_parts = grant.cutoff * PARTS_PER_CHARGE, tops * PARTS_PER_CHARGE + surplus
    if tops > answered:
        raise RefusedError("tops: the report has more charged answers than answers")
    if surplus and not takes_alpha(grant.calibration):
        raise RefusedError("surplus: must be 0, because all charged answers of this stream cost the same")
    # A charged answer costs at least one part.
    if charged_parts - grant.charged_parts < tops - grant.tops or (
        tops == grant.tops and charged_parts != grant.charged_parts
    ):
        raise RefusedError("surplus: contradicts the number of new charged answers")
    if paid and charged_parts > paid:
        raise RefusedError("tops: the report has more charged answers than the grant pays for")
    if state == "exhausted" and (charged_parts == 0 or charged_parts not in _totals_at_exhaustion(grant)):
        raise RefusedError("state: the report says exhausted, but the grant pays for further charged answers")
    if state == "closed" and grant.ending != "closed":
        raise RefusedError("state: the report says closed, but the ledger has no request to close the stream")
    if grant.state == "closed" and (answered > grant.answered or tops > grant.tops):
        raise RefusedError("answered: the stream is closed, and the report has more answers than its last totals")


def _totals_at_exhaustion(grant: Grant) -> set[int]:
    """Return the totals, in parts of a charge, at which a worker may report the stream exhausted.

    A worker that does not know the last extensions yet reports it at a lower total.
    """
    extensions = grant.extensions
    return {
        PARTS_PER_CHARGE * charged_answers(grant.calibration, extensions[:known_count])
        for known_count in range(len(extensions) + 1)
    }


class BudgetAmounts(TypedDict):
    """The sums of a budget or allotment, as fields of ledger records."""

    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount


@dataclass(slots=True)
class Ceiling:
    """A limit (``total``), and the sums of the grants that count against it.

    Error texts name the ceiling by its ``label`` and contain its ``remedy``.
    """

    label: str
    terms: BudgetTerms
    total: Cost
    granted: Cost = NO_COST
    spent: Cost = NO_COST
    refunded: Cost = NO_COST
    counted: Cost = NO_COST
    streams: int = 0
    remedy: str = ""

    @property
    def left(self) -> Cost:
        """The amount that may still be granted.

        Under ``zcdp`` a cost is paid if it fits either in ε or in ρ, so one of the two may be negative. If a
        grant has Gaussian noise, whose ε by basic composition is infinite, then ``unbounded`` of the result is
        negative, and only ρ decides.
        """
        return self.total - self.counted

    def can_pay(self, cost: Cost) -> bool:
        """Return True if the remaining amount is enough for a cost."""
        return can_pay(cost, self.left, self.terms.accountant)

    def replace_amounts(self, before: GrantAmounts, after: GrantAmounts, streams: int = 0) -> None:
        """Replace a grant's amounts ``before`` by ``after`` in all sums, and add ``streams`` to the streams."""
        self.granted += after.granted - before.granted
        self.spent += after.spent - before.spent
        self.refunded += after.refunded - before.refunded
        self.counted += after.counted - before.counted
        self.streams += streams

    def amounts(self) -> BudgetAmounts:
        """The sums, converted for ledger records."""
        return BudgetAmounts(
            granted=to_amount(self.granted, self.terms),
            spent=to_amount(self.spent, self.terms),
            refunded=to_amount(self.refunded, self.terms),
            left=to_amount(self.left.clamp_at_zero(), self.terms),
        )


@dataclass(frozen=True, slots=True)
class AllottedTerms:
    """The amount of an allotment, with the accountant and the period length of its budget."""

    epsilon: float
    delta: float
    accountant: str
    renews: str | None


@dataclass(slots=True)
class Allotment(Ceiling):
    """A part of a budget that some analysts share."""

    name: str = ""
    analysts: tuple[str, ...] = ()
    remedy: str = "have the allotment raised"


def require_paid(ceilings_to_charge: Iterable[tuple[Ceiling, Cost]]) -> None:
    """Raise RefusedError if a ceiling cannot pay its cost.

    If several ceilings cannot pay, the error names the one with the least ε left.
    """
    unpaid = [(ceiling, cost) for ceiling, cost in ceilings_to_charge if not ceiling.can_pay(cost)]
    if not unpaid:
        return
    ceiling, cost = min(unpaid, key=lambda one: one[0].left.loss)
    asked, left = to_amount(cost, ceiling.terms), to_amount(ceiling.left.clamp_at_zero(), ceiling.terms)
    shown = left.model_copy(update={"delta": floor_left(left.delta, 6)})
    is_without_delta = bool(asked.delta) and not shown.delta and left.rho is None
    ask_less = "ask for no more than is left" if left.epsilon > 0.0 or left.rho else ""
    remedies = filter(None, (ask_less, ceiling.remedy, "close streams that have not used up their grants"))
    raise RefusedError(
        f"{ceiling.label} cannot pay: {format_amount(asked)} asked, {format_amount(shown)}{', δ = 0' * is_without_delta} left; "
        f"{', or '.join(remedies)}",
        asked,
        left,
    )
