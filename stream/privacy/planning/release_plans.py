"""Planner of mechanisms with one release: histogram, lazy_histogram, sparse_project.

A histogram is one part, with Laplace noise or, if δ > 0 makes that better, Gaussian noise; a
projection has one part per row. Parts are (ε, δ)-private together by basic or optimal composition
(Kairouz, Oh & Viswanath 2015). Proofs: docs/proofs/histogram.md, docs/proofs/lazy-histogram.md
and docs/proofs/sparse-project.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Literal

from schemas import (
    MAX_UNIVERSE,
    Histogram,
    LazyHistogram,
    ReleaseCalibration,
    SparseProject,
    StreamSpec,
)
from stream.privacy.accuracy.release_accuracy import cell_alpha, lazy_alpha, noise_alpha, projection_alpha
from stream.privacy.accuracy.source_facts import Setting
from stream.privacy.composition.gaussian_losses import least_multiple
from stream.privacy.composition.losses import losses
from stream.privacy.composition.pure_rounds import optimal_round_epsilon
from stream.privacy.planning.answer_plans import stated_epsilon
from stream.privacy.planning.noise_layouts import HEADROOM, LARGEST_NOISE, PlanError

_LEADING_CONSTANT = 4 * 64**2


def candidates(spec: StreamSpec, setting: Setting) -> tuple[ReleaseCalibration, ...]:
    """Return every calibration that applies, the simplest first and the textbook's last.

    ``alpha`` is the error of every cell of a histogram, or of a question of ``sparsity`` cells.
    The textbook's is its theorem's, or the exact one if that is larger. A projection's covers its
    noise alone (``noise_only``) if the row count is private, else the worst table.

    Raises:
        PlanError: the histogram is too large, or the source has no cells; the message names the parameter to change.
    """
    match spec.mechanism:
        case Histogram():
            return _histogram(spec, setting)
        case LazyHistogram(sparsity=sparsity):
            return _lazy_histogram(spec, setting, sparsity)
        case SparseProject() as mechanism:
            return _sparse_project(spec, setting, mechanism)
        case _:
            raise TypeError(f"{spec.mechanism.kind} releases nothing of a table at once")


def theorem_projections(rows: int, sparsity: int, queries: int, beta: float) -> int:
    """Return the projection rows of the accuracy theorem of Blum & Roth 2011 (Tutunov).

    T = 4·64²·ln(1/τ)·(m^{3/2}/2 + n⁴/(2√m) + √m·n²), τ = β/4k. About 10¹⁶ at n = 1000 and m = 100;
    privacy needs none of it.
    """
    root = math.sqrt(sparsity)
    polynomial = 0.5 * root**3 + 0.5 * rows**4 / root + root * rows**2
    return math.ceil(_LEADING_CONSTANT * math.log(4.0 * queries / beta) * polynomial)


def _histogram(spec: StreamSpec, setting: Setting) -> tuple[ReleaseCalibration, ...]:
    universe = _universe(setting)
    if universe > MAX_UNIVERSE:
        raise PlanError(
            f"mechanism.attributes: their {universe} cells exceed the {MAX_UNIVERSE} of a histogram; "
            "name fewer or smaller ones, or use lazy_histogram"
        )
    # Wang, lecture 3, Section 3.3, for all cells at once.
    return _one_release(spec, setting, lambda draft: cell_alpha(draft, universe), universe, 1)


def _lazy_histogram(spec: StreamSpec, setting: Setting, sparsity: int) -> tuple[ReleaseCalibration, ...]:
    _universe(setting)
    # The same theorem for all named cells; a question sums up to ``sparsity`` of them.
    named = sparsity * spec.expected_queries
    return _one_release(spec, setting, lambda draft: lazy_alpha(draft, sparsity), named, sparsity)


def _sparse_project(
    spec: StreamSpec, setting: Setting, mechanism: SparseProject
) -> tuple[ReleaseCalibration, ...]:
    _universe(setting)
    parts = mechanism.projections
    found: list[tuple[Literal["basic", "optimal", "textbook"], float, float]] = [
        ("basic", optimal_round_epsilon(spec.epsilon, 0.0, parts), 0.0)
    ]
    if spec.delta > 0.0 and parts > 1:
        found.append(("optimal", optimal_round_epsilon(spec.epsilon, spec.delta, parts), spec.delta))
    # Scale 1/σ, σ = ε/√(8 ln(1/δ)), for entries ±1/√T equals ε/√(8 T ln(1/δ)) a row for ±1.
    found.append(("textbook", *stated_epsilon(spec.epsilon, spec.delta, parts)))
    result = []
    for method, epsilon_part, delta in found:
        draft = _draft(spec, setting, method, parts, epsilon_part, delta)
        if setting.rows is None:
            # The error from other cells depends on the table and is given with each answer.
            known = {"alpha": noise_alpha(draft, mechanism.sparsity), "noise_only": True}
        else:
            known = {"alpha": projection_alpha(draft, mechanism.sparsity, float(setting.rows))}
        result.append(draft.model_copy(update=known))
    return tuple(result)


def _one_release(
    spec: StreamSpec,
    setting: Setting,
    alpha: Callable[[ReleaseCalibration], float],
    cells: int,
    summed: int,
) -> tuple[ReleaseCalibration, ...]:
    """Return the calibrations of a release; the theorem's α is for ``summed`` of ``cells``."""
    basic = _draft(spec, setting, "basic", 1, spec.epsilon, 0.0)
    theorem = summed * math.log(cells / basic.beta) * basic.sensitivity_steps / basic.epsilon
    found = [basic.model_copy(update={"alpha": alpha(basic)})]
    noise = {"moved": basic.sensitivity_steps, "contribution": setting.contribution, "epsilon_part": 0.0}
    wide = basic.model_copy(update={"method": "gaussian", "deviation": 1.0, "delta": spec.delta, **noise})
    deviation = least_multiple(losses(wide).gaussian, Fraction(basic.epsilon), Fraction(spec.delta))
    if HEADROOM * deviation <= LARGEST_NOISE:
        gaussian = wide.model_copy(update={"deviation": deviation})
        found.append(gaussian.model_copy(update={"alpha": alpha(gaussian)}))
    textbook = {"method": "textbook", "alpha": max(found[0].alpha, theorem)}
    return (*found, basic.model_copy(update=textbook))


def _draft(
    spec: StreamSpec,
    setting: Setting,
    method: Literal["basic", "optimal", "textbook"],
    parts: int,
    epsilon_part: float,
    delta: float,
) -> ReleaseCalibration:
    return ReleaseCalibration(
        method=method,
        parts=parts,
        epsilon_part=epsilon_part,
        epsilon=spec.epsilon,
        delta=delta,
        grid=1.0,
        # One row changes one cell, or each projection row, by 1; replacing it counts twice.
        sensitivity_steps=setting.groups_steps,
        cutoff=0,
        expected_queries=spec.expected_queries,
        beta=spec.beta,
        alpha=0.0,
    )


def _universe(setting: Setting) -> int:
    if setting.universe is None:
        raise PlanError("mechanism: cells are those of a table's attributes; open the stream on a table source")
    return setting.universe
