"""What an answer cost: by how much it added to its stream's privacy loss."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

from schemas import Amount, Answer, GrantRecord, Source
from stream.accounting.charged import charged_answers
from stream.accounting.costs import EPSILON_UNITS, NOTHING, Cost, realised_cost, to_amount

_DECISIONS: Final = {"above_threshold", "numeric_sparse"}
_EACH: Final = {"laplace", "noisy_max", "exponential"}


def cost_of(grant: GrantRecord, source: Source, answer: Answer) -> Fraction:
    """The ε by adding up that an answer added to its stream's loss; its ``price`` where it was asked with an ``alpha``."""
    if answer.price is not None and _counts(answer):
        return Fraction(answer.price)
    return Fraction(_added(grant, source, answer).loss, EPSILON_UNITS)


def total_cost(grant: GrantRecord, source: Source, answers: Iterable[Answer]) -> Amount:
    """What answers of a stream added to its loss together, in all its units.

    A stream whose ρ, or whose δ, counts as spent in full from its first answer on loses nothing by the others.
    """
    found = list(answers)
    added = sum((_added(grant, source, one) for one in found if one.price is None), NOTHING)
    amount = to_amount(added, source)
    prices = sum(one.price for one in found if one.price is not None and _counts(one))
    return amount.model_copy(update={"epsilon": amount.epsilon + prices})


def is_charged(grant: GrantRecord, answer: Answer) -> bool:
    """Whether an answer is one of those that the grant pays for by number."""
    if not _counts(answer):
        return False
    kind = grant.spec.mechanism.kind
    if kind in _DECISIONS:
        return answer.outcome == "above"
    return kind in _EACH or answer.basis == "noisy"


def _counts(answer: Answer) -> bool:
    return answer.index is not None and answer.outcome not in {"halted", "rejected"}


def _added(grant: GrantRecord, source: Source, answer: Answer) -> Cost:
    """What a stream had lost before an answer and after it is known from the answer's index and what is left."""
    if answer.index is None or not _counts(answer):
        return NOTHING
    charged, left = is_charged(grant, answer), answer.tops_left
    tops = int(charged) if left is None else charged_answers(grant.calibration, grant.extensions) - left
    before, after = (
        realised_cost(grant.calibration, source.accountant, answered, max(charges, 0), extensions=grant.extensions)
        for answered, charges in ((answer.index, tops - charged), (answer.index + 1, tops))
    )
    return after - before
