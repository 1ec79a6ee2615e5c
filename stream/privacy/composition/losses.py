"""Privacy losses of calibrations: the ε of their pure mechanisms, and their Gaussian noise.

The noise rate and the loss of the numbers that ``numeric_sparse`` publishes with a ⊤ are here too.
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
    ReleaseCalibration,
    RunningCountCalibration,
    SparseVectorCalibration,
    UnknownGroupsCalibration,
)
from stream.privacy.composition.gaussian_losses import GaussianNumbers, gaussian_rho

_Number = TypeVar("_Number", Fraction, float)


def answer_rate(calibration: SparseVectorCalibration) -> float:
    """Return the noise rate of a ⊤'s number, ε3/(cΔ) per step; c = 1 if each ⊤ ends a round.

    It is 0 if numbers have no separate noise.
    """
    tops = 1 if calibration.fresh_threshold else calibration.cutoff
    return calibration.epsilon_answer / (tops * calibration.sensitivity_steps)


def tops_epsilon(threshold: _Number, query: _Number, answer: _Number, *, monotone: bool) -> _Number:
    """Return the loss of c ⊤s with their numbers, without the ε1 of the threshold: ε2 + ε3.

    If queries are monotone, it is max(ε2, ε3, ε2 + ε3 − ε1), and t ⊤s lose at most t/c of it
    (``docs/proofs/numeric-sparse.md``, Theorem 2).
    """
    together = query + answer
    return max(query, answer, together - threshold) if monotone else together


def answers_failure(rate: float, tops: int, error: int) -> float:
    """Return the probability that any number on ``tops`` ⊤s errs by more than ``error`` steps.

    Each has one independent two-sided draw: with q = e^{−rate}, the probability is exactly
    1 − (1 − 2q^{error+1}/(1 + q))^tops.
    """
    beyond = 2.0 * math.exp(-rate * (error + 1)) / (1.0 + math.exp(-rate))
    return -math.expm1(tops * math.log1p(-min(beyond, 1.0 - 2.0**-53)))


@dataclass(frozen=True, slots=True)
class Losses:
    """The pure privacy losses and the Gaussian noise that a calibration composes.

    ``parts`` lists the pure mechanisms as (count, ε). After t charged answers the loss is
    ``first`` + t·``each``, plus ``open_loss`` until its last charged answer. Each charged answer of an
    extension loses ``beyond``, or ``each`` if that is None. The first answer uses the noise
    ``gaussian_first``, and all charged answers together use ``gaussian_charged``.
    """

    parts: tuple[tuple[int, Fraction], ...]
    first: Fraction
    each: Fraction
    open_loss: Fraction = Fraction(0)
    gaussian_first: tuple[GaussianNumbers, ...] = ()
    gaussian_charged: tuple[GaussianNumbers, ...] = ()
    beyond: Fraction | None = None

    @property
    def extension_loss(self) -> Fraction:
        """The loss of each charged answer of an extension."""
        return self.each if self.beyond is None else self.beyond

    @property
    def gaussian(self) -> tuple[GaussianNumbers, ...]:
        """All Gaussian noise of the stream."""
        return self.gaussian_first + self.gaussian_charged

    @property
    def total(self) -> Fraction:
        """The loss of the stream by basic composition, without its Gaussian noise."""
        return sum((count * epsilon for count, epsilon in self.parts), Fraction(0))

    @property
    def rho(self) -> Fraction:
        """ρ of the stream: Σ ε²/2 over its pure parts, plus ρ of its Gaussian noise."""
        return sum((count * epsilon**2 for count, epsilon in self.parts), 2 * gaussian_rho(self.gaussian)) / 2


@lru_cache(maxsize=4096)
def losses(calibration: Calibration) -> Losses:  # noqa: C901, PLR0911 - one for each kind of calibration
    """Return the losses of a calibration (docs/proofs has the proof of each mechanism)."""
    match calibration:
        case SparseVectorCalibration():
            return _sparse_vector_losses(calibration)
        case AnswersCalibration(method="gaussian"):
            # All numbers of an answer together have this precision; one number has wider noise.
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
            # The ℓ₂ norm is largest if all rows of a person change the same number.
            several, variance = calibration.contribution, Fraction(calibration.deviation) ** 2
            squared = (several * (calibration.sensitivity_steps * calibration.parts // calibration.moved)) ** 2
            together = GaussianNumbers(calibration.moved // several, squared, variance)
            apart = GaussianNumbers(calibration.moved - together.count, 0, variance)
            return Losses(
                (), Fraction(0), Fraction(0), gaussian_first=(together, apart) if several > 1 else (together,)
            )
        case ReleaseCalibration():
            part = Fraction(calibration.epsilon_part)
            return Losses(((calibration.parts, part),), calibration.parts * part, Fraction(0))
        case RunningCountCalibration(method="gaussian"):
            # The sum of squares is largest if few nodes of a level hold all counts.
            levels, variance = calibration.levels, Fraction(calibration.deviation) ** 2
            squared = calibration.sensitivity_steps**2 // calibration.spread
            together = GaussianNumbers(levels, squared, variance)
            apart = GaussianNumbers(levels * (calibration.moved - 1), 0, variance)
            return Losses((), Fraction(0), Fraction(0), gaussian_first=(together, apart))
        case RunningCountCalibration():
            whole = Fraction(calibration.epsilon)
            return Losses(((1, whole),), whole, Fraction(0))
        case UnknownGroupsCalibration():
            # Each answer costs δ beside this ε (``is_pure``).
            each = Fraction(calibration.epsilon_answer)
            return Losses(((calibration.cutoff, each),), Fraction(0), each)
        case HypothesisCalibration():
            inner = losses(calibration.sparse_vector)
            rows = Fraction(calibration.epsilon_rows)
            parts = inner.parts if rows == 0 else ((1, rows), *inner.parts)
            return Losses(parts, rows + inner.first, inner.each, inner.open_loss, beyond=inner.beyond)
        case EstimateCalibration(contribution=several) if several > 1:
            # Each part is ε-DP for one row; by group privacy it is kε-DP for a person with k rows.
            return _scale_losses(losses(calibration.model_copy(update={"contribution": 1})), several)
        case EstimateCalibration():
            inner = losses(calibration.sparse_vector)
            rows, start = Fraction(calibration.epsilon_rows), Fraction(calibration.epsilon_start)
            # Rounds of a workload divide these ε, as do the orders of a typical error. Their Σ ε² is at most
            # the square of the whole ε.
            choices, chosen = Fraction(calibration.epsilon_choices), Fraction(calibration.epsilon_chosen)
            typical = Fraction(calibration.epsilon_typical)
            pure = ((1, rows), (calibration.starts, start), (1, choices), (1, chosen), (1, typical))
            opening = tuple((count, part) for count, part in pure if count and part)
            first = rows + calibration.starts * start + choices + chosen + typical + inner.first
            return Losses(
                (*opening, *inner.parts),
                first,
                inner.each,
                inner.open_loss,
                *_estimate_noise(calibration),
                beyond=inner.beyond,
            )


def _scale_losses(parts: Losses, rows: int) -> Losses:
    return Losses(
        tuple((count, rows * epsilon) for count, epsilon in parts.parts),
        rows * parts.first,
        rows * parts.each,
        rows * parts.open_loss,
        beyond=None if parts.beyond is None else rows * parts.beyond,
    )


def _estimate_noise(
    calibration: EstimateCalibration,
) -> tuple[tuple[GaussianNumbers, ...], tuple[GaussianNumbers, ...]]:
    """Return the Gaussian noise of the opening and of all ⊤s.

    One person changes ``marginal_sensitivity`` cells of a marginal by 1 each. A marginal and the
    number published with it share the precision of a ⊤; the number's variance is no less than that
    of the cells.
    """
    if calibration.noise == "laplace":
        return (), ()
    cells = calibration.marginal_sensitivity
    first: list[GaussianNumbers] = []
    if calibration.starts:
        first.append(GaussianNumbers(calibration.starts * cells, 1, Fraction(calibration.deviation_start) ** 2))
    if calibration.rounds:
        # All rounds of a workload together have the precision of one marginal. Fewer rounds have less
        # noise each; the bound is computed for this worst case.
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
        return Losses(((calibration.cutoff, whole),), Fraction(0), whole, open_loss=threshold)
    # Monotone queries save ε only on the planned ⊤s, not on those of extensions.
    beyond = (query + Fraction(calibration.epsilon_answer)) / calibration.cutoff
    return Losses(((1, threshold + per_tops),), threshold, per_tops / calibration.cutoff, beyond=beyond)


def is_pure(calibration: Calibration) -> bool:
    """Return True if the stream's ε holds with δ = 0, by basic composition."""
    if isinstance(calibration, UnknownGroupsCalibration) or releases_running_texts(calibration):
        return False
    parts = losses(calibration)
    return not parts.gaussian and parts.total <= Fraction(calibration.epsilon)


def releases_running_texts(calibration: Calibration) -> bool:
    """Return True for a running count of private texts, whose release costs δ."""
    return isinstance(calibration, RunningCountCalibration) and calibration.most_bytes is not None


def summed_loss(calibration: Calibration, charges: Fraction) -> Fraction:
    """Return the loss of ``charges`` charged answers by basic composition."""
    parts, planned = losses(calibration), min(charges, Fraction(calibration.cutoff))
    return parts.first + planned * parts.each + (charges - planned) * parts.extension_loss


def are_independent(calibration: Calibration) -> bool:
    """Return True if the noise of each charged answer is used by no later answer."""
    match calibration:
        case SparseVectorCalibration():
            return calibration.fresh_threshold
        case HypothesisCalibration() | EstimateCalibration():
            return calibration.sparse_vector.fresh_threshold
        case RunningCountCalibration():
            return False
        case _:
            return True
