"""Choice of a mechanism for all questions about two attributes: the expected error of a cell.

α bounds the errors of all answers together; the expected error is the mean size of the error of one
count of a pair's cell. It follows from public parameters, except that for ``pmw`` it uses measured
errors of estimates.
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
from stream.privacy.planning.plans import choose_calibration
from stream.privacy.planning.workload_plans import Axes, chosen_law, count_rounds, mean_noise

_ESTIMATE_FACTOR: Final = 0.9
"""Mean error of an estimate's cell, in units of a measured cell's noise; in tests it was 0.5 to 0.9."""
_INFORMATIVE_SHARE: Final = 1 / 3
"""A count is informative if its expected error is at most this part of the mean count of a cell."""

_mechanisms: TypeAdapter[Mechanism] = TypeAdapter(Mechanism)


@dataclass(frozen=True, slots=True)
class WorkloadChoice:
    """A mechanism for the workload, with its expected ``error`` in rows.

    If the mechanism does not apply, ``error`` is None and ``why`` gives the reason.
    """

    kind: str
    mechanism: dict[str, Any]
    error: float | None
    why: str


def compare_pairs(
    facts: SourceFacts, names: Sequence[str], *, epsilon: float, delta: float, beta: float, queries: int
) -> tuple[WorkloadChoice, ...]:
    """Rank laplace, histogram and pmw by the expected error of a cell of a pair, best first.

    Raises:
        PlanError: there are fewer than two attributes.
    """
    sizes = facts.sizes
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
    choices = []
    for mechanism in offered:
        if mechanism["kind"] == "histogram" and math.prod(sizes) > MAX_UNIVERSE:
            why = f"{math.prod(sizes):,} cells are more than {MAX_UNIVERSE:,}"
            choices.append(WorkloadChoice("histogram", mechanism, None, why))
            continue
        try:
            chosen = choose_calibration(_spec(mechanism, epsilon, delta, beta, queries, len(pairs)), facts)
        except PlanError as problem:
            choices.append(WorkloadChoice(mechanism["kind"], mechanism, None, str(problem)))
            continue
        error, why = _expected_error(chosen, facts, pairs)
        choices.append(WorkloadChoice(mechanism["kind"], mechanism, error, why))
    return tuple(sorted(choices, key=lambda one: math.inf if one.error is None else one.error))


def mean_count(facts: SourceFacts) -> float | None:
    """Return the mean count of a pair's cell; None if the number of rows is not given."""
    if facts.rows is None:
        return None
    cells = [_cells(pair, facts.sizes) for pair in combinations(range(len(facts.sizes)), 2)]
    return facts.rows * len(cells) / sum(cells)


def is_informative(error: float, mean: float) -> bool:
    """Return True if counts of this mean are worth reading with this expected error."""
    return error <= _INFORMATIVE_SHARE * mean


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


def _expected_error(
    calibration: Calibration, facts: SourceFacts, pairs: Sequence[Axes]
) -> tuple[float | None, str]:
    """Return the expected error of a cell, and how ε is spent."""
    sizes = facts.sizes
    match calibration:
        case AnswersCalibration():
            moved = 2 if facts.neighbors == "replace" else 1
            law = answer_law(calibration, facts.groups_steps, moved)
            return mean_noise(law), f"one charged answer for each of {len(pairs)} pairs; answers nothing else"
        case ReleaseCalibration():
            universe, each = math.prod(sizes), variance_of(release_law(calibration))
            cells = [_cells(pair, sizes) for pair in pairs]
            spread = sum(count * math.sqrt(2.0 / math.pi * each * universe / count) for count in cells) / sum(
                cells
            )
            return spread, f"all {universe:,} cells once; a count adds up the noise of its cells"
        case EstimateCalibration(warm_start="workload"):
            rounds = count_rounds(calibration, facts.rows or MAX_UNIVERSE**2, len(pairs))
            law = chosen_law(calibration, rounds, every=rounds == len(pairs))
            why = f"measures {rounds} of {len(pairs)} pairs; the other pairs are computed from the measured ones"
            return _ESTIMATE_FACTOR * mean_noise(law), why
        case EstimateCalibration(warm_start=2):
            return _ESTIMATE_FACTOR * mean_noise(
                opening_law(calibration)
            ), "measures all pairs; answers any other question too"
        case _:
            return None, "measures no pair in advance"


def _cells(axes: Axes, sizes: Sequence[int]) -> int:
    return math.prod(sizes[axis] for axis in axes)
