"""How a calibration spends its ε, in words."""

from __future__ import annotations

from typing import Literal

from schemas import (
    Calibration,
    EstimateCalibration,
    HypothesisCalibration,
    RunningCountCalibration,
    SparseVectorCalibration,
)
from stream.figures import bound


def noise_in_words(calibration: Calibration) -> str:  # noqa: PLR0911 - one for each kind of calibration
    """How a calibration spends its ε, and how wide its Gaussian noise is."""
    match calibration:
        case SparseVectorCalibration():
            return _sparse_vector_in_words(calibration)
        case HypothesisCalibration():
            rows = f", ε rows {calibration.epsilon_rows:.4g}" if calibration.epsilon_rows else ""
            inner = _sparse_vector_in_words(calibration.sparse_vector)
            return f"{calibration.cutoff} updates, η {calibration.learning_rate:.3g}{rows}; {inner}"
        case EstimateCalibration():
            return _estimate_in_words(calibration)
        case RunningCountCalibration():
            return _running_count_in_words(calibration)
        case _ if calibration.method == "gaussian":
            per = "answer" if calibration.kind == "answers" else "number"
            return f"Gaussian noise, σ {calibration.deviation:.4g} per {per}"
        case _ if calibration.kind == "answers":
            return f"ε {calibration.epsilon_answer:.4g} per answer"
        case _:
            return f"{calibration.parts} × ε {calibration.epsilon_part:.4g}, once"


def _running_count_in_words(calibration: RunningCountCalibration) -> str:
    if calibration.method == "gaussian":
        noise = f"Gaussian noise, σ {calibration.deviation:.4g} per sum"
    else:
        noise = f"ε {calibration.epsilon / calibration.levels:.4g} per level"
    return f"{noise}; a {calibration.tree} tree of {calibration.levels} levels, up to {calibration.nodes} sums an answer; charged once"


def _estimate_in_words(calibration: EstimateCalibration) -> str:
    parts = [
        f"{calibration.cutoff} measurements",
        f"an error of {calibration.threshold * calibration.grid:.4g} is worth one",
    ]
    gaussian = calibration.noise == "gaussian"
    if calibration.starts:
        each = f"σ {calibration.deviation_start:.4g}" if gaussian else f"ε {calibration.epsilon_start:.4g}"
        parts.append(f"{calibration.starts} marginals first, {each} each")
    if gaussian:
        parts.append(
            f"Gaussian noise on measurements, σ {calibration.deviation_answer:.4g} in cells and {calibration.deviation_number:.4g} "
            "in numbers"
        )
    if calibration.epsilon_rows:
        parts.append(f"ε rows {calibration.epsilon_rows:.4g}")
    return f"{', '.join(parts)}; {_sparse_vector_in_words(calibration.sparse_vector)}"


def _sparse_vector_in_words(calibration: SparseVectorCalibration) -> str:
    drawn: Literal["after each above", "once"] = "after each above" if calibration.fresh_threshold else "once"
    parts = f"ε₁ {calibration.epsilon_threshold:.4g} (drawn {drawn}), ε₂ {calibration.epsilon_query:.4g}"
    if calibration.numbers == "fresh" and calibration.epsilon_answer:
        parts += f", ε₃ {calibration.epsilon_answer:.4g}"
    if calibration.numbers != "none":
        parts += f", numbers within {bound(calibration.answer_alpha, grouped=True)}"
    return f"{parts}, shift {calibration.shift * calibration.grid:.4g}"
