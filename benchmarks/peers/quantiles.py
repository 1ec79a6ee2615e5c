"""Quantiles by OpenDP, diffprivlib and PyDP, for ``benchmarks.quantile_accuracy``.

Run by an interpreter that has the three libraries; reads a JSON object from standard input and writes
one to standard output. Each library gets the ε, the bounds and, if it takes them, all values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

Estimator = Callable[[], float]


def opendp(values: Sequence[int], low: int, high: int, q: float, epsilon: float) -> Estimator:
    """Noisy maximum of a rank score over all values, calibrated by OpenDP itself."""
    import opendp.prelude as dp  # noqa: PLC0415

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.symmetric_distance()
    candidates = list(range(low, high + 1))

    def made(scale: float) -> Any:
        return dp.m.make_private_quantile(*space, dp.max_divergence(), candidates, q, scale)

    measure = made(dp.binary_search_param(made, d_in=1, d_out=epsilon, T=float))
    return lambda: float(measure(list(values)))


def diffprivlib(values: Sequence[int], low: int, high: int, q: float, epsilon: float) -> Estimator:
    """The exponential mechanism over the intervals between values."""
    import numpy as np  # noqa: PLC0415
    from diffprivlib.tools import quantile  # noqa: PLC0415

    array = np.array(values, dtype=float)
    return lambda: float(quantile(array, q, epsilon=epsilon, bounds=(low, high)))


def pydp(values: Sequence[int], low: int, high: int, q: float, epsilon: float) -> Estimator:
    """Google's search on a tree of noisy counts."""
    from pydp.algorithms.laplacian import Percentile  # noqa: PLC0415

    numbers = [float(value) for value in values]

    def estimate() -> float:
        found = Percentile(epsilon=epsilon, percentile=q, lower_bound=low, upper_bound=high, dtype="float")
        return float(found.quick_result(numbers))

    return estimate


PEERS: dict[str, Callable[[Sequence[int], int, int, float, float], Estimator]] = {
    "OpenDP": opendp,
    "diffprivlib": diffprivlib,
    "PyDP": pydp,
}


def main() -> None:
    """Estimate each case of the input ``runs`` times with each library."""
    asked = json.load(sys.stdin)
    found: dict[str, list[list[float] | None]] = {name: [] for name in PEERS}
    for case in asked["cases"]:
        for name, peer in PEERS.items():
            try:
                estimate = peer(case["values"], case["low"], case["high"], case["q"], case["epsilon"])
                found[name].append([estimate() for _ in range(asked["runs"])])
            except Exception as error:  # noqa: BLE001  (a library may refuse a case)
                sys.stderr.write(f"{name}: {error}\n")
                found[name].append(None)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
