"""Contenders other than Sotto: their noise is numpy's, and their programs are in `benchmarks.peers`."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.accuracy.runs import Run
from benchmarks.accuracy.streamed import BETA
from benchmarks.accuracy.tasks import Task
from benchmarks.contenders import PEERS, environment
from benchmarks.installation import FOLDER
from benchmarks.peers import gaussian, mwem, pmw_bypass
from stream.privacy.composition.gaussian_losses import largest_rho

Contender = Callable[[Task, float, float, int], Run | None]
"""Runs once with a budget and a number for its noise; None if it cannot run at all."""

MWEM_ROUNDS = (5, 10, 20, 40, 80)
_HISTOGRAM_CELLS = 1 << 22
"""Most cells with which a peer that keeps a histogram of all attributes takes part."""
_ALPHA_STEPS = 12


def gaussian_noise(task: Task, epsilon: float, delta: float, number: int) -> Run | None:
    """Gaussian noise for each question."""
    if delta == 0.0:
        return None
    told, alpha = gaussian.answers(task.truth, epsilon, delta, BETA, np.random.default_rng(number))
    return Run.of(task.errors(told), promised=alpha / task.rows, charged=len(told), spent=epsilon)


def bypass(task: Task, epsilon: float, delta: float, number: int) -> Run | None:
    """Run PMW-Bypass at the least of finely spaced α at which it answers everything within the budget.

    That α is known only when all is over, so that no deployment could have asked for it.
    """
    if math.prod(task.sizes) > _HISTOGRAM_CELLS:
        return None
    budget = float(largest_rho(Fraction(epsilon), Fraction(delta))) if delta else epsilon
    low, high = 1e-4, 1e4
    best = None
    for _ in range(_ALPHA_STEPS):
        alpha = math.sqrt(low * high)
        told = pmw_bypass.answers(
            task.boxes, task.truth, task.rows, alpha, BETA / len(task.truth), np.random.default_rng(number)
        )
        if (told.rho() if delta else told.epsilon()) <= budget:
            high, best = alpha, (alpha, told)
        else:
            low = alpha
    if best is None:
        return None
    alpha, told = best
    return Run.of(task.errors(told.estimates), promised=alpha, charged=told.paid, spent=epsilon)


def multiplicative_weights_offline(task: Task, epsilon: float, delta: float, number: int) -> Run | None:
    """Run MWEM with the number of rounds that is best on average, which is known only afterwards."""
    if delta or math.prod(task.sizes) > _HISTOGRAM_CELLS:
        return None
    runs = []
    for rounds in MWEM_ROUNDS:
        told = mwem.answers(task.boxes, task.truth, task.rows, epsilon, rounds, np.random.default_rng(number))
        runs.append(Run.of(task.errors(told), spent=epsilon))
    return min(runs, key=lambda run: run.mean)


def private_pgm(measure: str) -> Contender:
    """Run private-pgm; ``measure`` selects the marginals that its program measures."""

    def run(task: Task, epsilon: float, delta: float, number: int) -> Run | None:
        if (python := environment_of("mbi")) is None:
            return None
        if measure == "pairs" and math.prod(task.sizes) > _HISTOGRAM_CELLS:
            return None
        given, made = (FOLDER / "accuracy" / name for name in ("given.npz", "made.npy"))
        given.parent.mkdir(parents=True, exist_ok=True)
        boxes = task.boxes
        np.savez(
            given,
            codes=task.asked,
            sizes=list(task.sizes),
            lows=boxes.lows,
            highs=boxes.highs,
            named=boxes.named,
            epsilon=epsilon,
            delta=delta,
            seed=number,
            measure=measure,
        )
        subprocess.run([python, PEERS / "private_pgm.py", given, made], check=True)
        return Run.of(task.errors(np.load(made)), spent=epsilon)

    return run


@lru_cache
def environment_of(package: str) -> Path | None:
    """Return the peers' interpreter; it is searched once."""
    return environment(package)


PEERS_HERE: dict[str, Contender] = {
    "Gaussian per query": gaussian_noise,
    "PMW-Bypass": bypass,
    "MWEM, offline, told the questions": multiplicative_weights_offline,
    "private-pgm, offline, all pairs": private_pgm("pairs"),
    "private-pgm, offline, single attributes": private_pgm("singles"),
    "private-pgm, offline, a tree of pairs": private_pgm("tree"),
}
