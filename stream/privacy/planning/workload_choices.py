"""Choice of a mechanism for a workload: the expected error of one count of its cells.

α bounds the errors of all answers together; the expected error is the mean absolute error of one count. It follows from
public parameters; for ``pmw`` also from factors that were measured on example tables. ``sotto plan --about`` prints the
comparison, and a stream with the mechanism ``auto`` gets the best mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

from schemas import (
    MAX_CATEGORIES,
    AnswersCalibration,
    Calibration,
    EstimateCalibration,
    Pmw,
    ReleaseCalibration,
    StreamSpec,
)
from schemas.mechanisms import MAX_ANSWERS, MAX_UNIVERSE, Workload
from stream.formatting import LARGEST_SHARE
from stream.privacy.accuracy.noise_laws import variance_of
from stream.privacy.accuracy.release_accuracy import release_law
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.answer_plans import answer_law
from stream.privacy.planning.choices import mechanism_adapter
from stream.privacy.planning.estimate_plans import FEW_UPDATES
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration
from stream.privacy.planning.warm_starts import (
    Axes,
    chosen_set_law,
    count_cells,
    count_rounds,
    mean_noise,
    resolve_warm_start,
    warm_start_law,
)

_ESTIMATE_FACTORS: Final = ((2, 1.0), (4, 0.8), (6, 0.7))
"""Pairs (n, e): with at most n attributes, the mean error of an estimate's cell is e.

The error is in units of a measured cell's noise. Each further measurement that contains an attribute improves
the fit. The measured errors were 0.22 to 0.8 with seven or more attributes, 0.47 to 1.26 with four to six
(0.7 and 0.8 in the middle), and about 1 with two.
"""
_LEAST_ESTIMATE_FACTOR: Final = 0.5
"""The mean error with more attributes."""


@dataclass(frozen=True, slots=True)
class WorkloadChoice:
    """A mechanism for a workload, with its expected ``error`` in rows.

    If the mechanism does not apply, ``error`` is None and ``why`` gives the reason.
    """

    kind: str
    mechanism: dict[str, Any]
    error: float | None
    why: str


@dataclass(frozen=True, slots=True)
class StreamParameters:
    """The parameters that all compared streams share.

    ``answers`` is the number of answers for which ``laplace`` reserves ε; by default one for each set of the workload.
    """

    epsilon: float
    delta: float
    beta: float
    queries: int
    answers: int | None = None


def compare_mechanisms(
    facts: SourceFacts, names: Sequence[str], parameters: StreamParameters, workload: Workload = "pairs"
) -> tuple[WorkloadChoice, ...]:
    """Rank laplace, histogram and pmw by the expected error of a workload's count, best first.

    Raises:
        PlanError: no set of the workload has at most 4,096 cells.
    """
    sizes = facts.sizes
    sets = _countable_sets(workload, names, sizes)
    choices = []
    for mechanism in _list_mechanisms(facts.sizes, names, sets, parameters, workload):
        try:
            chosen = choose_calibration(_build_spec(mechanism, parameters, facts), facts)
        except PlanError as problem:
            choices.append(WorkloadChoice(mechanism["kind"], mechanism, None, str(problem)))
            continue
        error, why = _expected_error(chosen, facts, sets)
        choices.append(WorkloadChoice(mechanism["kind"], mechanism, error, why))
    return tuple(sorted(choices, key=lambda one: math.inf if one.error is None else one.error))


def mean_count(facts: SourceFacts, names: Sequence[str] = (), workload: Workload = "pairs") -> float | None:
    """Return the mean count of a cell of the workload; None if the number of rows is not given."""
    if facts.rows is None:
        return None
    sets = _countable_sets(workload, names, facts.sizes)
    return facts.rows * len(sets) / count_cells(sets, facts.sizes)


def count_pairs(sizes: Sequence[int]) -> tuple[int, int]:
    """Return the number of pairs of attributes whose cells one answer can list, and of all pairs."""
    return len(_countable_sets("pairs", (), sizes)), math.comb(len(sizes), 2)


def is_informative(error: float, mean: float) -> bool:
    """Return True if the expected error is small enough for counts with this mean."""
    return error <= LARGEST_SHARE * mean


def _countable_sets(workload: Workload, names: Sequence[str], sizes: Sequence[int]) -> tuple[Axes, ...]:
    """Return the sets of the workload whose cells one answer can list."""
    if isinstance(workload, str):
        if len(sizes) == 1:
            raise PlanError(
                "mechanism.workload: one attribute makes no pairs; give more attributes, or a workload of this one alone"
            )
        sets: list[Axes] = list(combinations(range(len(sizes)), 2))
    else:
        unknown = {name for one in workload for name in one} - set(names)
        if unknown:
            raise PlanError(
                f"mechanism.workload: {min(unknown)!r} is not among the attributes; name only attributes of the stream"
            )
        sets = [tuple(sorted({list(names).index(name) for name in one})) for one in workload]
    countable = tuple(axes for axes in sets if count_cells([axes], sizes) <= MAX_CATEGORIES)
    if not countable:
        what = "no two attributes have" if isinstance(workload, str) else "no set has"
        raise PlanError(
            f"mechanism.workload: {what} at most {MAX_CATEGORIES:,} cells together; give smaller attributes"
        )
    return countable


def _list_mechanisms(
    sizes: Sequence[int],
    names: Sequence[str],
    sets: Sequence[Axes],
    parameters: StreamParameters,
    workload: Workload,
) -> list[dict[str, Any]]:
    """Return the compared mechanisms as JSON objects."""
    attributes = {"attributes": list(names)}
    largest = max(count_cells([axes], sizes) for axes in sets)
    pmw: dict[str, Any] = {"kind": "pmw", **attributes}
    if not isinstance(workload, str):
        together = [[names[axis] for axis in axes] for axes in dict.fromkeys(sets) if len(axes) > 1]
        pmw |= {"workload": together} if together else {"warm_start": 1}
    elif resolve_warm_start(Pmw.model_validate(pmw), sizes) == 2:
        pmw |= {"updates": FEW_UPDATES}
    return [
        {"kind": "laplace", "answers": parameters.answers or len(sets), "dimensions": largest},
        {"kind": "histogram", **attributes},
        pmw,
    ]


def _build_spec(mechanism: dict[str, Any], parameters: StreamParameters, facts: SourceFacts) -> StreamSpec:
    """Return the specification of a compared mechanism; PlanError if it exceeds a limit."""
    universe = math.prod(facts.sizes)
    if mechanism["kind"] == "histogram" and universe > MAX_UNIVERSE:
        raise PlanError(f"{universe:,} cells are more than {MAX_UNIVERSE:,}")
    answers: int | None = mechanism.get("answers")
    if answers is not None and answers > MAX_ANSWERS:
        raise PlanError(f"{answers:,} charged answers are more than {MAX_ANSWERS:,}")
    return StreamSpec(
        stream="plan",
        source="plan",
        mechanism=mechanism_adapter.validate_python(mechanism),
        epsilon=parameters.epsilon,
        delta=parameters.delta,
        expected_queries=answers or parameters.queries,
        beta=parameters.beta,
    )


def _expected_error(
    calibration: Calibration, facts: SourceFacts, sets: Sequence[Axes]
) -> tuple[float | None, str]:
    """Return the expected error of a cell, and how ε is spent."""
    sizes = facts.sizes
    cells = [count_cells([axes], sizes) for axes in sets]
    count = len({axis for axes in sets for axis in axes})
    factors = (factor for most, factor in _ESTIMATE_FACTORS if count <= most)
    factor_of_estimates = next(factors, _LEAST_ESTIMATE_FACTOR)
    match calibration:
        case AnswersCalibration():
            moved = 2 if facts.neighbors == "replace" else 1
            law = answer_law(calibration, facts.groups_steps, moved)
            why = f"one charged answer for each of {calibration.cutoff:,} questions; answers no further ones"
            return mean_noise(law), why
        case ReleaseCalibration():
            universe, law = math.prod(sizes), release_law(calibration)
            # The sum of many cells' noise is nearly Gaussian.
            of_sum = math.sqrt(2.0 / math.pi * variance_of(law))
            spread = sum(
                count * (mean_noise(law) if count == universe else of_sum * math.sqrt(universe / count))
                for count in cells
            )
            why = f"measures all {universe:,} cells once; a count has the noise of its cells; no sums and means"
            return spread / sum(cells), why
        case EstimateCalibration(warm_start="workload"):
            set_count = sum(1 for axes in sets if len(axes) > 1)
            rounds = count_rounds(calibration, facts.rows or MAX_UNIVERSE**2, set_count)
            law = chosen_set_law(calibration, rounds, measures_all=rounds == set_count)
            chosen = factor_of_estimates * mean_noise(law)
            single = mean_noise(warm_start_law(calibration))
            errors = [single if len(axes) == 1 else chosen for axes in sets]
            spread = sum(count * error for count, error in zip(cells, errors, strict=True))
            word = "pairs" if {len(axes) for axes in sets} == {2} else "sets"
            # If the number of rows is private, a small table gets fewer rounds.
            most = "up to " if facts.rows is None else ""
            why = f"measures {most}{rounds} of {set_count} {word}; other {word} are computed from these"
            return spread / sum(cells), why
        case EstimateCalibration(warm_start=2) if max(map(len, sets)) <= 2:
            error = factor_of_estimates * mean_noise(warm_start_law(calibration))
            return error, "measures all pairs; answers any other question too"
        case EstimateCalibration(warm_start=1) if max(map(len, sets)) == 1:
            return mean_noise(
                warm_start_law(calibration)
            ), "measures all attributes; answers any other question too"
        case _:
            return None, "does not measure the workload in advance"
