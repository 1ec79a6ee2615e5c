"""How a plan's error changes with its ε, or with the number of charged answers that are paid for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from schemas import Calibration, StreamSpec
from schemas.mechanisms import MAX_ANSWERS
from stream.accounting.cutoffs import cutoff_field
from stream.accounting.methods import PlanError
from stream.accounting.plans import candidates
from stream.accounting.setting import Setting

POINTS: Final = 25
"""Points of a curve where nobody asks for another number of them."""


class Against(StrEnum):
    """What a curve varies."""

    EPSILON = "epsilon"
    CUTOFF = "cutoff"


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What could be had at one ε or one cutoff; nothing where no calibration fits."""

    value: float
    calibrations: tuple[Calibration, ...]


def curve(spec: StreamSpec, setting: Setting, against: Against, points: int = POINTS) -> Iterator[CurvePoint]:
    """Every calibration at each of about so many places around the specification, which is one of them.

    ε goes from a tenth to ten times the given one, a cutoff from 1 to ten times it. Each place is planned when it is asked
    for: whoever has had enough stops.

    Raises:
        PlanError: the mechanism is charged once, and has no cutoff to vary.
    """
    for value, varied in variations(spec, against, points):
        try:
            found = candidates(varied, setting)
        except PlanError:
            found = ()
        yield CurvePoint(value, found)


def variations(spec: StreamSpec, against: Against, points: int = POINTS) -> list[tuple[float, StreamSpec]]:
    """The specification at the places of a curve, in order."""
    if against is Against.EPSILON:
        arm = np.geomspace(1.0, 10.0, points // 2 + 1)[1:].tolist()
        values = [
            *(spec.epsilon / one for one in reversed(arm)),
            spec.epsilon,
            *(spec.epsilon * one for one in arm),
        ]
        return [(value, spec.model_copy(update={"epsilon": value})) for value in values]
    mechanism = spec.mechanism
    name = cutoff_field(mechanism.kind, type(mechanism), standing=spec.standing is not None)
    if name is None:
        raise PlanError(f"cutoff: {mechanism.kind} is charged once; vary epsilon")
    given = getattr(mechanism, name)
    cutoffs = {round(value) for value in np.geomspace(1, min(10 * (given or 10), MAX_ANSWERS), points)}
    return [
        (float(one), spec.model_copy(update={"mechanism": mechanism.model_copy(update={name: one})}))
        for one in sorted(cutoffs | ({given} if given else set()))
    ]
