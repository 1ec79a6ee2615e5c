"""private-pgm (`mbi`) on all two-way marginals with Laplace noise: estimates the whole tensor, for the accuracy benchmark.

Takes an input and an output path. The input holds ``codes`` (one row a person), ``sizes``, ``epsilon`` and ``seed``; the
output is the estimated tensor. Runs in the benchmarks' own environment.
"""

from __future__ import annotations

import sys
import warnings
from itertools import combinations
from pathlib import Path

import numpy as np

warnings.simplefilter("ignore")

from mbi import Domain, LinearMeasurement, estimation  # type: ignore[import-not-found] # noqa: E402


def main(source: Path, target: Path) -> None:
    """Measure, estimate, write."""
    given = np.load(source)
    codes, sizes = given["codes"], [int(size) for size in given["sizes"]]
    generator = np.random.default_rng(int(given["seed"]))
    axes = tuple(str(axis) for axis in range(len(sizes)))
    pairs = list(combinations(range(len(sizes)), 2))
    scale = len(pairs) / float(given["epsilon"])
    measurements = []
    for left, right in pairs:
        flat = codes[:, left].astype(np.int64) * sizes[right] + codes[:, right]
        counts = np.bincount(flat, minlength=sizes[left] * sizes[right])
        noisy = counts + generator.laplace(0.0, scale, len(counts))
        measurements.append(LinearMeasurement(noisy, (axes[left], axes[right]), stddev=scale * 2**0.5))
    domain = Domain(axes, tuple(sizes))
    model = estimation.MirrorDescent().estimate(domain, measurements)
    np.save(target, np.asarray(model.project(axes).datavector(), dtype=np.float64).reshape(sizes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
