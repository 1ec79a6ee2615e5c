"""AIM (McKenna, Mullins, Sheldon & Miklau 2022) on private-pgm (`mbi`), told that all pairs of attributes will be asked.

It measures single attributes, then selects, measures and fits again, and raises the budget of a round when the last one
told nothing new. Gaussian noise and zCDP where δ > 0, as published; where δ = 0 the same rounds with Laplace noise and an
equal division of ε. Takes an input and an output path: ``codes``, ``sizes``, ``epsilon``, ``delta``, ``seed``; the output
has the estimated counts of every pair, one after the other. ``rounds`` is the first division of the budget, and
``cells`` the most cells of the model's largest clique. Runs in the benchmarks' own environment, with numpy's noise.
"""

from __future__ import annotations

import math
import sys
import warnings
from itertools import combinations
from pathlib import Path
from typing import Any

import jax  # type: ignore[import-not-found]
import numpy as np

warnings.simplefilter("ignore")
jax.config.update("jax_enable_x64", True)

from mbi import Domain, estimation  # type: ignore[import-not-found] # noqa: E402

from private_pgm import Curator, projected, zcdp_of  # type: ignore[import-not-found] # noqa: E402 # isort: skip

Axes = tuple[int, ...]

_MEASURED, _CHOSEN = 0.9, 0.1
"""The parts of a round's budget for its measurement and for its choice."""


def main(source: Path, target: Path) -> None:
    """Run AIM and write the estimated counts of all pairs."""
    given = np.load(source)
    sizes = [int(size) for size in given["sizes"]]
    epsilon, delta, rounds = float(given["epsilon"]), float(given["delta"]), int(given["rounds"])
    most = int(given["cells"])
    budget = zcdp_of(epsilon, delta) if delta else epsilon
    curator = Curator(given["codes"], sizes, delta, int(given["seed"]))
    pairs: list[Axes] = list(combinations(range(len(sizes)), 2))
    model = fitted(curator, sizes, pairs, budget, rounds, most)
    np.save(target, np.concatenate([projected(model, pair, sizes).ravel() for pair in pairs]))


def fitted(curator: Curator, sizes: list[int], pairs: list[Axes], budget: float, rounds: int, most: int) -> Any:
    """Select, measure and fit until the budget is used up; cliques have at most ``most`` cells."""
    domain = Domain(tuple(map(str, range(len(sizes)))), tuple(sizes))
    part = budget / rounds
    singles = [(axis,) for axis in range(len(sizes))]
    measurements = curator.measure(singles, len(singles) * part * _MEASURED)
    left = budget - len(singles) * part * _MEASURED
    model = estimation.MirrorDescent().estimate(domain, measurements)
    cliques: list[Axes] = []
    while left > 0:
        if left < 2 * part:
            part = left
        left -= part
        open_pairs = [pair for pair in pairs if pair in cliques or width([*cliques, pair], sizes) <= most]
        before = {pair: projected(model, pair, sizes).ravel() for pair in open_pairs}
        noise = mean_noise(part * _MEASURED, curator.delta)
        scores = [
            float(np.abs(curator.exact(pair) - before[pair]).sum()) - noise * len(before[pair])
            for pair in open_pairs
        ]
        rate = math.sqrt(8.0 * part * _CHOSEN) if curator.delta else part * _CHOSEN
        gumbel = curator.generator.gumbel(size=len(scores))
        pair = open_pairs[int(np.argmax(0.5 * rate * np.array(scores) + gumbel))]
        measurements += curator.measure([pair], part * _MEASURED)
        cliques.append(pair)
        model = estimation.MirrorDescent().estimate(domain, measurements)
        after = projected(model, pair, sizes).ravel()
        if float(np.abs(after - before[pair]).sum()) <= noise * len(after):
            part *= 4.0 if curator.delta else 2.0
    return model


def mean_noise(budget: float, delta: float) -> float:
    """The mean size of the noise in a cell."""
    return math.sqrt(2.0 / math.pi * 0.5 / budget) if delta else 1.0 / budget


def width(cliques: list[Axes], sizes: list[int]) -> int:
    """The cells of the largest clique when attributes are eliminated, those with the fewest cells first."""
    beside: dict[int, set[int]] = {axis: set() for axis in range(len(sizes))}
    for left, right in cliques:
        beside[left].add(right)
        beside[right].add(left)
    largest = 1
    while beside:
        cells = {axis: math.prod(sizes[other] for other in (axis, *others)) for axis, others in beside.items()}
        axis = min(cells, key=lambda one: (cells[one], one))
        largest = max(largest, cells[axis])
        others = beside.pop(axis)
        for other in others:
            beside[other] |= others - {other}
            beside[other].discard(axis)
    return largest


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
