"""Privacy losses of calibrations: the ε of their pure mechanisms, their Gaussian noise, and which of them have prices per question.

The ε of a sparse vector is a sum of parts: ε1 for the threshold, ε2 for the comparisons of queries, and
ε3 for the numbers that ``numeric_sparse`` publishes with its ⊤s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

from schemas import (
    AnswersCalibration,
    Calibration,
    EstimateCalibration,
    HypothesisCalibration,
    Laplace,
    Mechanism,
    ReleaseCalibration,
    RunningCountCalibration,
    Source,
    SparseVectorCalibration,
    TableSource,
    UnknownGroupsCalibration,
)
from stream.privacy.composition.gaussian_losses import GaussianNumbers, gaussian_rho

_Number = TypeVar("_Number", Fraction, float)


def promised_answers(calibration: Calibration) -> int:
    """Return the number of answers that the error bound covers, and among which β is divided."""
    if isinstance(calibration, AnswersCalibration | UnknownGroupsCalibration):
        return min(calibration.cutoff, calibration.expected_queries)
    return calibration.expected_queries


def top_number_rate(calibration: SparseVectorCalibration) -> float:
    """Return the noise rate of a ⊤'s number: ε3/(cΔ) per step.

    c is the cutoff, or 1 if each round has its own threshold noise. The rate is 0 if the numbers have no
    noise of their own.
    """
    tops = 1 if calibration.fresh_threshold else calibration.cutoff
    return calibration.epsilon_answer / (tops * calibration.sensitivity_steps)


def tops_epsilon(epsilon_1: _Number, epsilon_2: _Number, epsilon_3: _Number, *, monotone: bool) -> _Number:
    """Return the loss of all c ⊤s and their numbers without the threshold's ε1: ε2 + ε3.

    If queries are monotone, the loss is max(ε2, ε3, ε2 + ε3 − ε1). The first t ⊤s lose at most t/c of it
    (``docs/proofs/numeric-sparse.md``, Theorem 2).
    """
    together = epsilon_2 + epsilon_3
    return max(epsilon_2, epsilon_3, together - epsilon_1) if monotone else together


def top_numbers_failure(rate: float, tops: int, error: int) -> float:
    """Return the probability that a number of any of ``tops`` ⊤s errs by more than ``error`` steps.

    Each number has one independent two-sided draw: with q = e^{−rate}, the probability is exactly
    1 − (1 − 2q^{error+1}/(1 + q))^tops.
    """
    beyond = 2.0 * math.exp(-rate * (error + 1)) / (1.0 + math.exp(-rate))
    return -math.expm1(tops * math.log1p(-min(beyond, 1.0 - 2.0**-53)))


@dataclass(frozen=True, slots=True)
class Losses:
    """The pure privacy losses and the Gaussian noise that a calibration composes.

    - ``pure_parts``: the pure mechanisms, as pairs of a number of equal mechanisms and the ε of each.
    - ``first_loss``, ``loss_per_answer``: after the first answer and t charged answers, the loss is
      ``first_loss`` + t·``loss_per_answer``.
    - ``loss_while_open``: additional loss until the last charged answer, for the noisy threshold of a
      round that has not ended.
    - ``gaussian_first``, ``gaussian_charged``: the Gaussian noise of the first answer, and of all charged
      answers together.
    - ``loss_beyond_plan``: the loss of each charged answer of an extension, if it differs from ``loss_per_answer``.
    """

    pure_parts: tuple[tuple[int, Fraction], ...]
    first_loss: Fraction
    loss_per_answer: Fraction
    loss_while_open: Fraction = Fraction(0)
    gaussian_first: tuple[GaussianNumbers, ...] = ()
    gaussian_charged: tuple[GaussianNumbers, ...] = ()
    loss_beyond_plan: Fraction | None = None

    @property
    def extension_loss(self) -> Fraction:
        """The loss of each charged answer of an extension."""
        return self.loss_per_answer if self.loss_beyond_plan is None else self.loss_beyond_plan

    @property
    def gaussian(self) -> tuple[GaussianNumbers, ...]:
        """All Gaussian noise of the stream."""
        return self.gaussian_first + self.gaussian_charged

    @property
    def total(self) -> Fraction:
        """The loss of the stream by basic composition, without its Gaussian noise."""
        return sum((count * epsilon for count, epsilon in self.pure_parts), Fraction(0))

    @property
    def rho(self) -> Fraction:
        """ρ of the stream: Σ ε²/2 over its pure parts, plus ρ of its Gaussian noise."""
        return sum((count * epsilon**2 for count, epsilon in self.pure_parts), 2 * gaussian_rho(self.gaussian)) / 2


@lru_cache(maxsize=4096)
def losses(calibration: Calibration) -> Losses:  # noqa: C901, PLR0911 - one for each kind of calibration
    """Return the losses of a calibration; the proofs of all mechanisms are in docs/proofs."""
    match calibration:
        case SparseVectorCalibration():
            return _sparse_vector_losses(calibration)
        case AnswersCalibration(method="gaussian"):
            # The precision (1/variance) is divided among the numbers of an answer.
            answers, variance = calibration.cutoff, Fraction(calibration.deviation) ** 2
            charged = (
                GaussianNumbers(answers, 1, variance),
                GaussianNumbers(answers * (calibration.moved - 1), 0, variance),
            )
            return Losses((), Fraction(0), Fraction(0), gaussian_charged=charged)
        case AnswersCalibration():
            each = Fraction(calibration.epsilon_answer)
            return Losses(((calibration.cutoff, each),), Fraction(0), each)
        case ReleaseCalibration(method="gaussian"):
            # The ℓ₂ norm of the change is largest if all rows of a person change the same number.
            contribution, variance = calibration.contribution, Fraction(calibration.deviation) ** 2
            squared = (
                contribution * (calibration.sensitivity_steps * calibration.parts // calibration.moved)
            ) ** 2
            together = GaussianNumbers(calibration.moved // contribution, squared, variance)
            apart = GaussianNumbers(calibration.moved - together.count, 0, variance)
            return Losses(
                (), Fraction(0), Fraction(0), gaussian_first=(together, apart) if contribution > 1 else (together,)
            )
        case ReleaseCalibration():
            part = Fraction(calibration.epsilon_part)
            return Losses(((calibration.parts, part),), calibration.parts * part, Fraction(0))
        case RunningCountCalibration(method="gaussian"):
            # A count is a sum of nodes of a tree. The sum of the squares of a person's changes is largest if
            # all events of the person are in few nodes of each level.
            levels, variance = calibration.levels, Fraction(calibration.deviation) ** 2
            squared = calibration.sensitivity_steps**2 // calibration.spread
            together = GaussianNumbers(levels, squared, variance)
            apart = GaussianNumbers(levels * (calibration.moved - 1), 0, variance)
            return Losses((), Fraction(0), Fraction(0), gaussian_first=(together, apart))
        case RunningCountCalibration():
            whole = Fraction(calibration.epsilon)
            return Losses(((1, whole),), whole, Fraction(0))
        case UnknownGroupsCalibration():
            # Each answer also costs a δ, which is not part of the pure losses (see ``is_pure``).
            each = Fraction(calibration.epsilon_answer)
            return Losses(((calibration.cutoff, each),), Fraction(0), each)
        case HypothesisCalibration():
            inner = losses(calibration.sparse_vector)
            rows = Fraction(calibration.epsilon_rows)
            parts = inner.pure_parts if rows == 0 else ((1, rows), *inner.pure_parts)
            return Losses(
                parts,
                rows + inner.first_loss,
                inner.loss_per_answer,
                inner.loss_while_open,
                loss_beyond_plan=inner.loss_beyond_plan,
            )
        case EstimateCalibration(contribution=contribution) if contribution > 1:
            # If a part is ε-DP for one row, then by group privacy it is kε-DP for a person with k rows.
            return _scale_losses(losses(calibration.model_copy(update={"contribution": 1})), contribution)
        case EstimateCalibration():
            inner = losses(calibration.sparse_vector)
            rows, start = Fraction(calibration.epsilon_rows), Fraction(calibration.epsilon_start)
            # The rounds of a workload divide ``epsilon_choices`` and ``epsilon_chosen`` among them, and the
            # typical errors of one, two and three attributes divide ``epsilon_typical``. Each of these ε
            # counts as one part: the sum of the squares of its shares is at most its square.
            choices, chosen = Fraction(calibration.epsilon_choices), Fraction(calibration.epsilon_chosen)
            typical = Fraction(calibration.epsilon_typical)
            pure = ((1, rows), (calibration.starts, start), (1, choices), (1, chosen), (1, typical))
            opening = tuple((count, part) for count, part in pure if count and part)
            first = rows + calibration.starts * start + choices + chosen + typical + inner.first_loss
            return Losses(
                (*opening, *inner.pure_parts),
                first,
                inner.loss_per_answer,
                inner.loss_while_open,
                *_list_estimate_noise(calibration),
                loss_beyond_plan=inner.loss_beyond_plan,
            )


def _scale_losses(one_row: Losses, rows: int) -> Losses:
    beyond = one_row.loss_beyond_plan
    return Losses(
        tuple((count, rows * epsilon) for count, epsilon in one_row.pure_parts),
        rows * one_row.first_loss,
        rows * one_row.loss_per_answer,
        rows * one_row.loss_while_open,
        loss_beyond_plan=None if beyond is None else rows * beyond,
    )


def _list_estimate_noise(
    calibration: EstimateCalibration,
) -> tuple[tuple[GaussianNumbers, ...], tuple[GaussianNumbers, ...]]:
    """Return the Gaussian noise of the first answer (for the warm start) and of all ⊤s.

    One person changes ``marginal_sensitivity`` cells of a marginal by 1 each. The precision
    (1/variance) of a ⊤ is divided between its marginal and the number published with it; the number's
    variance is at least the variance of a cell.
    """
    if calibration.noise == "laplace":
        return (), ()
    cells = calibration.marginal_sensitivity
    first: list[GaussianNumbers] = []
    if calibration.starts:
        first.append(GaussianNumbers(calibration.starts * cells, 1, Fraction(calibration.deviation_start) ** 2))
    if calibration.rounds:
        # The rounds of a workload divide the precision of one marginal among them. The loss is largest
        # if a single round has the whole precision, so it is computed for this case.
        together = Fraction(calibration.deviation_chosen) ** 2
        first.append(GaussianNumbers(cells, 1, together))
        first.append(GaussianNumbers((calibration.rounds - 1) * cells, 0, together))
    on_tops = Fraction(calibration.deviation_answer) ** 2
    charged = (
        GaussianNumbers(calibration.cutoff * cells, 1, on_tops),
        GaussianNumbers(calibration.cutoff, 0, on_tops),
    )
    return tuple(first), charged


def _sparse_vector_losses(calibration: SparseVectorCalibration) -> Losses:
    threshold, query = Fraction(calibration.epsilon_threshold), Fraction(calibration.epsilon_query)
    per_tops = tops_epsilon(threshold, query, Fraction(calibration.epsilon_answer), monotone=calibration.monotone)
    if calibration.fresh_threshold:
        whole = threshold + per_tops
        return Losses(((calibration.cutoff, whole),), Fraction(0), whole, loss_while_open=threshold)
    # Monotone queries save ε only on the planned ⊤s, not on the ⊤s of extensions.
    beyond = (query + Fraction(calibration.epsilon_answer)) / calibration.cutoff
    return Losses(((1, threshold + per_tops),), threshold, per_tops / calibration.cutoff, loss_beyond_plan=beyond)


def is_pure(calibration: Calibration) -> bool:
    """Return True if the stream's ε holds with δ = 0, by basic composition."""
    if isinstance(calibration, UnknownGroupsCalibration) or is_running_count_of_texts(calibration):
        return False
    parts = losses(calibration)
    return not parts.gaussian and parts.total <= Fraction(calibration.epsilon)


def is_running_count_of_texts(calibration: Calibration) -> bool:
    """Return True for a running count of private texts; releasing the texts costs δ."""
    return isinstance(calibration, RunningCountCalibration) and calibration.most_bytes is not None


def summed_loss(calibration: Calibration, charged_answers: Fraction) -> Fraction:
    """Return the loss of some charged answers by basic composition."""
    parts, planned = losses(calibration), min(charged_answers, Fraction(calibration.cutoff))
    beyond_plan = charged_answers - planned
    return parts.first_loss + planned * parts.loss_per_answer + beyond_plan * parts.extension_loss


def has_independent_answers(calibration: Calibration) -> bool:
    """Return True if no answer uses the noise of an earlier charged answer."""
    match calibration:
        case SparseVectorCalibration():
            return calibration.fresh_threshold
        case HypothesisCalibration() | EstimateCalibration():
            return calibration.sparse_vector.fresh_threshold
        case RunningCountCalibration():
            return False
        case _:
            return True


def takes_alpha(calibration: Calibration) -> bool:
    """Return True if a question may request an error, and so have its own price."""
    return isinstance(calibration, EstimateCalibration | AnswersCalibration) and is_pure(calibration)


def may_have_uneven_prices(source: Source, mechanism: Mechanism, calibration: Calibration) -> bool:
    """Return True if answers with independent noise may have different prices, and only ε is bounded.

    This is so for laplace on a table with the accountant ``pure``. The only bound of the sum of the squares
    of the answers' ε, which determines ρ, is then the square of the sum. With ``zcdp``, `answer_price` takes
    the squares into account.
    """
    return (
        isinstance(source, TableSource)
        and source.accountant == "pure"
        and isinstance(mechanism, Laplace)
        and takes_alpha(calibration)
    )


def has_gaussian_charges(calibration: Calibration) -> bool:
    """Return True if a stream's charged answers have Gaussian noise."""
    match calibration:
        case AnswersCalibration():
            return calibration.method == "gaussian"
        case EstimateCalibration():
            return calibration.noise != "laplace"
        case _:
            return False
