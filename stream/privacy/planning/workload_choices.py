"""Choice of a mechanism for all questions about two attributes: the expected error of a cell.

Unlike α, which holds for all answers together, this is the mean size of the error of one count of a
pair's cell. It follows from public parameters; for ``pmw``, errors of estimates were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from pydantic import TypeAdapter

from schemas import (
    MAX_CATEGORIES,
    AnswersCalibration,
    Calibration,
    EstimateCalibration,
    Mechanism,
    ReleaseCalibration,
    StreamSpec,
)
from schemas.mechanisms import MAX_UNIVERSE
from stream.privacy.accuracy.noise_laws import variance_of
from stream.privacy.accuracy.release_accuracy import release_law
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.answer_plans import answer_law
from stream.privacy.planning.estimate_plans import opening_law
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose
from stream.privacy.planning.workload_plans import Axes, chosen_law, mean_noise, rounds_of

_FITTED: Final = 0.9
"""The mean error of an estimate's cell in units of a measured cell's noise: 0.5 to 0.9 were measured."""
_INFORMATIVE: Final = 1 / 3
"""A count is informative if its expected error is at most this part of the mean count of a cell."""

_mechanisms: TypeAdapter[Mechanism] = TypeAdapter(Mechanism)


@dataclass(frozen=True, slots=True)
class WorkloadChoice:
    """A mechanism for the workload: ``error`` is in rows, None if it does not apply (``why``)."""

    kind: str
    mechanism: dict[str, Any]
    error: float | None
    why: str


def compare_pairs(
    setting: SourceFacts, names: Sequence[str], *, epsilon: float, delta: float, beta: float, queries: int
) -> tuple[WorkloadChoice, ...]:
    """Rank laplace, histogram and pmw by the expected error of a cell of a pair, best first.

    Raises:
        PlanError: there are fewer than two attributes.
    """
    sizes = setting.sizes
    pairs = [pair for pair in combinations(range(len(sizes)), 2) if _cells(pair, sizes) <= MAX_CATEGORIES]
    if not pairs:
        raise PlanError(
            f"--about: no two attributes with at most {MAX_CATEGORIES:,} cells together; give --source or --sizes with two or more"
        )
    attributes = {"attributes": list(names)}
    largest = max(_cells(pair, sizes) for pair in pairs)
    offered: list[dict[str, Any]] = [
        {"kind": "laplace", "answers": len(pairs), "dimensions": largest},
        {"kind": "histogram", **attributes},
        {"kind": "pmw", **attributes},
    ]
    found = []
    for mechanism in offered:
        if mechanism["kind"] == "histogram" and math.prod(sizes) > MAX_UNIVERSE:
            why = f"{math.prod(sizes):,} cells are more than {MAX_UNIVERSE:,}"
            found.append(WorkloadChoice("histogram", mechanism, None, why))
            continue
        try:
            chosen = choose(_spec(mechanism, epsilon, delta, beta, queries, len(pairs)), setting)
        except PlanError as refused:
            found.append(WorkloadChoice(mechanism["kind"], mechanism, None, str(refused)))
            continue
        error, why = _expected(chosen, setting, pairs)
        found.append(WorkloadChoice(mechanism["kind"], mechanism, error, why))
    return tuple(sorted(found, key=lambda one: math.inf if one.error is None else one.error))


def mean_count(setting: SourceFacts) -> float | None:
    """Return the mean count of a pair's cell; None if the number of rows is not given."""
    if setting.rows is None:
        return None
    cells = [_cells(pair, setting.sizes) for pair in combinations(range(len(setting.sizes)), 2)]
    return setting.rows * len(cells) / sum(cells)


def is_informative(error: float, mean: float) -> bool:
    """Return True if counts of this mean are worth reading with this expected error."""
    return error <= _INFORMATIVE * mean


def _spec(
    mechanism: dict[str, Any], epsilon: float, delta: float, beta: float, queries: int, pairs: int
) -> StreamSpec:
    return StreamSpec(
        stream="plan",
        source="plan",
        mechanism=_mechanisms.validate_python(mechanism),
        epsilon=epsilon,
        delta=delta,
        expected_queries=pairs if mechanism["kind"] == "laplace" else queries,
        beta=beta,
    )


def _expected(calibration: Calibration, setting: SourceFacts, pairs: Sequence[Axes]) -> tuple[float | None, str]:
    """Return the expected error of a cell, and how ε is spent."""
    sizes = setting.sizes
    match calibration:
        case AnswersCalibration():
            moved = 2 if setting.neighbors == "replace" else 1
            law = answer_law(calibration, setting.groups_steps, moved)
            return mean_noise(law), f"one charged answer for each of {len(pairs)} pairs, and nothing else"
        case ReleaseCalibration():
            universe, each = math.prod(sizes), variance_of(release_law(calibration))
            cells = [_cells(pair, sizes) for pair in pairs]
            spread = sum(count * math.sqrt(2.0 / math.pi * each * universe / count) for count in cells) / sum(
                cells
            )
            return spread, f"all {universe:,} cells once; a count adds up the noise of its cells"
        case EstimateCalibration(warm_start="workload"):
            rounds = rounds_of(calibration, setting.rows or MAX_UNIVERSE**2, len(pairs))
            law = chosen_law(calibration, rounds, every=rounds == len(pairs))
            why = f"measures {rounds} of {len(pairs)} pairs; others follow from those that connect them"
            return _FITTED * mean_noise(law), why
        case EstimateCalibration(warm_start=2):
            return _FITTED * mean_noise(
                opening_law(calibration)
            ), "measures all pairs; answers any other question too"
        case _:
            return None, "measures no pair in advance"


def _cells(axes: Axes, sizes: Sequence[int]) -> int:
    return math.prod(sizes[axis] for axis in axes)
