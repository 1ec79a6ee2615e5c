"""Planning a stream that is not open: what it would give and cost, and how its error runs. Nothing is reserved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Final, TypeVar

from schemas import Amount, Calibration, Source, StreamSpec
from stream.accounting.costs import stream_cost, to_amount
from stream.accounting.counted import rows_counted
from stream.accounting.curves import Against, curve
from stream.accounting.cutoffs import cutoff_field
from stream.accounting.planner import PlanError
from stream.accounting.plans import name_of
from stream.accounting.promises import promises
from stream.asking.standing import period_of
from stream.errors import Refused
from stream.monitor.entries import SourceEntry
from stream.monitor.models import Plan, PromiseParts
from stream.monitor.problems import ProblemError
from stream.monitor.workbench import Curve, CurveLine, CurvePoint
from stream.processors.budget.openings import plan_for, setting_of
from stream.processors.budget.standing import completed, promised_windows

_Made = TypeVar("_Made", Calibration, Curve)

CURVE_POINTS: Final = 17
CURVE_SECONDS: Final = 10.0
"""After so long no further place of a curve is planned."""


async def plan(spec: StreamSpec, source: Source, entry: SourceEntry) -> Plan:
    """What opening a stream would give and cost now."""
    calibration = await _planned(lambda: plan_for(spec, source))
    cost = to_amount(stream_cost(calibration, source.accountant), source)
    left = entry.record.left.model()
    return Plan(
        calibration=calibration,
        cost=cost,
        left=left,
        affordable=_pays(left, cost) and entry.record.state == "open",
        promises=[
            PromiseParts(**asdict(one)) for one in promises(spec, calibration, counted=rows_counted(source))
        ],
        windows=promised_windows(completed(spec, source, clock=0), source),
        period=period_of(source),
    )


async def plan_curve(spec: StreamSpec, source: Source, against: Against, gone: Callable[[], bool]) -> Curve:
    """How a stream's error would run; no further than whoever asked waits for."""
    return await _planned(lambda: _curve(spec, source, against, gone))


def _curve(spec: StreamSpec, source: Source, against: Against, gone: Callable[[], bool]) -> Curve:
    setting = setting_of(spec, source)
    ends = time.monotonic() + CURVE_SECONDS
    lines: dict[str, list[CurvePoint]] = {}
    complete = True
    for place in curve(spec, setting, against, CURVE_POINTS):
        for one in place.calibrations:
            point = CurvePoint(value=place.value, alpha=one.alpha, vacuous=one.vacuous)
            lines.setdefault(name_of(one), []).append(point)
        if time.monotonic() > ends or gone():
            complete = False
            break
    return Curve(
        against=against.value,
        chosen=_chosen_place(spec, against),
        method=_chosen_method(spec, source),
        lines=[CurveLine(method=name, points=points) for name, points in lines.items()],
        complete=complete,
    )


def _chosen_place(spec: StreamSpec, against: Against) -> float | None:
    if against is Against.EPSILON:
        return spec.epsilon
    name = cutoff_field(spec.mechanism.kind, type(spec.mechanism), standing=spec.standing is not None)
    given = None if name is None else getattr(spec.mechanism, name)
    return None if given is None else float(given)


def _chosen_method(spec: StreamSpec, source: Source) -> str | None:
    try:
        return name_of(plan_for(spec, source))
    except (Refused, PlanError, ValueError, ArithmeticError):
        return None


async def _planned(work: Callable[[], _Made]) -> _Made:
    try:
        # A search over calibrations takes a while; the event loop has others to serve.
        return await asyncio.to_thread(work)
    except Refused as error:
        raise ProblemError(409, "refused", str(error)[:1024], asked=error.asked, left=error.left) from None
    except (PlanError, ValueError, ArithmeticError) as error:
        raise ProblemError(409, "refused", str(error)[:1024]) from None


def _pays(left: Amount, cost: Amount) -> bool:
    if cost.rho is None or left.rho is None:
        return cost.epsilon <= left.epsilon and cost.delta <= left.delta
    # An ε that has a δ says what ρ implies, and does not add up.
    adds_up = not (cost.delta or left.delta)
    return (adds_up and cost.epsilon <= left.epsilon) or cost.rho <= left.rho
