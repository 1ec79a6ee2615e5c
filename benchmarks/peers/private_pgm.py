"""private-pgm (`mbi`): marginals measured at once, a graphical model fitted to them, and every question answered from it.

What is measured: all pairs of attributes (``pairs``), single attributes (``singles``), or, told nothing, what MST (McKenna, Miklau &
Sheldon 2021) chooses (``tree``): a third of the budget on single attributes, a third on choosing a tree of pairs that those say
least of, a third on its pairs. Laplace noise where δ = 0, else Gaussian.

Takes an input and an output path. The input holds ``codes`` (one row a person), ``sizes``, the questions' ``lows``, ``highs`` and
``named``, ``epsilon``, ``delta``, ``seed`` and ``measure``; the output is the estimates. Runs in the benchmarks' own environment,
with numpy's noise: a peer's figure, not a release.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import Any

import jax  # type: ignore[import-not-found]
import numpy as np

warnings.simplefilter("ignore")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_enable_compilation_cache", False)

from mbi import Domain, LinearMeasurement, estimation  # type: ignore[import-not-found] # noqa: E402

Axes = tuple[int, ...]


class Curator:
    """The table, and the noise in front of it."""

    def __init__(self, codes: Any, sizes: list[int], delta: float, seed: int) -> None:
        """Take the rows' codes."""
        self.codes = codes.astype(np.int64)
        self.sizes = sizes
        self.delta = delta
        self.generator = np.random.default_rng(seed)

    def exact(self, axes: Axes) -> Any:
        """Counts on some axes."""
        shape = [self.sizes[axis] for axis in axes]
        flat = np.ravel_multi_index([self.codes[:, axis] for axis in axes], shape)
        return np.bincount(flat, minlength=math.prod(shape))

    def measure(self, sets: Sequence[Axes], budget: float) -> list[Any]:
        """Noisy marginals, with an equal part of ε (δ = 0) or ρ for each."""
        part = budget / len(sets)
        spread = math.sqrt(0.5 / part) if self.delta else math.sqrt(2.0) / part
        found = []
        for axes in sets:
            true = self.exact(axes)
            noise = (
                self.generator.normal(0.0, spread, len(true))
                if self.delta
                else self.generator.laplace(0.0, 1.0 / part, len(true))
            )
            found.append(LinearMeasurement(true + noise, tuple(map(str, axes)), stddev=spread))
        return found

    def tree(self, singles: list[Any], budget: float) -> list[Axes]:
        """Pairs that make a tree, each chosen by the exponential mechanism for how far single attributes are from telling it."""
        count = len(self.sizes)
        rows = max(1.0, float(np.mean([np.sum(one.noisy_measurement) for one in singles])))
        shares = [np.clip(one.noisy_measurement, 0.0, None) for one in singles]
        shares = [share / share.sum() for share in shares]
        scores = {
            pair: float(np.abs(self.exact(pair) - rows * np.outer(shares[pair[0]], shares[pair[1]]).ravel()).sum())
            for pair in combinations(range(count), 2)
        }
        part = budget / (count - 1)
        rate = math.sqrt(8.0 * part) if self.delta else part
        together = list(range(count))
        chosen: list[Axes] = []
        while len(chosen) < count - 1:
            open_pairs = [pair for pair in scores if together[pair[0]] != together[pair[1]]]
            noisy = [0.5 * rate * scores[pair] + self.generator.gumbel() for pair in open_pairs]
            left, right = open_pairs[int(np.argmax(noisy))]
            chosen.append((left, right))
            together = [together[left] if group == together[right] else group for group in together]
        return chosen


def zcdp_of(epsilon: float, delta: float) -> float:
    """The largest ρ whose zCDP is (ε, δ)-private, by the conversion of Canonne, Kamath & Steinke (2020)."""
    orders = 1.0 + np.geomspace(1e-3, 1e4, 4000)

    def log_delta(rho: float) -> float:
        bound = (orders - 1.0) * (orders * rho - epsilon) + orders * np.log1p(-1.0 / orders) - np.log(orders - 1.0)
        return float(bound.min())

    low, high = 0.0, epsilon
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if log_delta(middle) <= math.log(delta) else (low, middle)
    return low


def main(source: Path, target: Path) -> None:
    """Measure, estimate, answer, write."""
    given = np.load(source)
    sizes = [int(size) for size in given["sizes"]]
    epsilon, delta, measure = float(given["epsilon"]), float(given["delta"]), str(given["measure"])
    budget = zcdp_of(epsilon, delta) if delta else epsilon
    curator = Curator(given["codes"], sizes, delta, int(given["seed"]))
    singles = [(axis,) for axis in range(len(sizes))]
    edges: list[Axes] = []
    if measure == "tree":
        measurements = curator.measure(singles, budget / 3.0)
        edges = curator.tree(measurements, budget / 3.0)
        measurements += curator.measure(edges, budget / 3.0)
    else:
        sets: Sequence[Axes] = list(combinations(range(len(sizes)), 2)) if measure == "pairs" else singles
        measurements = curator.measure(sets, budget)
    domain = Domain(tuple(map(str, range(len(sizes)))), tuple(sizes))
    model = estimation.MirrorDescent().estimate(domain, measurements)
    marginal = whole(model, sizes) if measure == "pairs" else along_tree(model, sizes, edges)
    np.save(target, answers(marginal, given["lows"], given["highs"], given["named"]))


def projected(model: Any, axes: Axes, sizes: list[int]) -> Any:
    """The model's counts on some axes."""
    told = np.asarray(model.project(tuple(map(str, axes))).datavector(), dtype=np.float64)
    return told.reshape([sizes[axis] for axis in axes])


def whole(model: Any, sizes: list[int]) -> Callable[[Axes], Any]:
    """All marginals, from the tensor of all attributes."""
    tensor = projected(model, tuple(range(len(sizes))), sizes)
    return lambda axes: tensor.sum(axis=tuple(axis for axis in range(len(sizes)) if axis not in axes))


def along_tree(model: Any, sizes: list[int], edges: list[Axes]) -> Callable[[Axes], Any]:
    """All marginals, from those of the tree's pairs: the model is their product, over those of single attributes.

    The library projects as well, but compiles a program for each set of attributes.
    """
    singles = [projected(model, (axis,), sizes) for axis in range(len(sizes))]
    rows = float(singles[0].sum())
    shares = [single / rows for single in singles]
    pairs = {edge: projected(model, edge, sizes) / rows for edge in edges}

    def marginal(axes: Axes) -> Any:
        used = dict(pairs)
        while True:
            degrees = Counter(axis for edge in used for axis in edge)
            loose = [edge for edge in used if any(degrees[axis] == 1 and axis not in axes for axis in edge)]
            if not loose:
                break
            del used[loose[0]]
        operands: list[Any] = []
        for (left, right), pair in used.items():
            operands += [pair, [left, right]]
        for axis in {*degrees, *axes}:
            for _ in range(degrees[axis] - 1):
                operands += [1.0 / np.maximum(shares[axis], 1e-300), [axis]]
            if not degrees[axis]:
                operands += [shares[axis], [axis]]
        return rows * np.einsum(*operands, list(axes), optimize="greedy")

    return marginal


def answers(marginal: Callable[[Axes], Any], lows: Any, highs: Any, named: Any) -> Any:
    """Every question's sum over the marginal on its attributes."""
    found = np.empty(len(lows))
    sets, which = np.unique(named, axis=0, return_inverse=True)
    for number, flags in enumerate(sets):
        axes = tuple(np.flatnonzero(flags).tolist())
        places = np.flatnonzero(which.ravel() == number)
        table = marginal(axes)
        for axis in range(table.ndim):
            table = np.cumsum(table, axis=axis)
        padded = np.pad(table, [(1, 0)] * table.ndim)
        total = np.zeros(len(places))
        for upper in product((0, 1), repeat=len(axes)):
            corner = tuple(
                highs[places, axis] + 1 if high else lows[places, axis]
                for axis, high in zip(axes, upper, strict=True)
            )
            total += (-1) ** (len(axes) - sum(upper)) * padded[corner]
        found[places] = total
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
