"""Computes the least ε at which all answers are promised an error of α."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.accuracy.streamed import BETA
from benchmarks.accuracy.tasks import FEW, Task, Workload, make
from benchmarks.peers import pmw_bypass
from schemas import StreamSpec
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.inverse_plans import needed_epsilon
from stream.privacy.planning.noise_layouts import PlanError

ALPHAS = (0.05, 0.02)


@dataclass(frozen=True)
class Needed:
    """What one contender needs to promise α, as a share of the rows, for all questions; None where no ε is enough."""

    contender: str
    alpha: float
    epsilon: float | None


def needed(queries: int) -> Iterator[Needed]:
    """Ours by the planner, before anything is asked; PMW-Bypass as it comes out for these questions."""
    task = make(Workload(FEW, queries))
    if task is None:
        return
    for alpha in ALPHAS:
        for name, mechanism in _MECHANISMS.items():
            yield Needed(name, alpha, _planned(task, mechanism, alpha))
        for beta, said in (
            (pmw_bypass.PUBLISHED_BETA, "0.001 each, as published"),
            (BETA / queries, "0.05 for all"),
        ):
            generator = np.random.default_rng(0)
            told = pmw_bypass.answers(task.boxes, task.truth, task.rows, alpha, beta, generator)
            yield Needed(f"PMW-Bypass, β = {said}", alpha, told.epsilon())


_MECHANISMS: dict[str, dict[str, Any]] = {
    "pmw": {"kind": "pmw"},
    "pmw, nothing first": {"kind": "pmw", "warm_start": 0},
    "pmw, worst case": {"kind": "pmw", "worst_case": True, "rows": 50_000},
    "Laplace per query": {"kind": "laplace"},
}


def _planned(task: Task, mechanism: dict[str, Any], alpha: float) -> float | None:
    own = {"answers": len(task.wheres)} if mechanism["kind"] == "laplace" else {"attributes": task.attributes}
    spec = StreamSpec.model_validate(
        {
            "stream": "asked",
            "source": "adult",
            "mechanism": mechanism | own,
            "epsilon": 1.0,
            "beta": BETA,
            "expected_queries": len(task.wheres),
        }
    )
    setting = SourceFacts(sizes=task.sizes, universe=math.prod(task.sizes), rows=task.at_most, disjoint=True)
    try:
        return needed_epsilon(spec, setting, alpha * task.rows)
    except PlanError:
        return None
