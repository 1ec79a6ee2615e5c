"""What an answer cost: by how much it added to its stream's privacy loss."""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal

from schemas import Answer, GrantRecord
from stream.accounting.charged import charged_answers
from stream.accounting.costs import EPSILON_UNITS, realised_cost

_DECISIONS: Final = {"above_threshold", "numeric_sparse"}
_EACH: Final = {"laplace", "noisy_max", "exponential"}


def cost_of(grant: GrantRecord, accountant: Literal["pure", "zcdp"], answer: Answer) -> Fraction:
    """The ε that an answer added to its stream's loss; what the stream had lost before it and after is known from its index.

    One to a question with an ``alpha`` was charged its ``price``. Nothing is lost by an answer that was halted or rejected, nor
    by what a stream has paid for already.
    """
    if answer.index is None or answer.outcome in {"halted", "rejected"}:
        return Fraction(0)
    if answer.price is not None:
        return Fraction(answer.price)
    charged = _is_charged(grant.spec.mechanism.kind, answer)
    left = answer.tops_left
    tops = int(charged) if left is None else charged_answers(grant.calibration, grant.extensions) - left
    before, after = (
        realised_cost(grant.calibration, accountant, answered, max(charges, 0), extensions=grant.extensions).loss
        for answered, charges in ((answer.index, tops - charged), (answer.index + 1, tops))
    )
    return Fraction(after - before, EPSILON_UNITS)


def _is_charged(kind: str, answer: Answer) -> bool:
    if kind in _DECISIONS:
        return answer.outcome == "above"
    return kind in _EACH or answer.basis == "noisy"
