"""Describes a plan of one mechanism, what a requested error needs, and the simplest alternative."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Literal

from schemas import (
    Calibration,
    EstimateCalibration,
    HypothesisCalibration,
    LazyHistogram,
    RunningCountCalibration,
    SparsePmw,
    SparseProject,
    SparseVectorCalibration,
    StreamSpec,
    UnknownGroupsCalibration,
)
from stream.cli.output import console, show_table
from stream.formatting import format_error_bound
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.form_accuracy import FORMS
from stream.privacy.planning.inverse_plans import (
    ANSWER_CUTOFF_FIELDS,
    cutoff_field,
    largest_cutoff,
    needed_epsilon,
    needed_rows,
)
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration, name_of, rank
from stream.privacy.planning.promises import describe_uninformative, promises

FormName = StrEnum("FormName", {form.upper(): form for form in FORMS})  # type: ignore[misc]


def describe_noise(calibration: Calibration) -> str:  # noqa: PLR0911 - one for each kind of calibration
    """Describe the parts of ε that a calibration spends, or the σ of its Gaussian noise."""
    match calibration:
        case SparseVectorCalibration():
            return _describe_sparse_vector(calibration)
        case HypothesisCalibration():
            rows = f", ε {calibration.epsilon_rows:.4g} for the number of rows" if calibration.epsilon_rows else ""
            inner = _describe_sparse_vector(calibration.sparse_vector)
            return f"{calibration.cutoff} updates, learning rate {calibration.learning_rate:.3g}{rows}; {inner}"
        case EstimateCalibration():
            return _describe_estimate(calibration)
        case RunningCountCalibration():
            gaussian = f"Gaussian noise, σ {calibration.deviation:.4g} per sum"
            pure = f"ε {(calibration.epsilon - calibration.epsilon_size) / calibration.levels:.4g} per level"
            needed = (
                f"; a text needs a noisy count so far of {calibration.threshold:,}"
                if calibration.threshold
                else ""
            )
            return (
                f"{gaussian if calibration.method == 'gaussian' else pure}; a {calibration.tree} tree of {calibration.levels} "
                f"levels, up to {calibration.nodes} sums an answer; charged once{needed}"
            )
        case UnknownGroupsCalibration(method="selection"):
            return (
                f"ε {calibration.epsilon_answer:.4g} and δ {calibration.delta_answer:.3g} per answer; a text of "
                f"{calibration.threshold:,} people is released for certain"
            )
        case UnknownGroupsCalibration():
            return (
                f"ε {calibration.epsilon_answer:.4g} and δ {calibration.delta_answer:.3g} per answer; a text needs a noisy count of "
                f"{calibration.threshold:,}"
            )
        case _ if calibration.method == "gaussian":
            per = "answer" if calibration.kind == "answers" else "number"
            return f"Gaussian noise, σ {calibration.deviation:.4g} per {per}"
        case _ if calibration.kind == "answers":
            return f"ε {calibration.epsilon_answer:.4g} per answer"
        case _:
            return f"{calibration.parts} × ε {calibration.epsilon_part:.4g}, once"


def _describe_estimate(calibration: EstimateCalibration) -> str:
    parts = [
        f"{calibration.cutoff} measurements",
        f"each made if the estimate's error exceeds about {calibration.threshold * calibration.grid:.4g}",
    ]
    gaussian = calibration.noise == "gaussian"
    if calibration.starts:
        each = f"σ {calibration.deviation_start:.4g}" if gaussian else f"ε {calibration.epsilon_start:.4g}"
        parts.append(f"{calibration.starts} marginals first, {each} each")
    if calibration.rounds:
        chosen = (
            f"σ {calibration.deviation_chosen:.4g}·√k for each of k sets"
            if gaussian
            else f"ε {calibration.epsilon_chosen:.4g} for all their measurements"
        )
        parts.append(
            f"then up to {calibration.rounds} sets of the workload, ε {calibration.epsilon_choices:.4g} for the choices, {chosen}"
        )
    if gaussian:
        parts.append(
            f"Gaussian noise on measurements, σ {calibration.deviation_answer:.4g} in cells and {calibration.deviation_number:.4g} "
            "in numbers"
        )
    if calibration.epsilon_rows:
        parts.append(f"ε {calibration.epsilon_rows:.4g} for the number of rows")
    if calibration.epsilon_typical:
        parts.append(f"ε {calibration.epsilon_typical:.4g} for typical errors")
    return f"{', '.join(parts)}; {_describe_sparse_vector(calibration.sparse_vector)}"


def _describe_sparse_vector(calibration: SparseVectorCalibration) -> str:
    drawn: Literal["after each above", "once"] = "after each above" if calibration.fresh_threshold else "once"
    parts = f"ε₁ {calibration.epsilon_threshold:.4g} (drawn {drawn}), ε₂ {calibration.epsilon_query:.4g}"
    if calibration.numbers == "fresh" and calibration.epsilon_answer:
        parts += f", ε₃ {calibration.epsilon_answer:.4g}"
    if calibration.numbers != "none":
        parts += f", numbers within {format_error_bound(calibration.answer_alpha, grouped=True)}"
    return f"{parts}, shift {calibration.shift * calibration.grid:.4g}"


def print_simplest_alternative(spec: StreamSpec, facts: SourceFacts) -> None:
    """For a sparse mechanism, print the error bound of lazy_histogram, the simplest alternative."""
    if isinstance(spec.mechanism, SparsePmw | SparseProject):
        sparse = spec.mechanism.model_dump(include={"attributes", "sparsity"})
        lazy = LazyHistogram(kind="lazy_histogram", **sparse)
        alpha = choose_calibration(spec.model_copy(update={"mechanism": lazy, "calibration": "best"}), facts).alpha
        console.print(
            f"a lazy_histogram with the same ε answers such questions within ±{format_error_bound(alpha, grouped=True)}"
        )


def to_rows(spec: StreamSpec, facts: SourceFacts, alpha: float) -> float:
    """Return a requested error in rows; if the mechanism has ``rows``, an α below 1 is a share of them."""
    share = "rows" in type(spec.mechanism).model_fields and alpha < 1.0
    return alpha * facts.rows if share and facts.rows is not None else alpha


def find_sufficient_parameters(spec: StreamSpec, facts: SourceFacts, alpha: float) -> dict[str, str]:
    """For each parameter, return the value that reaches the error with the others unchanged."""
    known = type(spec.mechanism).model_fields
    share = "rows" in known and alpha < 1.0
    wanted = to_rows(spec, facts, alpha)
    questions: list[tuple[str, Callable[[], float]]] = [("ε ≥", lambda: needed_epsilon(spec, facts, wanted))]
    if (
        cutoff_field(spec.mechanism.kind, type(spec.mechanism), standing=spec.standing is not None)
        in ANSWER_CUTOFF_FIELDS
    ):
        questions.append(("cutoff ≤", lambda: largest_cutoff(spec, facts, wanted)))
    if share:
        questions.append(("rows ≥", lambda: needed_rows(spec, facts, alpha)))
    needs: dict[str, str] = {}
    for name, question in questions:
        try:
            needs[name] = format_error_bound(question())
        except PlanError as error:
            needs[name] = f"(none: {error})"
    return needs


def print_plan(
    spec: StreamSpec, listed: tuple[Calibration, ...], calibration: Calibration, facts: SourceFacts
) -> None:
    """Print every calibration, the reason for the chosen one, and its error bounds."""
    mechanism = spec.mechanism.kind
    once = not calibration.cutoff or isinstance(calibration, RunningCountCalibration)
    cutoff = "charged once" if once else f"cutoff {calibration.cutoff}"
    show_table(
        f"{mechanism}: ε {spec.epsilon:g}, δ {spec.delta:g}, {cutoff}, β {spec.beta:g}",
        ["", "calibration", "α", "exact α", "noise"],
        [
            [
                "→" if one == calibration else "",
                name_of(one),
                f"{format_error_bound(one.alpha, grouped=True)}{' (vacuous)' if one.vacuous else ''}",
                format_error_bound(rank(one), grouped=True),
                describe_noise(one),
            ]
            for one in listed
        ],
    )
    if spec.calibration == "textbook":
        console.print("→ requested")
    elif rank(calibration) == min(rank(one) for one in listed):
        console.print("→ the smallest exact error")
    else:
        console.print("→ the simplest within a thousandth of the smallest exact error")
    for promise in promises(spec, calibration):
        console.print(f"{promise}.", soft_wrap=True)
    if (warning := describe_uninformative(spec, calibration, facts)) is not None:
        console.print(f"{warning}.", soft_wrap=True)
